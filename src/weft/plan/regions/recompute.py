"""Compute cheap values of a whole step's forward once more where its backward reads them.

A value that the forward makes and the backward reads takes memory in between. Where it can be made again, element by
element, of values that stay in any case, the backward gets a copy of its own, computed next to where it is read, and
the first one is done with when the forward is. Sums, products, convolutions and what draws random numbers are never
computed twice: the first are small, the others dear. A copy has the bits of the first, for kernels compute an element
in one way wherever it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from weft.ir.graph import Graph, Value, replace_operands
from weft.ir.ops import OPS
from weft.plan.regions.region import VIEWS, size_of

CHEAP = VIEWS | {name for name, op in OPS.items() if op.elementwise}
MOST_OPERATORS = 24  # of one copy: beyond that it costs more than the memory is worth


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A graph, and the copies in it. Kernels read a copy as they read the value it is of: from memory, if it was there.

    How many accumulators a sum has depends on what else its loop computes, and the sum's bits on that.
    """

    graph: Graph
    copies: frozenset[Value]


def recompute(graph: Graph, ends: Collection[Value]) -> Recomputed:
    """Let what comes behind the last of `ends`, where the forward is over, read copies of cheap values before it."""
    position = {value: index for index, value in enumerate(graph.values)}
    last = max((position.get(value, -1) for value in ends), default=-1)
    forward, backward = graph.values[: last + 1], graph.values[last + 1 :]
    copied = _chosen(graph, forward, backward)
    # One copy for products and the like, which may run late, and one for the loops that lead to the next gradient.
    copies = (_Copies(copied), _Copies(copied))
    values = list(forward)
    replaced: dict[Value, Value] = {}
    for value in backward:
        made = copies[is_cheap(value)]
        own = {operand: made.of(operand, values) for operand in value.operands if operand in copied}
        found = replace_operands((value,), replaced | own)[0]
        if found is not value:
            replaced[value] = found
        values.append(found)
    results = tuple(replace(result, value=replaced.get(result.value, result.value)) for result in graph.results)
    writes = tuple(replace(write, value=replaced.get(write.value, write.value)) for write in graph.writes)
    users = graph.users()
    stored = frozenset(copy for each in copies for value, copy in each.made.items() if len(users[value]) > 1)
    return Recomputed(replace(graph, values=tuple(values), results=results, writes=writes), stored)


def is_cheap(value: Value) -> bool:
    """Whether a value's elements are moved, or computed from those at the same place."""
    return value.op in CHEAP


@dataclass(slots=True)
class _Copies:
    """The copies that some readers share; `copied` are the values that are made again and what they are made of."""

    copied: dict[Value, set[Value]]
    made: dict[Value, Value] = field(default_factory=dict)

    def of(self, value: Value, values: list[Value]) -> Value:
        """Give the copy of a value; what is new for it is added to `values`."""
        if value not in self.made:
            self._make(value, self.copied[value], values)
        return self.made[value]

    def _make(self, value: Value, inside: set[Value], values: list[Value]) -> None:
        for operand in value.operands:
            if operand in inside and operand not in self.made:
                self._make(operand, inside, values)
        operands = tuple(self.made.get(operand, operand) for operand in value.operands)
        self.made[value] = replace(value, operands=operands)
        values.append(self.made[value])


def _chosen(graph: Graph, forward: Iterable[Value], backward: Iterable[Value]) -> dict[Value, set[Value]]:
    """The values to copy, each with itself and all that is computed once more for it."""
    read_later = {operand for value in backward for operand in value.operands}
    staying = {*graph.inputs, *graph.roots()}
    staying.update(value for value in read_later if not is_cheap(value))
    chosen: dict[Value, set[Value]] = {}
    for value in forward:
        if value not in read_later or value in staying:
            continue
        inside, leaves = _made_of(value, staying)
        kept_longer = leaves - staying
        cost = sum(size_of(leaf) for leaf in kept_longer)
        if value.operands and len(inside) <= MOST_OPERATORS and cost < size_of(value):
            chosen[value] = inside
            staying |= kept_longer
        else:
            staying.add(value)
    return chosen


def _made_of(value: Value, staying: Collection[Value]) -> tuple[set[Value], set[Value]]:
    """A value with the cheap ones that it is computed from, as far as needed, and the others that these read."""
    inside, leaves, waiting = set[Value](), set[Value](), [value]
    while waiting and len(inside) <= MOST_OPERATORS:
        one = waiting.pop()
        if one is not value and (one in staying or not is_cheap(one)):
            if one.op != "constant":
                leaves.add(one)
        elif one not in inside:
            inside.add(one)
            waiting += one.operands
    return inside, leaves
