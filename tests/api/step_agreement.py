"""A module, a loss and an optimizer -> whether weft.step trains as PyTorch's usual loop does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

import weft

Make = Callable[[Any], torch.optim.Optimizer]
Batch = tuple[torch.Tensor, ...]


def eager_step(net: nn.Module, loss: Callable[..., Any], optimizer: torch.optim.Optimizer, batch: Batch) -> Any:
    """One step of PyTorch's usual loop."""
    *inputs, target = batch
    optimizer.zero_grad()
    found = loss(net(*inputs), target)
    found.backward()
    optimizer.step()
    return found.detach()


def trained(
    net: nn.Module, loss: Callable[..., Any], make: Make, batches: Sequence[Batch], steps: int
) -> tuple[nn.Module, torch.optim.Optimizer, list[float]]:
    """A copy of the module after some steps of the usual loop, its optimizer, and the losses."""
    eager = copy.deepcopy(net)
    optimizer = make(eager.parameters())
    torch.manual_seed(5)
    losses = [float(eager_step(eager, loss, optimizer, batches[turn % len(batches)])) for turn in range(steps)]
    return eager, optimizer, losses


def stepped(
    net: nn.Module, loss: Callable[..., Any], make: Make, batches: Sequence[Batch], steps: int
) -> tuple[nn.Module, torch.optim.Optimizer, list[float]]:
    """The same by weft.step."""
    ours = copy.deepcopy(net)
    optimizer = make(ours.parameters())
    step = weft.step(ours, loss, optimizer)
    torch.manual_seed(5)
    losses = [float(step(*batches[turn % len(batches)])) for turn in range(steps)]
    assert step.traces == 1, step.misses
    return ours, optimizer, losses


def assert_trains_alike(
    net: nn.Module, loss: Callable[..., Any], make: Make, batches: Sequence[Batch], steps: int = 10
) -> None:
    """In float64: losses, parameters, buffers, gradients and the optimizer's state are equal to rounding."""
    net = copy.deepcopy(net).double()
    wide = [as_double(batch) for batch in batches]
    eager, eager_optimizer, expected = trained(net, loss, make, wide, steps)
    ours, our_optimizer, losses = stepped(net, loss, make, wide, steps)
    close(torch.tensor(losses), torch.tensor(expected))
    for name, tensor in eager.state_dict().items():
        close(ours.state_dict()[name], tensor)
    for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        if theirs.grad is not None:
            assert mine.grad is not None
            assert mine.grad.stride() == theirs.grad.stride()
            close(mine.grad, theirs.grad)
    assert_same_state(our_optimizer, eager_optimizer)


def assert_same_state(ours: torch.optim.Optimizer, eager: torch.optim.Optimizer) -> None:
    """Both state_dicts have the same entries, in the same order, of the same form, with elements equal to rounding."""
    mine, theirs = ours.state_dict(), eager.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    assert [*mine["state"]] == [*theirs["state"]]
    for index, entry in theirs["state"].items():
        assert [*mine["state"][index]] == [*entry]
        for name, tensor in entry.items():
            close(mine["state"][index][name], tensor)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to rounding in float64, and of the same form."""
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=2e-9, check_stride=True)


def as_double(tensors: Iterable[torch.Tensor]) -> Batch:
    """Floating tensors in float64, others as they are."""
    return tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors)


def farthest(net: nn.Module, exact: nn.Module) -> float:
    """How far parameters and buffers are from those of another module, at most."""
    pairs = zip(net.state_dict().values(), exact.state_dict().values(), strict=True)
    return max(float((mine.double() - theirs.double()).abs().max()) for mine, theirs in pairs)
