"""A value -> whether it may be dropped, computed early, or shared with an equal one."""

from __future__ import annotations

from weft.ir import library
from weft.ir.graph import Value
from weft.ir.ops import effect_of


def has_effect(value: Value) -> bool:
    """Whether computing a value does more than give it: it stays, once, in its place, whoever needs it."""
    if value.op == "library" and library.written_arguments(value.attributes["call"].target):
        return True  # a write that the Graph does not know of, as legacy batch norm does to its statistics
    return effect_of(value) is not None


def is_reproducible(value: Value) -> bool:
    """Whether the same operands give the same elements again: memory nobody has written to does not."""
    call = value.attributes.get("call")
    return not has_effect(value) and (call is None or not library.is_uninitialised(call.target))
