"""A value -> the operands whose memory it may share: what limits which values may stand for which."""

from __future__ import annotations

from weft.ir import library
from weft.ir.graph import Value

SHARING_OPS = frozenset({"reshape", "permute", "expand", "slice", "cast", "item"})
"""Ops whose result may be computed as a view of an operand, or as the operand itself."""


def sources(value: Value) -> tuple[Value, ...]:
    """The operands whose memory a value may share."""
    if value.op == "library":
        return () if library.is_fresh(value.attributes["call"].target) else value.operands
    if value.op not in SHARING_OPS:
        return ()
    if value.op == "item":  # the results of one operator are separate, unless they are views
        return value.operands if sources(value.operands[0]) else ()
    return value.operands


def looks_into_memory(target: str) -> bool:
    """Whether an operator counts from the start of memory, and not from the first element."""
    return target.startswith("aten.as_strided")
