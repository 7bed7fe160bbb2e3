"""A value -> whether it may be dropped, computed early, or shared with an equal one."""

from __future__ import annotations

from weft.ir import library
from weft.ir.graph import Value
from weft.ir.ops import effect_of


def has_effect(value: Value) -> bool:
    """Whether computing a value does more than give it: it stays, once, in its place, whoever needs it."""
    if effect_of(value) is not None:
        return True
    call = value.attributes.get("call")
    if call is None:
        return False
    writes_operands = value.op == "library" and bool(library.written_arguments(call.target))
    return writes_operands or library.has_effect(call.target)


def is_reproducible(value: Value) -> bool:
    """Whether the same operands give the same elements again: memory nobody has written to does not."""
    call = value.attributes.get("call")
    return not has_effect(value) and (call is None or not library.is_uninitialised(call.target))
