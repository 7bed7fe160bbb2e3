"""Whole models that are called with many sizes make a handful of programs, and give eager's answers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import weft
from weft.compile import lifted_sizes
from weft.compile.lifted_sizes import calls_of_lost_sizes


class Block(nn.Module):
    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(x + self.norm(self.second(F.relu(self.first(x)))))


def images() -> nn.Module:
    stem = (nn.Conv2d(3, 8, 7, 2, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


class Mobile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depth = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 5, padding=2, groups=16)
        self.squeeze, self.excite = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)

    def forward(self, x):
        x = F.relu(self.depth(F.hardswish(self.stem(x))))
        weights = self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True))))
        return (x * torch.sigmoid(weights)).mean((2, 3))


class Decoder(nn.Module):
    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, size), nn.Embedding(128, size)
        self.layer = nn.TransformerEncoderLayer(size, 4, 64, batch_first=True, dropout=0.0, norm_first=True)
        self.out = nn.Linear(size, 50)

    def forward(self, words):
        length = words.shape[1]
        x = self.words(words) + self.places(torch.arange(length))[None]
        mask = torch.triu(torch.full((length, length), float("-inf")), 1)
        return self.out(self.layer(x, src_mask=mask)[:, -1]).log_softmax(-1)


class Factors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vectors, self.weights, self.deep = nn.Embedding(200, 8), nn.Embedding(200, 1), nn.Linear(40, 1)

    def forward(self, fields):
        found = self.vectors(fields)
        pairs = (found.sum(1).pow(2) - found.pow(2).sum(1)).sum(1, keepdim=True) / 2
        return torch.sigmoid(self.weights(fields).sum(1) + pairs + self.deep(found.flatten(1)))


class Segments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1)
        self.up, self.out = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(16, 3, 1)

    def forward(self, x):
        first = F.relu(self.inside(x))
        return self.out(torch.cat([first, self.up(F.relu(self.down(first)))], 1))


class Pyramid(nn.Module):
    """Each pixel beside the mean of its image."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.mean, self.out = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1), nn.Conv2d(16, 3, 1)

    def forward(self, x):
        mean = F.interpolate(self.mean(x.mean((2, 3), keepdim=True)), size=x.shape[-2:], mode="bilinear")
        return self.out(F.relu(torch.cat([self.near(x), mean], 1)))


class Neighbours(nn.Module):
    def forward(self, x, edges):
        total = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        count = torch.zeros(x.shape[0]).index_add(0, edges[1], torch.ones(edges.shape[1]))
        return F.relu(total / count.clamp(min=1)[:, None] + x)


MODELS = {
    "images": (images, lambda a, b: (torch.randn(a % 3 + 2, 3, b + 20, b + 24),)),
    "mobile": (Mobile, lambda a, b: (torch.randn(a % 3 + 2, 3, b + 20, b + 24),)),
    "decoder": (Decoder, lambda a, b: (torch.randint(0, 50, (a, b)),)),
    "factors": (Factors, lambda a, b: (torch.randint(0, 200, (a * b, 5)),)),
    "segments": (Segments, lambda a, b: (torch.randn(2, 3, 2 * b + 8, 2 * a + 8),)),
    "pyramid": (Pyramid, lambda a, b: (torch.randn(2, 3, b + 8, 2 * a + 8),)),
    "neighbours": (Neighbours, lambda a, b: (torch.randn(a * b, 8), torch.randint(0, a * b, (2, a * b * 3)))),
}


@pytest.mark.usefixtures("by_library")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_called_with_many_sizes_runs_a_handful_of_programs(name: str) -> None:
    make, arguments = MODELS[name]
    net = make().eval()
    hybrid = weft.hybridize(make().eval())
    hybrid.load_state_dict(net.state_dict())
    with torch.no_grad():
        for _ in range(25):
            given = arguments(*torch.randint(2, 9, (1,)).tolist(), *torch.randint(2, 40, (1,)).tolist())
            ours, theirs = hybrid(*given), net(*given)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
            assert ours.stride() == theirs.stride()
    assert list(hybrid.forward.varying), hybrid.forward.varying.refusals
    assert hybrid.forward.traces <= 6


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}]
)
@pytest.mark.parametrize("training", [True, False])
def test_recurrent_layers_that_train_see_batches_of_every_size(options: dict[str, Any], training: bool) -> None:
    """The gradient of a layer needs what PyTorch keeps only where autograd may record."""
    torch.manual_seed(0)
    eager = nn.LSTM(4, 8, **options).train(training)
    ours = weft.hybridize(copy.deepcopy(eager), whole=False)
    for sizes in ((9, 2), (12, 3), (7, 1), (5, 4), (11, 2)):
        x = torch.randn(*sizes, 4)
        for net in (eager, ours):
            net.zero_grad()
            output, (_, cell) = net(x)
            (output.square().sum() + cell.sum()).backward()
        for one, other in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(ours(x), eager(x), rtol=1e-5, atol=1e-5)


def test_images_of_all_sizes_and_layouts() -> None:
    eager = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    ours = weft.hybridize(copy.deepcopy(eager), whole=False)
    for turn, (count, size) in enumerate(((2, 8), (2, 8), (3, 9), (1, 7), (4, 6), (2, 10), (1, 12), (3, 5))):
        torch.manual_seed(turn)
        x = torch.randn(count, 3, size, size)
        if turn % 3 == 1:
            x = x.to(memory_format=torch.channels_last)
        if turn % 3 == 2:
            x = torch.randn(count, size, size, 3).permute(0, 3, 1, 2)
        torch.testing.assert_close(ours(x), eager(x), rtol=1e-4, atol=1e-5, check_stride=True)


@pytest.mark.parametrize("whole", [True, False])
def test_a_mistake_while_sizes_are_compiled_is_told_once_and_exact_programs_go_on(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = weft.hybridize(nn.Linear(4, 2), whole=whole)

    def fails(*arguments: object, **options: object) -> None:
        raise ValueError("made for this test")

    net(torch.ones(2, 4))
    monkeypatch.setattr("weft.compile.pipeline._compile_varying", fails)
    if whole:
        with pytest.raises(weft.errors.InternalError, match="made for this test"):
            net(torch.ones(3, 4))
        return
    with pytest.warns(UserWarning, match="made for this test"):
        assert net(torch.ones(3, 4)).shape == (3, 2)
    assert [net(torch.ones(count, 4)).shape[0] for count in (5, 3, 7)] == [5, 3, 7]


class Encoder(nn.Module):
    """Padding on the right is decided in the program, while the encoder's forward is another one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.layers(self.words(words), src_key_padding_mask=words == 0).mean(1)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_pytorchs_encoder_has_programs_for_many_lengths() -> None:
    torch.manual_seed(0)
    net, lengths = Encoder().eval(), (5, 9, 7, 12, 6, 11, 8, 10)
    hybrid = weft.hybridize(copy.deepcopy(net))
    with torch.no_grad():
        for length in lengths * 2:
            words = torch.randint(1, 50, (3, length))
            words[1, -2:] = 0
            torch.testing.assert_close(hybrid(words), net(words), rtol=1e-4, atol=1e-5)
    told = weft.explain(hybrid)
    assert "in dim 1 of words" in told
    assert "do not vary" not in told
    assert "imperatively" not in told
    assert hybrid.forward.traces < len(lengths)


def windows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Attention in windows, as many models of images have it: what is padded is computed, and left out again."""
    padded = F.pad(x, (0, 0, 0, 4, 0, 4))
    parts = padded.view(-1, 2, 6, 2, 6, 8).transpose(2, 3).reshape(-1, 36, 8) @ weight
    whole = parts.view(-1, 2, 2, 6, 6, 8).transpose(2, 3).reshape(padded.shape)
    return x + whole[:, :8, :8].contiguous()


def repeated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x[:, :1] @ weight).expand(-1, 8, -1, -1).contiguous().softmax(-1) + x


@pytest.mark.parametrize("function", [windows, repeated])
def test_copies_of_what_lies_with_gaps_are_no_calls_of_operators(
    function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call in between cuts a program in two, and what is before it was computed for the largest sizes."""
    calls: list[set[Any]] = []

    def noted(*given: Any) -> set[Any]:
        calls.append(calls_of_lost_sizes(*given))
        return calls[-1]

    monkeypatch.setattr(lifted_sizes, "calls_of_lost_sizes", noted)
    hybrid, weight = weft.hybridize(function), torch.randn(8, 8)
    for size in (3, 5, 2, 7, 4):
        x = torch.randn(size, 8, 8, 8)
        torch.testing.assert_close(hybrid(x, weight), function(x, weight), rtol=1e-5, atol=1e-5)
    assert hybrid.traces == 2
    assert calls
    assert not any(calls)


def test_images_whose_channels_lie_last_may_be_pooled_whole() -> None:
    """PyTorch lets the strides of dimensions of one element say how the images lay; nothing else changes."""
    norm, head = nn.LayerNorm(8), nn.Linear(8, 3)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pooled = F.adaptive_avg_pool2d(norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), 1)
        return pooled, head(pooled.flatten(1))

    hybrid = weft.hybridize(function)
    with torch.no_grad():
        for size in (3, 5, 2, 7, 4):
            x = torch.randn(size, 8, 6, 6)
            ours, theirs = hybrid(x), function(x)
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
            assert [one.stride() for one in ours] == [one.stride() for one in theirs]
    assert hybrid.traces == 2
    assert not hybrid.varying.refusals
