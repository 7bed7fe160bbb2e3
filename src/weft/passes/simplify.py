"""Apply laws that are exact bit for bit, wherever they apply, until none does."""

from __future__ import annotations

from weft.ir.graph import Graph, Value
from weft.passes import laws_of_arithmetic, laws_of_joining, laws_of_library, laws_of_movement, laws_of_repetition
from weft.passes.law import Law
from weft.passes.memory import Groups
from weft.passes.rewrite import rebuild

LAWS: tuple[Law, ...] = (
    *laws_of_arithmetic.LAWS,
    *laws_of_movement.LAWS,
    *laws_of_joining.LAWS,
    *laws_of_library.LAWS,
    *laws_of_repetition.LAWS,
)

BY_OP: dict[str, tuple[Law, ...]] = {
    op: tuple(law for law in LAWS if op in law.ops) for op in sorted({op for law in LAWS for op in law.ops})
}


def simplify(graph: Graph) -> Graph:
    """Replace values by simpler ones that equal them bit for bit."""
    return rebuild(graph, simpler)


def simpler(value: Value, groups: Groups) -> Value:
    """The first thing that a law gives for this value, or the value itself."""
    del groups
    for law in BY_OP.get(value.op, ()):
        found = law.apply(value)
        if found is not None:
            return found
    return value
