"""Objects that hold tensors where no attribute shows it, or still have to run: as results, effects and arguments."""

from __future__ import annotations

import asyncio
import bz2
import csv
import functools
import hashlib
import io
import operator
import types
import zlib
from collections.abc import AsyncIterator, Callable
from queue import SimpleQueue
from typing import Any

import pytest
import torch

import weft

X = torch.arange(3.0)


class Scaled:
    def __init__(self, rate: torch.Tensor) -> None:
        self.rate = rate

    def of(self, x: torch.Tensor, more: float = 0.0) -> torch.Tensor:
        return self.rate * x + more


async def product(rate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return rate * x


async def rows(rate: torch.Tensor, x: torch.Tensor) -> AsyncIterator[torch.Tensor]:
    yield rate * x


async def first_of(found: AsyncIterator[torch.Tensor]) -> torch.Tensor:
    async for row in found:
        return row
    raise AssertionError


HOLDERS: dict[str, Callable[[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "partial": lambda rate: functools.partial(torch.mul, rate),
    "method": lambda rate: Scaled(rate).of,
    "partial of a method": lambda rate: functools.partial(Scaled(rate).of, more=0.0),
    "method of a tensor": lambda rate: rate.mul,
    "operator": lambda rate: operator.methodcaller("mul", rate),
    "closure": lambda rate: lambda x: rate * x,
}
holders = pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)


@holders
def test_what_holds_a_tensor_is_a_result_of_its_own_call(hold: Any) -> None:
    found = weft.hybridize(lambda x: {"held": [hold(x + 1)]}, whole=False)
    for number in (1.0, 2.0, 3.0):
        (held,) = found(torch.full((3,), number))["held"]
        assert torch.equal(held(X), X * (number + 1))


@holders
def test_what_holds_a_tensor_is_left_in_objects(hold: Any) -> None:
    place = types.SimpleNamespace(last=None, every=[])

    def leave(x: torch.Tensor) -> torch.Tensor:
        place.last = hold(x + 1)
        place.every.append(hold(x + 2))
        return x

    found = weft.hybridize(leave, whole=False)
    for number in (1.0, 2.0, 3.0):
        found(torch.full((3,), number))
        assert torch.equal(place.last(X), X * (number + 1))
        assert torch.equal(place.every[-1](X), X * (number + 2))
    assert len(place.every) == 3


@pytest.mark.parametrize(
    ("hold", "held"),
    [
        (lambda x: {"a": x}.values(), lambda found: next(iter(found))),
        (lambda x: {"a": x}.items(), lambda found: next(iter(found))[1]),
        (lambda x: types.MappingProxyType({"a": x}), lambda found: found["a"]),
        (slice, lambda found: found.stop),
        (ValueError, lambda found: found.args[0]),
    ],
    ids=["values", "items", "proxy", "slice", "error"],
)
def test_views_and_their_like_hold_the_tensors_of_their_call(hold: Any, held: Any) -> None:
    found = weft.hybridize(lambda x: hold(x + 1), whole=False)
    for number in (1.0, 2.0):
        assert torch.equal(held(found(torch.full((2,), number))), torch.full((2,), number + 1))


def test_coroutines_are_awaited_as_without_weft() -> None:
    found = weft.hybridize(product, whole=False)
    for number in (1.0, 2.0, 3.0):
        assert torch.equal(asyncio.run(found(torch.full((3,), number), X)), X * number)
    assert "coroutine" in str(weft.explain(found))


def test_asynchronous_generators_run_as_without_weft() -> None:
    found = weft.hybridize(rows, whole=False)
    for number in (1.0, 2.0, 3.0):
        assert torch.equal(asyncio.run(first_of(found(torch.full((3,), number), X))), X * number)


@pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
@pytest.mark.parametrize(
    ("make", "change", "content"),
    [
        (SimpleQueue, lambda queue: queue.put(1), lambda queue: queue.qsize()),
        (hashlib.md5, lambda digest: digest.update(b"a"), lambda digest: digest.hexdigest()),
        (zlib.compressobj, lambda stream: stream.compress(b"abc"), lambda stream: stream.flush()),
        (bz2.BZ2Compressor, lambda stream: stream.compress(b"abc"), lambda stream: stream.flush()),
    ],
    ids=["queue", "digest", "zlib", "bz2"],
)
def test_streams_are_given_what_each_call_gives_them(make: Any, change: Any, content: Any, captured: bool) -> None:
    here, expected = make(), make()

    def give(x: torch.Tensor, stream: Any) -> torch.Tensor:
        change(stream)
        return x + 1

    found = weft.hybridize((lambda x: give(x, here)) if captured else give, whole=False)
    for _ in range(4):
        change(expected)
        assert torch.equal(found(X) if captured else found(X, here), X + 1)
    assert content(here) == content(expected)


def test_rows_of_a_table_are_written_at_each_call() -> None:
    file = io.StringIO()
    found = weft.hybridize(lambda x, rows: (rows.writerow([1]), x + 1)[1], whole=False)
    for _ in range(3):
        found(X, csv.writer(file))
    assert file.getvalue().split() == ["1"] * 3
