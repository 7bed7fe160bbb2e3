"""On CUDA tensors programs give eager's answers, by PyTorch's operators."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.api.agreement import gradients
from torch import nn

import weft

pytestmark = pytest.mark.gpu
CUDA = "cuda"


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected)
    assert found.device.type == CUDA


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), (4, 6)),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), (2, 3, 8, 8)),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
        (lambda: nn.LSTM(6, 5, batch_first=True), (2, 3, 6)),
    ],
)
def test_modules_and_their_gradients_agree_with_eager(make: Any, sizes: tuple[int, ...]) -> None:
    eager = make().to(CUDA)
    hybrid = weft.hybridize(copy.deepcopy(eager))
    x = torch.randn(sizes, device=CUDA)
    for _ in range(3):
        expected, found = eager(x), hybrid(x)
        expected, found = (result[0] if isinstance(result, tuple) else result for result in (expected, found))
        close(found, expected)
        ours = gradients(found.sum(), list(hybrid.parameters()))
        for mine, theirs in zip(ours, gradients(expected.sum(), list(eager.parameters())), strict=True):
            close(mine, theirs)
    for mine, theirs in zip(hybrid.buffers(), eager.buffers(), strict=True):
        close(mine, theirs)
    assert hybrid.forward.traces == 1


def test_a_module_that_moves_to_the_gpu_is_followed() -> None:
    net = weft.hybridize(nn.Linear(3, 2))
    net(torch.randn(4, 3))
    net.to(CUDA)
    x = torch.randn(4, 3, device=CUDA)
    close(net(x), nn.functional.linear(x, net.weight, net.bias))
    assert net.forward.misses == ["argument input: device was cpu, is cuda:0"]


def test_in_place_changes_and_views_arrive() -> None:
    def function(x: torch.Tensor) -> Any:
        x[0] = 5
        x.t().mul_(2)
        return x.view(-1), x.sum()

    hybrid = weft.hybridize(function)
    for _ in range(3):
        ours, theirs = torch.ones(2, 3, device=CUDA), torch.ones(2, 3, device=CUDA)
        for found, expected in zip(hybrid(ours), function(theirs), strict=True):
            close(found, expected)
        close(ours, theirs)


def test_dropout_draws_the_stream_of_eager_under_a_seed() -> None:
    function = nn.functional.dropout
    hybrid = weft.hybridize(lambda x: function(x, 0.5))
    x = torch.ones(1000, device=CUDA)
    for _ in range(3):
        torch.manual_seed(1)
        expected = function(x, 0.5), torch.rand(1, device=CUDA)
        torch.manual_seed(1)
        found = hybrid(x), torch.rand(1, device=CUDA)
        for mine, theirs in zip(found, expected, strict=True):
            close(mine, theirs)


def test_results_of_earlier_calls_stay_what_they_were() -> None:
    hybrid = weft.hybridize(lambda x: x * 2)
    first = hybrid(torch.ones(4, device=CUDA))
    second = hybrid(torch.full((4,), 5.0, device=CUDA))
    assert first.tolist() == [2.0] * 4
    assert second.tolist() == [10.0] * 4


def test_replaced_and_written_parameters_are_seen() -> None:
    net = weft.hybridize(nn.Linear(3, 2).to(CUDA))
    x = torch.randn(4, 3, device=CUDA)
    net(x)
    net.weight.data.copy_(torch.ones(2, 3))
    close(net(x), nn.functional.linear(x, net.weight, net.bias))
    net.weight = nn.Parameter(torch.zeros(2, 3, device=CUDA))
    close(net(x), nn.functional.linear(x, net.weight, net.bias))


def test_other_streams_see_what_was_queued_before() -> None:
    hybrid = weft.hybridize(lambda x: x @ x)
    x = torch.randn(64, 64, device=CUDA)
    hybrid(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = hybrid(x)
    torch.cuda.current_stream().wait_stream(stream)
    close(found, x @ x)


def test_training_follows_eager() -> None:
    eager = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(CUDA)
    hybrid = weft.hybridize(copy.deepcopy(eager))
    x, y = torch.randn(16, 6, device=CUDA), torch.randn(16, 1, device=CUDA)
    losses = []
    for net in (hybrid, eager):
        optimizer = torch.optim.Adam(net.parameters(), 0.01)
        for _ in range(10):
            optimizer.zero_grad()
            loss = ((net(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    close(*losses)


def test_autocast_casts_as_in_eager() -> None:
    net, x = nn.Linear(8, 4).to(CUDA), torch.randn(3, 8, device=CUDA)
    with torch.autocast(CUDA, dtype=torch.float16):
        expected = net(x)
        weft.hybridize(net)
        found = net(x)
    close(found, expected)
    assert found.dtype is torch.float16


def captures(net: Any) -> str:
    return weft.explain(net)


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), (4, 6)),
        (lambda: nn.Sequential(nn.Conv2d(1, 6, 5), nn.Sigmoid(), nn.AvgPool2d(2), nn.Flatten()), (2, 1, 28, 28)),
    ],
)
def test_safe_programs_are_captured_and_follow_inputs_and_parameters(make: Any, sizes: tuple[int, ...]) -> None:
    eager = make().to(CUDA).eval()
    hybrid = weft.hybridize(copy.deepcopy(eager))
    with torch.no_grad():
        for number in range(12):
            x = torch.randn(sizes, device=CUDA)
            close(hybrid(x), eager(x))
            if number == 6:
                for one, other in zip(hybrid.parameters(), eager.parameters(), strict=True):
                    one.mul_(1.5)
                    other.mul_(1.5)
            if number == 9:
                hybrid[0].weight = nn.Parameter(hybrid[0].weight * 2)
                eager[0].weight = nn.Parameter(eager[0].weight * 2)
    assert "captured in a CUDA graph" in captures(hybrid)


def test_results_of_earlier_replays_stay_as_they_were() -> None:
    hybrid = weft.hybridize(nn.Linear(3, 3).to(CUDA))
    with torch.no_grad():
        results = []
        for _ in range(10):
            x = torch.randn(2, 3, device=CUDA)
            results.append((hybrid(x), nn.functional.linear(x, hybrid.weight, hybrid.bias)))
    for found, expected in results:
        close(found, expected)


def test_random_programs_are_not_captured_and_say_why() -> None:
    net = weft.hybridize(nn.Sequential(nn.Linear(4, 4), nn.Dropout()).to(CUDA).train())
    with torch.no_grad():
        for _ in range(6):
            net(torch.randn(2, 4, device=CUDA))
    assert "not captured: " in captures(net)


def test_training_through_captured_programs_is_eagers() -> None:
    eager = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).to(CUDA)
    hybrid = weft.hybridize(copy.deepcopy(eager))
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (eager, hybrid)]
    for _ in range(12):
        x = torch.randn(4, 6, device=CUDA)
        for net, optimizer in zip((eager, hybrid), optimizers, strict=True):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    for one, other in zip(hybrid.parameters(), eager.parameters(), strict=True):
        close(one, other)
