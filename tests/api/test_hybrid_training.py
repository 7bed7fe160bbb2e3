"""Training a hybridized module is training it imperatively, bit by bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.api.agreement import gradients
from tests.conformance.compare import same_bits
from torch import nn

import weft
from weft.config import overrides
from weft.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("by_library")

STEPS = 10


def small_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4 * 36, 3)
    )


def sgd(parameters: Any) -> Any:
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3)


def adam(parameters: Any) -> Any:
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


def adamw_foreach(parameters: Any) -> Any:
    optimizer = torch.optim.AdamW(parameters, lr=0.01, foreach=True)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS + 1)


def trained(net: nn.Module, make: Any) -> list[torch.Tensor]:
    torch.manual_seed(3)
    optimizer, scheduler = make(net.parameters())
    losses = []
    for _ in range(STEPS):
        x, y = torch.randn(5, 1, 8, 8), torch.randint(0, 3, (5,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("make", [sgd, adam, adamw_foreach])
def test_ten_steps_of_training_are_bitwise_those_of_eager(make: Any) -> None:
    eager = small_net()
    hybrid = weft.hybridize(copy.deepcopy(eager))
    for ours, theirs in zip(trained(hybrid, make), trained(eager, make), strict=True):
        assert same_bits(theirs, ours)
    for (name, ours), (_, theirs) in zip(hybrid.state_dict().items(), eager.state_dict().items(), strict=True):
        assert same_bits(theirs, ours), name
    assert hybrid.forward.traces == 1


@pytest.mark.parametrize("make", [sgd, adam])
def test_ten_steps_in_machine_code_stay_close_to_eager(make: Any) -> None:
    eager = small_net()
    with overrides(codegen="native"):
        ours = trained(weft.hybridize(copy.deepcopy(eager)), make)
    for found, expected in zip(ours, trained(eager, make), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_a_frozen_parameter_gets_no_gradient_and_others_keep_theirs() -> None:
    eager = small_net()
    hybrid = weft.hybridize(copy.deepcopy(eager))
    x = torch.randn(5, 1, 8, 8)
    for frozen in (False, True, False):
        for net in (eager, hybrid):
            net[0].weight.requires_grad_(not frozen)
            net.zero_grad()
            torch.manual_seed(2)
            net(x).sum().backward()
        for ours, theirs in zip(hybrid.parameters(), eager.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None)
            assert theirs.grad is None or same_bits(theirs.grad, ours.grad)


def test_gradients_are_added_to_those_there_are() -> None:
    net = weft.hybridize(nn.Linear(3, 2))
    x = torch.randn(4, 3)
    net(x).sum().backward()
    first = net.weight.grad.clone()
    net(x).sum().backward()
    assert torch.equal(net.weight.grad, first + first)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.body(x).tanh()
        return self.left(hidden), self.right(hidden), hidden


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (0, 2), (0, 1, 2)])
def test_results_that_the_loss_does_not_use_give_no_gradient_as_in_eager(used: tuple[int, ...]) -> None:
    net, x = TwoHeads(), torch.randn(5, 3, requires_grad=True)
    tensors = [x, *net.parameters()]

    def found() -> list[torch.Tensor | None]:
        results = net(x)
        return gradients(sum((results[index] ** 2).sum() for index in used), tensors)

    expected = found()
    weft.hybridize(net)
    for _ in range(2):
        for ours, theirs in zip(found(), expected, strict=True):
            assert (ours is None) == (theirs is None)
            assert theirs is None or torch.allclose(ours, theirs)
    assert net.forward.traces == 1


@pytest.mark.parametrize("layout", ["columns", "every second", "expanded", "transposed", "whole"])
def test_an_argument_that_autograd_computed_keeps_its_strides(layout: str) -> None:
    base = torch.randn(6, 8, requires_grad=True)
    made = base.tanh()
    x = {
        "columns": made[:, 4:],
        "every second": made[::2, 1::2],
        "expanded": made[:, :1].expand(6, 5),
        "transposed": made.T,
        "whole": made,
    }[layout]

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() * torch.arange(x.shape[1])).sum()

    expected = function(x)
    found = weft.hybridize(function)(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, base, retain_graph=True), torch.autograd.grad(expected, base))


def test_gradients_flow_through_several_calls_and_into_arguments() -> None:
    net = nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    expected = gradients(net(net(x).relu()).sum(), [x, *net.parameters()])
    weft.hybridize(net)
    for ours, theirs in zip(gradients(net(net(x).relu()).sum(), [x, *net.parameters()]), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_a_backward_may_run_twice_only_if_the_graph_is_kept() -> None:
    net = weft.hybridize(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    loss = net(torch.randn(2, 3)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_a_gradient_penalty_inside_a_program_is_differentiated_as_in_eager() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def penalty(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return (slope**2).sum()

    x = torch.randn(4, 3)
    expected = gradients(penalty(x), list(net.parameters()))
    found = gradients(weft.hybridize(penalty)(x), list(net.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        assert theirs is None or torch.equal(ours, theirs)


def test_a_written_argument_carries_its_gradient() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x.mul_(weight)
        return x.sum()

    weight = torch.randn(3, requires_grad=True)
    values = torch.randn(3)

    def found(call: Any) -> Any:
        x = values.clone()
        loss = call(x, weight) + (x**2).sum()
        return gradients(loss, [weight])[0], x.requires_grad

    ours, theirs = found(weft.hybridize(function)), found(function)
    assert torch.equal(ours[0], theirs[0])
    assert ours[1] == theirs[1]


def test_a_view_of_an_argument_carries_its_gradient() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    hybrid = weft.hybridize(lambda x: (x.t()[1:], x[0] * 2))
    view, row = hybrid(x)
    (found,) = gradients(view.sum() * 3 + row.sum(), [x])
    assert torch.equal(found, gradients(x.t()[1:].sum() * 3 + (x[0] * 2).sum(), [x])[0])


def test_a_result_may_be_written_into_before_its_backward() -> None:
    def run(function: Any) -> Any:
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        first, second = function(x)
        second.mul_(2)
        first[0] = 1.0
        return gradients(first.sum() + second.sum(), [x])[0]

    def function(x: torch.Tensor) -> Any:
        y = x * 3
        return y + 1, y.t() + x.t()

    assert torch.equal(run(weft.hybridize(function)), run(function))


def test_checkpointing_inside_a_program_gives_the_same_gradients() -> None:
    layer = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh())

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)

    x = torch.randn(4, 3, requires_grad=True)
    torch.manual_seed(1)
    expected = gradients(function(x).sum(), [x, *layer.parameters()])
    torch.manual_seed(1)
    found = gradients(weft.hybridize(function)(x).sum(), [x, *layer.parameters()])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_an_own_autograd_function_runs_its_own_backward() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            context.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(context: Any, tangent: torch.Tensor) -> torch.Tensor:
            (x,) = context.saved_tensors
            return tangent * 100 + x

    x = torch.randn(3, requires_grad=True)
    hybrid = weft.hybridize(lambda x: Twice.apply(x).sum())
    assert torch.equal(gradients(hybrid(x), [x])[0], 100 + x.detach())


def test_a_tensor_that_only_a_backward_uses_is_refused_when_it_runs() -> None:
    table = torch.randn(3)

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(context: Any, tangent: torch.Tensor) -> torch.Tensor:
            return tangent * table

    x = torch.randn(3, requires_grad=True)
    result = weft.hybridize(Late.apply)(x)
    assert torch.equal(result, x * 2)
    with pytest.raises(UnsupportedError, match="the backward uses a tensor that the forward has not used"):
        result.sum().backward()


def test_mixed_precision_training_gives_the_gradients_of_eager() -> None:
    net, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(4, 6)

    def found() -> list[Any]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = net(x).float().pow(2).mean()
        return gradients(loss, list(net.parameters()))

    expected = found()
    weft.hybridize(net)
    for ours, theirs in zip(found(), expected, strict=True):
        assert same_bits(theirs, ours)


class Reversed(torch.autograd.Function):
    """The gradient reversal of domain adaptation."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, tangent: torch.Tensor) -> torch.Tensor:
        return -tangent


class Returned(Reversed):
    """The same without a view: autograd makes one."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x


def hooked(view: torch.Tensor) -> torch.Tensor:
    view.register_hook(lambda tangent: tangent * 5)
    return view


@pytest.mark.parametrize("kind", [Reversed, Returned])
@pytest.mark.parametrize(
    "form",
    [
        lambda kind, x: kind.apply(x),
        lambda kind, x: kind.apply(x * 2),
        lambda kind, x: kind.apply(x * 2).view(1, 3).t(),
        lambda kind, x: (y := x * 2, kind.apply(y), y.view(3, 1)),
        lambda _, x: hooked((x * 2).view(1, 3)).view(3),
        lambda _, x: hooked(x.view(1, 3)).view(3),
    ],
    ids=["argument", "result", "views of it", "beside it", "hook on a view", "hook on a view of an argument"],
)
def test_a_result_that_looks_into_other_memory_keeps_its_own_backward(form: Any, kind: Any) -> None:
    def gradient(function: Any) -> torch.Tensor:
        x = torch.arange(3.0).requires_grad_()
        results = function(x)
        total = sum(each.sum() for each in results) if isinstance(results, tuple) else results.sum()
        return gradients(total, [x])[0]

    assert torch.equal(gradient(weft.hybridize(lambda x: form(kind, x))), gradient(lambda x: form(kind, x)))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_backward_hooks_of_modules_inside_change_gradients(place: int) -> None:
    def found(prepare: Any) -> list[Any]:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        net[place].register_full_backward_pre_hook(lambda _, tangents: (tangents[0] * 0.5,))
        net[place].register_full_backward_hook(lambda _, inputs, __: (inputs[0] * 3,))
        x = torch.randn(5, 4, requires_grad=True)
        return gradients(prepare(net)(x).square().sum(), [x, *net.parameters()])

    torch.testing.assert_close(found(weft.hybridize), found(lambda net: net))


def test_a_backward_that_needs_nothing_of_its_forward_may_run_again() -> None:
    function = weft.hybridize(lambda x, y: x + 2 * y)
    x = torch.ones(2, requires_grad=True)
    for number in range(1, 4):
        found = function(x, torch.ones(2))
        found.sum().backward()
        found.sum().backward()
        assert torch.equal(x.grad, torch.full((2,), 2.0 * number))
