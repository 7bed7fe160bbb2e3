"""Numbers that code reads are sizes of what follows: one program runs for many of them, and gives what eager gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from weft.api.hybrids import hybrid_of
from weft.api.next_paths import NextPaths
from weft.api.pace import Pace
from weft.config import overrides

MOST = 24


@pytest.fixture(autouse=True)
def values_decide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What users have who say nothing, but the clock gives no call to Python."""
    monkeypatch.setattr(Pace, "is_for_python", lambda self: False)
    monkeypatch.setattr(NextPaths, "is_steady", lambda self, found: True)
    with overrides(whole="off"):
        yield


def prefix(x: Tensor, n: Tensor) -> Any:
    return torch.tanh(x[: int(n)]).sum(0)


def prefix_by_item(x: Tensor, n: Tensor) -> Any:
    return x[: n.item()] * 2


def prefix_itself(x: Tensor, n: Tensor) -> Any:
    return torch.softmax(x[:n] @ x.t(), -1)


def narrowed(x: Tensor, n: Tensor) -> Any:
    return x.narrow(0, 0, int(n)).exp().sum(1)


def narrowed_columns(x: Tensor, n: Tensor) -> Any:
    return torch.tanh(x.t()[:, : int(n)]).sum(1)


def counted(x: Tensor, n: Tensor) -> Any:
    return torch.arange(int(n)) * 2.0 + x.sum()


def made(x: Tensor, n: Tensor) -> Any:
    return torch.cat([x, torch.ones(int(n), x.shape[1])]).sum(0)


def longer(x: Tensor, n: Tensor) -> Any:
    size = int(n)
    return x[: size // 2 + 1].sum(0) * size


def masked(x: Tensor, n: Tensor) -> Any:
    rows = torch.arange(x.shape[0]) < int(n)
    return (x * rows[:, None]).sum(0) / int(n)


def texts(x: Tensor, n: Tensor) -> Any:
    first, second = torch.stack([n, MOST - n]).tolist()
    return x[:first].mean(0) + x[:second].amax(0)


def divided(x: Tensor, n: Tensor) -> Any:
    first, second = (x.detach()[0, :2] + 2).tolist()
    return x / first + second


def normalised(x: Tensor, n: Tensor) -> Any:
    part = x[: int(n)]
    return torch.nn.functional.layer_norm(part, (x.shape[1],)) if part.shape[0] > 1 else part


def written(x: Tensor, n: Tensor) -> Any:
    z = x * 1
    z[: int(n)] = 0
    return z + 1


ONE_PATH = [prefix, prefix_by_item, narrowed, narrowed_columns, longer, masked, divided, normalised]
PROGRAMS: list[Callable[..., Any]] = [*ONE_PATH, prefix_itself, counted, made, texts, written]


def result(function: Callable[..., Any], size: int, *, grad: bool, rows: int = MOST) -> Any:
    """What a function gives, and its gradient, or what it raises."""
    x = torch.randn(rows, 6, generator=torch.Generator().manual_seed(size)).requires_grad_(grad)
    try:
        found = function(x, torch.tensor(size))
    except (RuntimeError, ZeroDivisionError, IndexError) as error:
        return type(error)
    tangent = torch.linspace(-1, 1, found.numel()).reshape(found.shape)
    gradient = torch.autograd.grad(found, x, tangent)[0] if found.requires_grad else None
    return found.detach(), gradient, found.stride()


@pytest.mark.parametrize("grad", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("first", [7, 1, MOST])
def test_sizes_that_are_read_are_as_in_eager(function: Callable[..., Any], first: int, *, grad: bool) -> None:
    ours = weft.hybridize(function)
    for size in (first, *range(MOST + 2), -1, -3, 5, 5):
        mine, theirs = result(ours, size, grad=grad), result(function, size, grad=grad)
        if mine is not theirs:
            torch.testing.assert_close(mine, theirs, rtol=3e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("grad", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("function", ONE_PATH, ids=lambda function: function.__name__)
def test_one_program_is_for_all_sizes_that_are_read(function: Callable[..., Any], *, grad: bool) -> None:
    ours = weft.hybridize(function)
    # Of rows of its own: where a slice was seen to be whole, as beyond the last row, sizes are learnt to stay numbers.
    for size in (6, *range(2, MOST + 1)):
        result(ours, size, grad=grad, rows=MOST + 2)
    [paths] = hybrid_of(ours).programs.values()
    assert len(paths) == 1
