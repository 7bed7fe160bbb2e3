"""Values with the level they can be computed at first -> cheap ones at the level where they are read.

A value that is computed before a library call and read behind it has to be stored in between. Where it costs no more to
hand over what it is made of (a number before it is spread out, a tensor that is handed over anyway), it is made behind
the call, in the kernel that reads it.
"""

from __future__ import annotations

from weft.ir.graph import Graph, Value
from weft.ir.ops import OPS
from weft.ir.types import TensorType

MOVES = frozenset({"reshape", "permute", "expand", "slice", "pad", "reverse", "iota"})
Levels = dict[Value, tuple[bool, int]]


def sink(graph: Graph, levels: Levels) -> None:
    """Move cheap values to the first level that reads them; `levels` says for each whether it is native, and where."""
    users = graph.users()
    wanted = set(graph.roots())
    for value in reversed(graph.values):
        native, level = levels[value]
        readers = users[value]
        if not native or value in wanted or not readers or not _is_cheap(value):
            continue
        first = min(levels[reader][1] for reader in readers)
        if first <= level or not all(levels[reader][0] for reader in readers):
            continue
        handed_over = sum(
            size_of(operand)
            for operand in dict.fromkeys(value.operands)
            if levels[operand][0]
            and operand.op != "constant"
            and operand not in wanted
            and all(levels[reader][1] < first for reader in users[operand] if reader is not value)
        )
        if handed_over <= size_of(value):
            levels[value] = (True, first)


def _is_cheap(value: Value) -> bool:
    return value.op in MOVES or OPS[value.op].elementwise


def size_of(value: Value) -> int:
    """How many bytes a value takes."""
    kind = value.type
    return kind.size * kind.dtype.itemsize if isinstance(kind, TensorType) else 0
