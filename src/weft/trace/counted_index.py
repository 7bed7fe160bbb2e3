"""Index by numbers that code counts, or reads from tensors, so that one program reads and writes at every place.

`cache.k[:, pos : pos + 1] = x; pos += 1` writes elsewhere at each call. A slice that begins at such a number becomes
`index_select` or `index_copy_` at positions that the program computes of the number; so do the parts of a split whose
lengths are read. That it lies inside of the dimension is a condition of the program. What is read is a copy: where code
shows that it is no view, or hands it on, the number stays what it is today.

Where the length varies, too (`x[n:]`), what is written is chosen element by element: as many are written as say others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate
from typing import Any, Protocol

import torch

from weft.ir.types import row_major
from weft.trace.copied_places import Copied, copied_of
from weft.trace.counted_data import MAKERS, made_of_numbers
from weft.trace.interception.capture import has_symbols, hint_of, pad_sequence, storage_key
from weft.trace.interception.refusals import refuse
from weft.trace.recorder import Recorder
from weft.trace.results.symbol_rules import in_rows
from weft.trace.tensor_index import TensorIndex

READ = torch.Tensor.__getitem__
WRITE = torch.Tensor.__setitem__
NARROW: tuple[Callable[..., Any], ...] = (torch.Tensor.narrow, torch.narrow)
SPLIT: tuple[Callable[..., Any], ...] = (
    torch.Tensor.split,
    torch.split,
    torch.Tensor.split_with_sizes,
    torch.split_with_sizes,
)
FUNCTIONS = (READ, WRITE, *NARROW, *SPLIT, pad_sequence, *MAKERS)
Spot = tuple[int, int, bool]  # which call, which item of its index, and whether the length varies
WHOLE_CALL = -1


class KnowsNumbers(Protocol):
    """What knows the numbers that a program takes."""

    def is_counted(self, thing: Any) -> bool:
        """Whether a thing is made of numbers that vary."""

    def part(self, size: Any, whole: Any) -> Any:
        """The length of a part of a dimension, as a size that may vary; None where it may not."""

    def hide(self, tensor: torch.Tensor) -> None:
        """Know nothing of the elements of a tensor."""

    def lies(self, condition: Any) -> bool:
        """Whether a part lies within what it is a part of; the answer holds for the program."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Places along one dimension: a counted start, how many, and whether the dimension goes, as an index leaves it."""

    base: torch.Tensor
    dimension: int
    start: Any
    length: Any
    is_one: bool = False
    varies: bool = False  # in length

    def order(self) -> list[int] | None:
        """The dimensions, the outermost in memory first; None where they have gaps.

        A copy in this order leads to results of the same strides as what is there itself.
        """
        if has_symbols(self.base):
            return [*range(self.base.dim())] if in_rows(self.base) else None
        strides = self.base.stride()
        order = sorted(range(self.base.dim()), key=lambda place: -strides[place])
        orders = ([*range(self.base.dim())], order)
        return next((one for one in orders if self._lies_in(one)), None)

    def _lies_in(self, order: list[int]) -> bool:
        turned = self.base.permute(order) if order != sorted(order) else self.base
        return turned.stride() == row_major(tuple(turned.shape))

    def positions(self) -> torch.Tensor:
        """Where they are."""
        first: torch.Tensor = torch.arange(self.length, device=self.base.device)
        return first.add(self.start)

    def is_inside(self, lies: Callable[[Any], bool]) -> bool:
        """Whether all of them are there; the answer holds for the program."""
        ends = lies(self.start + self.length <= self.base.shape[self.dimension])
        return ends and lies(self.start >= 0) and lies(self.length >= 0)

    def read(self) -> torch.Tensor:
        """A copy of what is there."""
        order = self.order() or []
        if order == sorted(order):
            found = self.base.index_select(self.dimension, self.positions())
        else:
            found = self.base.permute(order).index_select(order.index(self.dimension), self.positions())
            found = found.permute([order.index(place) for place in range(len(order))])
        return found.squeeze(self.dimension) if self.is_one else found

    def write(self, value: Any) -> None:
        """Put something there, as an assignment broadcasts it."""
        if not isinstance(value, torch.Tensor):
            value = torch.full((), value, dtype=self.base.dtype, device=self.base.device)
        value = value.to(self.base.dtype)
        if self.varies:
            self._choose(value)
            return
        sizes = [*self.base.shape]
        sizes[self.dimension] = self.length
        shown = [size for index, size in enumerate(sizes) if not (self.is_one and index == self.dimension)]
        while value.dim() > len(shown) and value.shape[0] == 1:
            value = value[0]
        value = value.expand(shown)
        self.base.index_copy_(
            self.dimension, self.positions(), value.unsqueeze(self.dimension) if self.is_one else value
        )

    def takes(self, value: Any) -> bool:
        """Whether a value can be put there, where the length varies: it has as many elements along it, or one."""
        if not isinstance(value, torch.Tensor):
            return True
        along = self._along(value)
        return value.dim() <= self.base.dim() and (
            along < 0 or _is_one(value.shape[along]) or bool(value.shape[along] == self.length)
        )

    def _along(self, value: torch.Tensor) -> int:
        """Which dimension of a value is put along the stretch; a negative number where none is."""
        return self.dimension - (self.base.dim() - value.dim())

    def _choose(self, value: torch.Tensor) -> None:
        """Let every element of the dimension become that of the value, or stay."""
        at = torch.arange(self.base.shape[self.dimension], device=self.base.device)
        inside = (at >= self.start) & (at < self.start + self.length)
        behind = self.base.dim() - 1 - self.dimension
        along = self._along(value)
        if along >= 0 and not _is_one(value.shape[along]):
            value = value.index_select(along, (at - self.start).clamp(min=0).clamp(max=self.length - 1))
        self.base.copy_(torch.where(inside.reshape(-1, *[1] * behind), value, self.base))


class CountedIndex:
    """Finds what is indexed by counted numbers in one trace.

    `known` are the items that an earlier trace has found so: there, plain numbers are treated as counted ones, so that
    both traces can be compared.
    """

    def __init__(
        self, recorder: Recorder, numbers: KnowsNumbers, by_tensors: TensorIndex, known: frozenset[Spot]
    ) -> None:
        self._recorder = recorder
        self._by_tensors = by_tensors
        self._numbers = numbers
        self._known = known
        self._calls = 0
        self.found: set[Spot] = set()
        self._copies: list[Copied] = []
        self._ways = ((SPLIT, self._split), (NARROW, self._narrowed), ((pad_sequence,), self._padded))

    def replaced(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        """What to call in the place of a read or a write by counted numbers."""
        if function not in FUNCTIONS:
            return None
        self._calls += 1
        whole = next((way for functions, way in self._ways if function in functions), None)
        if whole is not None:
            return whole(*arguments, **keywords)
        if function in MAKERS:
            return self._made(function, arguments, keywords)
        items = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
        counted = [number for number, item in enumerate(items) if self._is_at(number, item, ends=function == WRITE)]
        if len(counted) > 1:
            return self._several(function, items, counted)
        if len(counted) != 1 or not all(map(_is_plain, (*items[: counted[0]], *items[counted[0] + 1 :]))):
            return None
        is_choice = function == WRITE and not has_symbols(arguments[2])
        stretch = self._stretch(arguments[0], items, counted[0], is_choice=is_choice)
        if stretch is None or not self._may(stretch, counted[0], None if function == READ else arguments[2:]):
            return None
        return self._read(stretch) if function == READ else lambda *given: stretch.write(given[2])

    def check(self, leaves: Sequence[Any]) -> None:
        """Refuse to hand on, as these, what was copied, and what else shows that it is no view."""
        handed_on = {storage_key(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
        for copied in self._copies:
            if storage_key(copied.copy) in handed_on or copied.shows(self._recorder, handed_on):
                refuse("counter", copied.place, detail="a slice")

    def _may(self, stretch: Stretch, item: int, written: Sequence[Any] | None) -> bool:
        """Whether what is at a stretch can be read, or written."""
        if written is None and stretch.order() is None:
            return False
        if not stretch.is_inside(self._numbers.lies):
            return False
        if stretch.varies and written is not None and not all(map(stretch.takes, written)):
            return False
        self.found.add((self._calls, item, stretch.varies))
        return True

    def _made(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        """What to call where a tensor is made of numbers."""
        made = made_of_numbers(function, arguments, keywords, partial(self._is_varying, WHOLE_CALL), self._held)
        if made is not None:
            self.found.add((self._calls, WHOLE_CALL, False))
        return made

    def _several(
        self, function: Callable[..., Any], items: Sequence[Any], counted: Sequence[int]
    ) -> Callable[..., Any] | None:
        """What to call where several items are numbers: the index that these are as tensors."""
        others = (item for place, item in enumerate(items) if place not in counted)
        if not all(type(items[place]) in (int, torch.SymInt) for place in counted) or not all(map(_is_plain, others)):
            return None
        self.found |= {(self._calls, place, False) for place in counted}
        found = [*items]
        for place in counted:
            found[place] = self._held(items[place], torch.int64)
        call = self._by_tensors.replaced(function, (None, tuple(found)))
        return None if call is None else lambda tensor, _, *value: call(tensor, tuple(found), *value)

    def _held(self, number: Any, dtype: torch.dtype) -> torch.Tensor:
        """A number in a tensor of which nothing is known: it is another one at other runs."""
        found = torch.full((), number, dtype=dtype)
        self._numbers.hide(found)
        return found

    def _read(self, stretch: Stretch) -> Callable[..., Any]:
        def read(tensor: torch.Tensor, *given: Any, **_: Any) -> torch.Tensor:
            copy = stretch.read()
            self._copies.append(copied_of(copy, tensor, given, self._recorder))
            return copy

        return read

    def _narrowed(self, tensor: torch.Tensor, dim: int, start: Any, length: Any) -> Callable[..., Any] | None:
        if isinstance(start, torch.Tensor) or not self._is_varying(0, start) or not tensor.dim():
            return None
        stretch = self._of_length(tensor, dim % tensor.dim(), start, length, 0)
        return self._read(stretch) if stretch is not None and self._may(stretch, 0, None) else None

    def _split(self, tensor: torch.Tensor, sizes: Any = None, dim: int = 0, **others: Any) -> Callable[..., Any] | None:
        """The parts of a tensor, each read for itself."""
        sizes = others.pop("split_sizes", others.pop("split_size_or_sections", others.pop("split_size", sizes)))
        if not others and tensor.dim() and type(sizes) in (int, torch.SymInt) and self._is_varying(WHOLE_CALL, sizes):
            sizes = self._equal_parts(tensor.shape[dim], sizes)
        if others or not isinstance(sizes, (list, tuple)) or not tensor.dim():
            return None
        if not any(self._is_varying(WHOLE_CALL, size) for size in sizes):
            return None
        dimension = dim % tensor.dim()
        starts = [0, *accumulate(sizes)]
        if not self._numbers.lies(starts.pop() == tensor.shape[dimension]):
            return None
        parts = [
            self._of_length(tensor, dimension, start, size, WHOLE_CALL)
            for start, size in zip(starts, sizes, strict=True)
        ]
        if not all(part is not None and self._may(part, WHOLE_CALL, None) for part in parts):
            return None
        reads = [self._read(part) for part in parts if part is not None]
        return lambda *given, **named: tuple(read(*given, **named) for read in reads)

    def _equal_parts(self, whole: Any, size: Any) -> list[Any] | None:
        """The lengths of parts of one length, but for the last one; how many there are holds for the program."""
        if hint_of(size) < 1 or hint_of(whole) < 1:
            return None
        count = -(-hint_of(whole) // hint_of(size))
        begin = size * (count - 1)
        if not (self._numbers.lies(begin < whole) and self._numbers.lies(whole <= begin + size)):
            return None
        return [*[size] * (count - 1), whole - begin]

    def _padded(
        self, sequences: Any, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
    ) -> Callable[..., Any] | None:
        """Sequences side by side, each of which is read as far as it goes."""
        if padding_side != "right" or not isinstance(sequences, (list, tuple)) or len({*map(_row, sequences)}) != 1:
            return None
        lengths = [one.shape[0] for one in sequences]
        if not any(self._is_varying(WHOLE_CALL, length) for length in lengths):
            return None
        longest = self._numbers.part(reduce(torch.sym_max, lengths), None)
        if longest is None:
            return None
        self.found.add((self._calls, WHOLE_CALL, True))

        def padded(*_: Any, **__: Any) -> torch.Tensor:
            at = torch.arange(longest, device=sequences[0].device)
            rows = [_lengthened(one, at, padding_value) for one in sequences]
            return torch.stack(rows, 0 if batch_first else 1)

        return padded

    def _is_at(self, number: int, item: Any, *, ends: bool) -> bool:
        """Whether an item begins at a counted number, or `ends` at one."""
        if not isinstance(item, slice):
            return self._is_varying(number, item)
        return self._is_varying(number, item.start) or (ends and self._numbers.is_counted(item.stop))

    def _is_varying(self, number: int, begin: Any) -> bool:
        known = any((self._calls, number, varies) in self._known for varies in (False, True))
        return known or self._numbers.is_counted(begin)

    def _stretch(self, tensor: torch.Tensor, items: Sequence[Any], number: int, *, is_choice: bool) -> Stretch | None:
        """The places that an index names: all other items are applied as they are."""
        item = items[number]
        is_slice = isinstance(item, slice)
        if is_slice and item.step not in (None, 1):
            return None
        others = (*items[:number], slice(None), *items[number + 1 :])
        base: torch.Tensor = tensor if all(one == slice(None) for one in others) else READ(tensor, others)
        taken = sum(one is not None and one is not ... for one in others)
        before = sum(0 if type(one) is int else tensor.dim() - taken if one is ... else 1 for one in others[:number])
        if not is_slice:
            return Stretch(base, before, item, 1, is_one=True)
        whole, start = base.shape[before], 0 if item.start is None else item.start
        stop = whole if item.stop is None else item.stop
        if type(stop) is int and type(whole) is int:
            stop = min(stop + whole if stop < 0 else stop, whole)
        length = stop - start
        if is_choice and _known(length) is None and hint_of(length) >= 0:
            return Stretch(base, before, start, length, varies=True)  # chosen by where it is, it need not be a size
        return self._of_length(base, before, start, length, number)

    def _of_length(self, base: torch.Tensor, dimension: int, start: Any, length: Any, item: int) -> Stretch | None:
        if hint_of(length) < 0:
            return None
        known = _known(length)
        if known is not None:
            varies = (self._calls, item, True) in self._known
            return Stretch(base, dimension, start, known, varies=varies)
        part = self._numbers.part(length, base.shape[dimension])
        return None if part is None else Stretch(base, dimension, start, part, varies=True)


def _row(sequence: torch.Tensor) -> tuple[Any, ...]:
    """What sequences that are padded together have in common."""
    return sequence.dtype, sequence.device, sequence.dim() > 0, *(str(size) for size in sequence.shape[1:])


def _lengthened(sequence: torch.Tensor, at: torch.Tensor, padding: float) -> torch.Tensor:
    """A sequence at these places, and the padding where it has none."""
    length, others = sequence.shape[0], sequence.shape[1:]
    filling = sequence.new_full((), padding)
    if type(length) is int and length == 0:
        return filling.expand(at.shape[0], *others)
    found = sequence.index_select(0, at.clamp(max=length - 1))
    return torch.where((at < length).reshape(-1, *[1] * len(others)), found, filling)


def _is_one(size: Any) -> bool:
    return type(size) is int and size == 1


def _is_plain(item: Any) -> bool:
    if isinstance(item, slice):
        return all(type(part) in (int, type(None)) for part in (item.start, item.stop, item.step))
    return type(item) in (int, type(None), type(...))


def _known(length: Any) -> int | None:
    """A length that is the same whatever the counted numbers are."""
    if isinstance(length, torch.SymInt):
        return int(length.node.expr) if length.node.expr.is_number else None
    return int(length)
