"""Compare a program in which found sizes are symbols with the one of this call's sizes, and lay it out as that is.

PyTorch's rules for symbols say how sizes depend on one another, and its kernels, which the trace of this call's sizes
has asked, how results lie in memory. With this call's sizes written in, both must be one program: call by call.
"""

from __future__ import annotations

from dataclasses import replace

from weft.ir.at_sizes import at_sizes, bind_numbers, dense_order, has_extents, path_at_sizes
from weft.ir.extents import Extent, today
from weft.ir.graph import Graph, Value
from weft.ir.same_graph import equal, same_meaning
from weft.ir.types import TensorType, TupleType, Type
from weft.trace.decisions import Decision, NumberRead
from weft.trace.traced import Traced, leave_the_same, numbers_of_both
from weft.trace.varying import (
    ALIAS,
    SAME_OPERATORS,
    OtherOperatorsError,
    SymbolicLayout,
    VaryingGradient,
    are_alike,
    is_whole,
    operator_of,
    with_strides,
)


def with_found_sizes(free: Traced, fixed: Traced, *, drawn: bool = False) -> Traced:
    """The program whose found sizes are symbols, laid out as the one of this call's is.

    With `drawn`, numbers that were drawn are written into the other one.
    """
    layout = FoundLayout(free, fixed, drawn=drawn)
    if (free.gradient is None) != (fixed.gradient is None) or not leave_the_same(free, fixed):
        raise OtherOperatorsError
    if free.gradient is None or fixed.gradient is None:
        found = replace(free, graph=layout.graph(free.graph, fixed.graph))
    else:
        layout.graph(free.gradient.graph, fixed.gradient.graph)
        gradient = VaryingGradient(free.gradient, fixed.gradient, layout, [*layout.sizes])
        found = replace(free, graph=layout.replaced(free.graph), gradient=gradient)
    return replace(found, decisions=tuple(_laid_out(decision, layout) for decision in free.decisions))


def _laid_out(decision: Decision, layout: FoundLayout) -> Decision:
    return replace(decision, values=tuple(map(layout, decision.values)))


class FoundLayout(SymbolicLayout):
    """Gives the values of graphs with symbols the strides that the same values have in those of this call's sizes."""

    def __init__(self, free: Traced, fixed: Traced, *, drawn: bool) -> None:
        super().__init__()
        self._numbers = numbers_of_both(free, fixed, drawn=drawn)
        self.sizes = {
            entry.value: int(entry.number)
            for entry in free.numbers
            if isinstance(entry.later, NumberRead) and entry.later.room  # what has a largest one is a size
        }

    def fresh(self) -> FoundLayout:
        """One for another graph."""
        found = FoundLayout.__new__(FoundLayout)
        found._numbers, found.sizes, found._now = self._numbers, self.sizes, {}
        return found

    def graph(self, free: Graph, fixed: Graph) -> Graph:
        """Lay a graph out; both must be one program."""
        now, fixed = bind_numbers(at_sizes(free, self.sizes), self._numbers), bind_numbers(fixed, self._numbers)
        tensors = [value for value in free if value.op != "number"]
        beside = dict(zip(tensors, now, strict=True))
        kinds = {value: other.type for value, other in _pairs(now, fixed) if other is not None}
        for value in free:
            operands, kind = tuple(map(self, value.operands)), value.type
            same = beside.get(value)
            if same is not None:
                kind = self.laid(kind, kinds[same]) if same in kinds else with_strides(kind, operands[0].type)
            self._now[value] = replace(value, type=kind, operands=operands)
        self._check_ends(free, now, fixed)
        return self.replaced(free)

    def _check_ends(self, free: Graph, now: Graph, fixed: Graph) -> None:
        """Compare what is given, and what is written."""
        places = {value: at for at, value in enumerate(now.inputs)} | _numbers_of(now, fixed)
        others = {value: at for at, value in enumerate((*fixed.inputs, *fixed.values))}
        ours = [(places[one.value], path_at_sizes(one.path, self.sizes)) for one in now.results]
        theirs = [(others[one.value], one.path) for one in fixed.results]
        written = [(places[one.input], path_at_sizes(one.path, self.sizes), places[one.value]) for one in now.writes]
        written_there = [(others[one.input], one.path, others[one.value]) for one in fixed.writes]
        if not (ours == theirs and written == written_there):
            raise OtherOperatorsError
        if any(has_extents(argument) for one in free.writes for step in one.path for argument in step.arguments):
            raise OtherOperatorsError

    def laid(self, kind: Type, other: Type) -> Type:
        """A type with symbols that lies in memory as one of this call's sizes does."""
        if isinstance(kind, TupleType) and isinstance(other, TupleType):
            return TupleType(tuple(map(self.laid, kind.items, other.items)))
        if not (isinstance(kind, TensorType) and isinstance(other, TensorType)):
            return kind
        # Before they are compared: extents are equal to numbers.
        if any(isinstance(size, Extent) and size.expression.shrinks for size in kind.shape):
            raise OtherOperatorsError  # the largest size would not be there where what is found is most
        if kind == other:
            return kind
        if not has_extents(kind):
            return replace(kind, strides=other.strides)
        order = dense_order(other)
        if order or not kind.rank:
            strides, step = [0] * kind.rank, 1
            for place in reversed(order):
                strides[place], step = step, step * max(today(kind.shape[place]), 1)
            return replace(kind, strides=tuple(strides))
        return replace(kind, strides=tuple(map(today, kind.strides)))


def _numbers_of(now: Graph, fixed: Graph) -> dict[Value, int]:
    """The places in the graph of this call's sizes of the same values."""
    others = {value: at for at, value in enumerate((*fixed.inputs, *fixed.values))}
    found = {value: at for at, value in enumerate(now.inputs)}
    for value, other in _pairs(now, fixed):
        found[value] = found[value.operands[0]] if other is None else others[other]
    return found


def _pairs(now: Graph, fixed: Graph) -> list[tuple[Value, Value | None]]:
    """Each value beside the same one; nothing beside slices of all there is."""
    if len(now.inputs) != len(fixed.inputs):
        raise OtherOperatorsError
    others = iter((*fixed, None))
    other, numbers = next(others), {value: at for at, value in enumerate(now.inputs)}
    numbers |= {value: at for at, value in enumerate(fixed.inputs)}
    found: list[tuple[Value, Value | None]] = []
    for value in now:
        if other is not None and _is_same(value, other, numbers):
            numbers[value] = numbers[other] = len(numbers)
            found.append((value, other))
            other = next(others)
        elif is_whole(value):
            numbers[value] = numbers[value.operands[0]]
            found.append((value, None))
        else:
            raise OtherOperatorsError
    if other is not None:
        raise OtherOperatorsError
    return found


def _is_same(value: Value, other: Value, numbers: dict[Value, int]) -> bool:
    if is_whole(value) and operator_of(other) == ALIAS:  # what PyTorch makes of a slice of all there is
        return numbers[value.operands[0]] == numbers[other.operands[0]]
    if value.op != other.op or operator_of(value) != operator_of(other) or not are_alike(value.type, other.type):
        return False
    if operator_of(value) in SAME_OPERATORS.values():  # which of both it is does not count
        return equal([numbers[one] for one in value.operands], [numbers[one] for one in other.operands])
    return same_meaning(value, other, numbers)
