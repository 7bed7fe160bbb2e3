"""Code indexes by tensors without dimensions: one program for every place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from weft.errors import UnsupportedError

PLACES = (0, 3, -1, 2)


def assert_same(function: Callable[..., Any], *sizes: tuple[int, ...], dtype: torch.dtype = torch.int64) -> None:
    """Results, gradients and arguments are those of eager at every place, and one program runs."""
    found = []
    ours = weft.hybridize(function, whole=True)
    for run in (function, ours):
        torch.manual_seed(0)
        for place in PLACES:
            given = [torch.randn(size, requires_grad=True) for size in sizes]
            result = run(*given, torch.tensor(place, dtype=dtype))
            gradients = torch.autograd.grad(result.square().sum(), given, allow_unused=True)
            found.append((result, gradients))
    torch.testing.assert_close(found[len(PLACES) :], found[: len(PLACES)])
    assert len(ours.misses) == 0  # type: ignore[attr-defined]


READS: dict[str, Callable[..., Tensor]] = {
    "first": lambda x, i: x[i] * 2,
    "second": lambda x, i: x[:, i] * 2,
    "both": lambda x, i: x[i, i] * 2,
    "with a new dimension": lambda x, i: x[None, i] * 2,
    "behind others": lambda x, i: x[..., i] * 2,
    "with a slice": lambda x, i: x[1:, i, 2:] * 2,
    "with a number": lambda x, i: x[i, 1] * 2,
    "with a list of places": lambda x, i: x[i, torch.tensor([1, 0])] * 2,
    "with a mask": lambda x, i: x[i, torch.tensor([True] * 4 + [False])],
}


@pytest.mark.parametrize("name", READS)
def test_reads_at_a_place(name: str) -> None:
    assert_same(READS[name], (5, 5, 5))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8])
def test_a_place_of_any_integer_type(dtype: torch.dtype) -> None:
    assert_same(READS["first"], (5, 3), dtype=dtype)


def write(x: Tensor, value: Tensor, i: Tensor) -> Tensor:
    x = x.clone()
    x[i] = value
    x[i, 0] += 1
    x[:, i] = 3.0
    return x


def add(x: Tensor, value: Tensor, i: Tensor) -> Tensor:
    x = x.clone()
    x[i] += value
    x[i, 1:] *= 2
    return x * x[i].sum()


@pytest.mark.parametrize("function", [write, add])
def test_writes_at_a_place(function: Callable[..., Tensor]) -> None:
    assert_same(function, (5, 5), (5,))


def test_an_argument_is_written_at_a_place() -> None:
    def function(x: Tensor, i: Tensor) -> Tensor:
        x[i] = i
        return x.sum()

    ours, theirs = torch.zeros(5, 3), torch.zeros(5, 3)
    run = weft.hybridize(function, whole=True)
    for place in PLACES:
        torch.testing.assert_close(run(ours, torch.tensor(place)), function(theirs, torch.tensor(place)))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("place", [5, -6])
def test_a_place_out_of_range_raises_as_in_eager(place: int) -> None:
    def function(x: Tensor, i: Tensor) -> Tensor:
        return x[i] * 2

    run = weft.hybridize(function, whole=True)
    run(torch.ones(5, 3), torch.tensor(0))
    message = rf"index {place} is out of bounds for dimension 0 with size 5"
    for one in (function, run):
        with pytest.raises(IndexError, match=message):
            one(torch.ones(5, 3), torch.tensor(place))


def handed_on(x: Tensor, i: Tensor) -> Tensor:
    return x[i]


def written(x: Tensor, i: Tensor) -> Tensor:
    row = x[i]
    row += 1
    return x.sum()


def used_late(x: Tensor, i: Tensor) -> Tensor:
    row = x[i]
    x.zero_()
    return row * 2


def handed_on_late(x: Tensor, i: Tensor) -> Tensor:
    made = x * 2
    row = made[i].view(-1, 1)
    made.add_(1)
    return row


@pytest.mark.parametrize("function", [handed_on, written, used_late, handed_on_late])
def test_what_shows_a_view_is_run_by_python(function: Callable[..., Tensor]) -> None:
    with pytest.raises(UnsupportedError, match="turns a tensor into a Python number"):
        weft.hybridize(function, whole=True)(torch.ones(5, 3), torch.tensor(1))
    ours, theirs = torch.arange(15.0).view(5, 3), torch.arange(15.0).view(5, 3)
    run = weft.hybridize(function, whole=False)
    for place in PLACES:
        torch.testing.assert_close(run(ours, torch.tensor(place)), function(theirs, torch.tensor(place)))
    assert torch.equal(ours, theirs)


def test_a_copy_that_is_written_and_put_back_is_what_is_there() -> None:
    def function(x: Tensor, i: Tensor) -> Tensor:
        x[i] += 1
        return x * 2

    ours, theirs = torch.zeros(5, 3), torch.zeros(5, 3)
    run = weft.hybridize(function, whole=True)
    for place in PLACES:
        torch.testing.assert_close(run(ours, torch.tensor(place)), function(theirs, torch.tensor(place)))
    assert torch.equal(ours, theirs)
