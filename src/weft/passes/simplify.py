"""Apply laws that are exact bit for bit, wherever they apply, until none does."""

from __future__ import annotations

from weft.ir import library
from weft.ir.calls import Call, Operand
from weft.ir.graph import Graph, Value
from weft.ir.sharing import is_negated
from weft.ir.types import TensorType
from weft.passes import laws_of_arithmetic, laws_of_movement
from weft.passes.rewrite import Groups, Law, operand_if_alike, rebuild

# Laws of PyTorch operators that give back their argument, in its own memory or in a copy. Whether the caller can tell a
# copy from the original is asked for every replacement alike (`rewrite.Groups`), not here.

SAME_TYPE_SAME_ELEMENTS = frozenset(
    {
        "aten.detach",
        "aten.alias",
        "aten.lift_fresh",
        "aten.view",
        "aten.reshape",
        "aten._unsafe_view",
        "aten._reshape_alias",
    }
    | {"aten.expand", "aten.permute", "aten.transpose", "aten.t", "aten.squeeze", "aten.slice", "aten.contiguous"}
    | {"aten.clone", "aten._to_copy", "aten.lift", "aten.view_copy", "aten.expand_copy", "aten.detach_copy"}
)
"""Operators that change no element: if the type stays, strides included, so does everything else.

Not among them: as_strided, which may start elsewhere with the same sizes and strides, and the lazy conjugate and
negative, which change elements only.
"""

COPIES = frozenset(
    {"aten.clone", "aten._to_copy", "aten.lift", "aten.view_copy", "aten.expand_copy", "aten.detach_copy"}
)


def nothing_changes(value: Value) -> Value | None:
    """The operand, where an operator that changes no element leaves the type as it is."""
    call: Call = value.attributes["call"]
    name = library.packet_name(call.target)
    if name not in SAME_TYPE_SAME_ELEMENTS or len(value.operands) != 1 or call.arguments[:1] != (Operand(0),):
        return None
    if not isinstance(value.type, TensorType) or dict(call.keywords).get("pin_memory"):
        return None
    # A copy of a lazily conjugated or negated tensor is a plain one, and the caller may ask which of both it is.
    if name in COPIES and (value.type.dtype.is_complex or is_negated(value.operands[0])):
        return None
    return operand_if_alike(value, value.operands[0])


def undone_by_itself(value: Value) -> Value | None:
    """The operand of the operand, where the same exchange of dimensions is applied twice."""
    call: Call = value.attributes["call"]
    inner = value.operands[0] if len(value.operands) == 1 else value
    if call.target not in ("aten.t.default", "aten.transpose.int") or inner.attributes.get("call") != call:
        return None
    return operand_if_alike(value, inner.operands[0])


def permute_undone(value: Value) -> Value | None:
    """The operand of the operand, where one permute undoes the other."""
    call: Call = value.attributes["call"]
    inner = value.operands[0] if len(value.operands) == 1 else value
    inner_call = inner.attributes.get("call")
    if call.target != "aten.permute.default" or inner is value or inner_call is None:
        return None
    if inner_call.target != call.target or call.keywords or inner_call.keywords:
        return None
    rank = len(call.arguments[1])
    composed = [inner_call.arguments[1][dimension] % rank for dimension in call.arguments[1]]
    return operand_if_alike(value, inner.operands[0]) if composed == list(range(rank)) else None


OF_LIBRARY = (
    Law("nothing changes", ("library",), nothing_changes, "the operator keeps every element, and the type stays"),
    Law("t of t", ("library",), undone_by_itself, "two dimensions exchanged twice are where they were"),
    Law("permute undone", ("library",), permute_undone, "the orders compose to the order of before"),
)

LAWS: tuple[Law, ...] = (
    *laws_of_arithmetic.LAWS,
    *laws_of_movement.LAWS,
    *OF_LIBRARY,
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
