"""Iterators of Python and C whose steps look at values: each call goes as in eager, however often a line is passed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from weft.api.pace import Pace
from weft.config import overrides

CALLS = (0, 1, 2, 3, 0, 4, 1, 5, 6)


@pytest.fixture(autouse=True)
def values_decide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What users have who say nothing, but the clock gives no call to Python."""
    monkeypatch.setattr(Pace, "is_for_python", lambda self: False)
    with overrides(whole="off"):
        yield


def is_positive(tensor: Tensor) -> bool:
    return bool(tensor.sum() > 0)


def mapped(x: Tensor) -> Any:
    return x + any(map(is_positive, [x * 1, -x - 5, x * x + 1])) + all(map(is_positive, (x, x + 1)))


def generated(x: Tensor) -> Any:
    return x + sum(1 for row in x if row.sum() > 0) + next((row for row in x if row[0] > 0), x[0] * 0)


def filtered(x: Tensor) -> Any:
    return torch.stack([x[0], *filter(is_positive, x)]) * next(filter(is_positive, x), x[1])


def ordered(x: Tensor) -> Any:
    return torch.stack(sorted(x.unbind(), key=lambda row: row.sum())) + max(x.unbind(), key=lambda row: float(row[1]))


def largest(x: Tensor) -> Any:
    return max(x.sum(1)) + min(row.sum() for row in x) + max(x[0, 0], x[1, 1])


def beside(x: Tensor) -> Any:
    return sum((one if (one > other).any() else other for one, other in zip(x, x.flip(0), strict=True)), x[0])


def taken_while(x: Tensor) -> Any:
    first = sum(itertools.takewhile(is_positive, x), x[0])
    return first - sum(itertools.dropwhile(is_positive, x), x[0])


def grouped(x: Tensor) -> Any:
    groups = itertools.groupby(x.unbind(), key=is_positive)
    return torch.stack([sum(group, x[0] * 0) * (2 if key else 3) for key, group in groups])


def reduced(x: Tensor) -> Any:
    return functools.reduce(lambda one, other: one if one.sum() > other.sum() else other, x)


def halved(x: Tensor) -> Any:
    def halves() -> Iterator[Tensor]:
        y = x
        while y.abs().sum() > 1:
            y = y * 0.5
            yield y

    return sum(halves(), x)


def recursive(x: Tensor) -> Any:
    def step(y: Tensor, depth: int) -> Tensor:
        if depth > 5 or y.abs().max() < 0.3:
            return y
        return step(y * 0.5, depth + 1) + (step(y * 0.3, depth + 2) if is_positive(y) else 0)

    return step(x, 0)


def stacked(x: Tensor) -> Any:
    waiting, done = list(x), []
    while waiting:
        row = waiting.pop()
        (waiting if row.abs().sum() > 4 else done).append(row * 0.5)
    return torch.stack(done)


def until_told(x: Tensor) -> Any:
    held = [x]

    def is_small() -> bool:
        held[0] = held[0] * 0.5
        return bool(held[0].abs().max() < 0.5)

    return x * len(list(iter(is_small, True)))


def comprehended(x: Tensor) -> Any:
    signs = (lambda row: row if row.sum() > 0 else -row, lambda row: row * 2 if row[0] > 0 else row)
    return torch.stack([sign(row) for row in x for sign in signs])


@pytest.mark.parametrize(
    "function",
    [
        *(mapped, generated, filtered, ordered, largest, beside, taken_while, grouped, reduced, halved, recursive),
        *(stacked, until_told, comprehended),
    ],
    ids=lambda function: function.__name__,
)
def test_iterators_that_look_at_values_go_as_in_eager(function: Callable[..., Any]) -> None:
    ours = weft.hybridize(function)
    for seed in CALLS:
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(ours(x), function(x), rtol=3e-5, atol=1e-5)
