"""Give sizes of arguments that vary symbols, and say what was decided by them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from weft.errors import UnsupportedError
from weft.ir.graph import Place, Value
from weft.ir.types import NumberType
from weft.trace.decisions import NumberRead
from weft.trace.interception.capture import Interception, lambda_text, text_of
from weft.trace.python_state.counters import Condition, leaf_of_text
from weft.trace.recorder import Recorder
from weft.trace.size_ties import SizeSpot, SizeTie, shape_of

NO_WORD = re.compile(r"\W+", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)
class TracedSize:
    """A size that varies: its value in the Graph, its symbol, of which argument's dimension it is, its largest one."""

    value: Value
    symbol: Any
    argument: int
    dimension: int
    largest: int


@dataclass(frozen=True, slots=True)
class AskedSizes:
    """Dimensions of arguments that are symbols, which of them are made of others, and which have names."""

    dimensions: Mapping[int, frozenset[int]] = field(default_factory=dict)
    ties: Mapping[SizeSpot, SizeTie] = field(default_factory=dict)
    names: Mapping[SizeSpot, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SizesToRead:
    """Sizes of arguments that a path reads before all else: which one of those that are the same, and its largest."""

    first: Mapping[SizeSpot, SizeSpot]
    largest: Mapping[SizeSpot, int]


class SizeSymbols:
    """The symbols of one trace, in the order in which they were needed."""

    def __init__(self, interception: Interception, recorder: Recorder, varying: AskedSizes) -> None:
        self.found: list[TracedSize] = []
        self._interception = interception
        self._recorder = recorder
        self._varying = varying
        self._names: set[str] = set()
        self._largest: dict[SizeSpot, int] = {}  # of sizes that others are made of

    def start(self, leaves: Sequence[Any]) -> None:
        """Note the largest sizes that arguments have."""
        spots = {spot for tie in self._varying.ties.values() for spot in tie.others}
        self._largest = {(place, at): shape_of(leaves[place])[at] for place, at in spots}

    def of(self, shape: Sequence[int], argument: int, name: str) -> dict[int, Any]:
        """The sizes of an argument of this name that are symbols, or made of such."""
        found: dict[int, Any] = {}
        for dimension in sorted(self._varying.dimensions.get(argument, ())):
            tie = self._varying.ties.get((argument, dimension))
            if tie is None:
                found[dimension] = self._symbol((argument, dimension), shape[dimension], name)
            else:
                found[dimension] = tie.size(lambda spot: self._symbol(spot, self._largest[spot], "size"))
        return found

    def _symbol(self, spot: SizeSpot, largest: int, name: str) -> Any:
        """The symbol of a size; equal ones are one."""
        argument, dimension = spot
        size = self._interception.size(largest, f"{name}_{dimension}")
        if size.node.expr in self._interception.sizes:
            return size
        value = Value("input", (), NumberType("int"), name=self._own_name(spot, name))
        self._names.add(value.name)
        self._recorder.varies = True
        self._recorder.numbers[size.node.expr] = self._interception.sizes[size.node.expr] = value
        self.found.append(TracedSize(value, size.node.expr, argument, dimension, largest))
        return size

    def _own_name(self, spot: SizeSpot, name: str) -> str:
        """A word that no other size is called by."""
        found = self._varying.names.get(spot) or f"{NO_WORD.sub('_', name)}_{spot[1]}"
        while found in self._names:
            found += "_"
        return found if found[0].isidentifier() else f"_{found}"

    def read(self) -> None:
        """Read what is to be read of arguments before all else; nothing where a size is known by its argument."""

    def fixed(self) -> dict[SizeSpot, Place | None]:
        """The sizes that turned out to be numbers, and where that was decided."""
        fixed = [entry for entry in self.found if self._interception.has_one_value(entry.symbol)]
        placed = self._interception.guards.placed()[::-1]  # what makes it a number is the last that names it
        return {
            (entry.argument, entry.dimension): next(
                (place for expression, place in placed if expression.free_symbols == {entry.symbol} and place), None
            )
            for entry in fixed
        }

    def conditions(self, name: str) -> tuple[Condition, ...]:
        """What must hold of the sizes for all that the code of this name decided by them."""
        places = {entry.symbol: place for place, entry in enumerate(self.found)}
        found: list[Condition] = []
        for expression, place in self._interception.guards.placed() if places else ():
            symbols = sorted(expression.free_symbols, key=str)
            if not all(symbol in places for symbol in symbols):
                raise UnsupportedError(f"the sizes of {name} do not vary", why=str(expression))
            leaf = leaf_of_text(lambda_text(expression, symbols), tuple(places[symbol] for symbol in symbols))
            names = {symbol: self.found[places[symbol]].value.name for symbol in symbols}
            found.append(Condition(leaf, text_of(expression, names), place))
        return tuple(found)


class ReadsSizes(Protocol):
    """What makes symbols of what a path reads."""

    def size_of_argument(self, count: int, largest: int, name: str) -> tuple[Any, NumberRead]:
        """Add the size of an argument, as a symbol of this name."""

    def size_is_read(self, argument: int, dimension: int, read: NumberRead) -> None:
        """Read such a size from its argument."""


class ReadSizeSymbols(SizeSymbols):
    """The symbols of sizes that a path reads: they stand for those of the call that is traced, and are found out."""

    def __init__(
        self, interception: Interception, recorder: Recorder, varying: AskedSizes, asked: SizesToRead, reads: ReadsSizes
    ) -> None:
        super().__init__(interception, recorder, varying)
        self._asked, self._reads = asked, reads
        self._made: dict[SizeSpot, tuple[Any, NumberRead]] = {}

    def _symbol(self, spot: SizeSpot, largest: int, name: str) -> Any:
        """The symbol of a size, which is that of all that are the same; `largest` is what it is in this call."""
        first = self._asked.first[spot]
        if first not in self._made:
            own = self._own_name(first, name)
            self._names.add(own)
            self._made[first] = self._reads.size_of_argument(largest, self._asked.largest[first], own)
        return self._made[first][0]

    def fixed(self) -> dict[SizeSpot, Place | None]:
        """The sizes that turned out to be numbers."""
        return {spot: None for spot, (_, read) in self._made.items() if self._interception.has_one_value(read.symbol)}

    def read(self) -> None:
        """Read them from arguments, in the order in which they were needed."""
        for (argument, dimension), (_, read) in self._made.items():
            self._reads.size_is_read(argument, dimension, read)


def size_symbols(
    common: tuple[Interception, Recorder], varying: AskedSizes, asked: SizesToRead | None, reads: ReadsSizes | None
) -> SizeSymbols:
    """What makes the symbols of a trace: of sizes that are known before a run, or `asked` of what `reads` them.

    Where nothing does, they are this call's numbers.
    """
    if asked is None:
        return SizeSymbols(*common, varying)
    return SizeSymbols(*common, AskedSizes()) if reads is None else ReadSizeSymbols(*common, varying, asked, reads)
