"""Give sizes of arguments that vary symbols, and say what was decided by them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.errors import UnsupportedError
from weft.ir.graph import Place, Value
from weft.ir.types import NumberType
from weft.trace.interception.capture import Interception, lambda_text, text_of
from weft.trace.python_state.counters import Condition, leaf_of_text
from weft.trace.recorder import Recorder
from weft.trace.size_ties import SizeSpot, SizeTie

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


class SizeSymbols:
    """The symbols of one trace, in the order in which they were needed."""

    def __init__(self, interception: Interception, recorder: Recorder, varying: AskedSizes) -> None:
        self.found: list[TracedSize] = []
        self._interception = interception
        self._recorder = recorder
        self._varying = varying
        self._largest: dict[SizeSpot, int] = {}  # of sizes that others are made of

    def start(self, leaves: Sequence[Any]) -> None:
        """Note the largest sizes that arguments have."""
        spots = {spot for tie in self._varying.ties.values() for spot in tie.others}
        self._largest = {(place, at): leaves[place].shape[at] for place, at in spots}

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
        self._recorder.varies = True
        self._recorder.numbers[size.node.expr] = self._interception.sizes[size.node.expr] = value
        self.found.append(TracedSize(value, size.node.expr, argument, dimension, largest))
        return size

    def _own_name(self, spot: SizeSpot, name: str) -> str:
        """A word that no other size is called by."""
        found = self._varying.names.get(spot) or f"{NO_WORD.sub('_', name)}_{spot[1]}"
        while any(entry.value.name == found for entry in self.found):
            found += "_"
        return found if found[0].isidentifier() else f"_{found}"

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
