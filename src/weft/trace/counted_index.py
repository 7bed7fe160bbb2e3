"""Index by numbers that code counts with tensors, so that one program reads and writes at every place.

`cache.k[:, pos : pos + 1] = x; pos += 1` writes elsewhere at each call. A slice of known length that begins at a
counted number becomes `index_select` or `index_copy_` at positions that the program computes of the number. That it
lies inside of the dimension is a condition of the program. What is read is a copy: where code would write into it, or
hand it on, the number stays what it is today.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.ir.types import row_major

READ = torch.Tensor.__getitem__
WRITE = torch.Tensor.__setitem__
FUNCTIONS = (READ, WRITE)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Places along one dimension: a counted start, how many, and whether the dimension goes, as an index leaves it."""

    base: torch.Tensor
    dimension: int
    start: Any
    length: int
    is_one: bool

    def is_row_major(self) -> bool:
        """Whether a copy of what is there leads to results of the same strides as what is there itself."""
        return self.base.stride() == row_major(tuple(self.base.shape))

    def positions(self) -> torch.Tensor:
        """Where they are."""
        first: torch.Tensor = torch.arange(self.length, device=self.base.device)
        return first.add(self.start)

    def is_inside(self) -> bool:
        """Whether all of them are there; the answer holds for the program."""
        return bool(self.start >= 0) and bool(self.start + self.length <= self.base.shape[self.dimension])

    def read(self) -> torch.Tensor:
        """A copy of what is there."""
        found = self.base.index_select(self.dimension, self.positions())
        return found.squeeze(self.dimension) if self.is_one else found

    def write(self, value: Any) -> None:
        """Put something there, as an assignment broadcasts it."""
        sizes = [*self.base.shape]
        sizes[self.dimension] = self.length
        shown = [size for index, size in enumerate(sizes) if not (self.is_one and index == self.dimension)]
        if not isinstance(value, torch.Tensor):
            value = torch.full((), value, dtype=self.base.dtype, device=self.base.device)
        while value.dim() > len(shown) and value.shape[0] == 1:
            value = value[0]
        value = value.to(self.base.dtype).expand(shown)
        self.base.index_copy_(
            self.dimension, self.positions(), value.unsqueeze(self.dimension) if self.is_one else value
        )


class CountedIndex:
    """Finds what is indexed by counted numbers in one trace.

    `known` are the calls that an earlier trace has found so, each with the number of the item: there, plain numbers are
    treated as counted ones, so that both traces can be compared.
    """

    def __init__(self, is_counted: Callable[[Any], bool], known: frozenset[tuple[int, int]]) -> None:
        self._is_counted = is_counted
        self._known = known
        self._calls = 0
        self.found: set[tuple[int, int]] = set()
        self.copies: list[torch.Tensor] = []

    def replaced(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any] | None:
        """What to call in the place of a read or a write by counted numbers."""
        if function not in FUNCTIONS:
            return None
        self._calls += 1
        items = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
        counted = [number for number, item in enumerate(items) if self._is_at(number, item)]
        if len(counted) != 1 or not all(map(_is_plain, (*items[: counted[0]], *items[counted[0] + 1 :]))):
            return None
        stretch = _stretch(arguments[0], items, counted[0])
        if stretch is None or (function == READ and not stretch.is_row_major()) or not stretch.is_inside():
            return None
        self.found.add((self._calls, counted[0]))
        return self._read(stretch) if function == READ else lambda *given: stretch.write(given[2])

    def _read(self, stretch: Stretch) -> Callable[..., Any]:
        def read(*_: Any) -> torch.Tensor:
            copy = stretch.read()
            self.copies.append(copy)
            return copy

        return read

    def _is_at(self, number: int, item: Any) -> bool:
        begin = item.start if isinstance(item, slice) else item
        return (self._calls, number) in self._known or self._is_counted(begin)


def _is_plain(item: Any) -> bool:
    if isinstance(item, slice):
        return all(type(part) in (int, type(None)) for part in (item.start, item.stop, item.step))
    return type(item) in (int, type(None), type(...))


def _stretch(tensor: torch.Tensor, items: Sequence[Any], number: int) -> Stretch | None:
    """The places that an index names: all other items are applied as they are."""
    item = items[number]
    is_slice = isinstance(item, slice)
    start = item.start if is_slice else item
    if is_slice and (item.step not in (None, 1) or item.stop is None):
        return None
    length = _known(item.stop - start) if is_slice else 1
    if length is None or length < 1:
        return None
    others = (*items[:number], slice(None), *items[number + 1 :])
    base: torch.Tensor = tensor if all(one == slice(None) for one in others) else READ(tensor, others)
    taken = sum(one is not None and one is not ... for one in others)
    before = sum(0 if type(one) is int else tensor.dim() - taken if one is ... else 1 for one in others[:number])
    return Stretch(base, before, start, length, not is_slice)


def _known(length: Any) -> int | None:
    """A length that is the same whatever the counted numbers are."""
    if isinstance(length, torch.SymInt):
        return int(length.node.expr) if length.node.expr.is_number else None
    return int(length)
