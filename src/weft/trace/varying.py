"""Trace code once for a range of sizes, with symbols in the place of the sizes that vary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from weft.errors import UnsupportedError
from weft.ir.graph import Graph, Value
from weft.ir.types import TensorType, TupleType, Type
from weft.trace.python_state.impurity import without_draws, without_impure_calls
from weft.trace.size_ties import SizeSpot, SizeTie
from weft.trace.traced import Traced, traced_once
from weft.trace.tracer import Request

NO_TIES: Mapping[SizeSpot, SizeTie] = MappingProxyType({})


def trace_varying(
    request: Request, varying: Mapping[int, frozenset[int]], ties: Mapping[SizeSpot, SizeTie] = NO_TIES
) -> Traced:
    """Trace code whose arguments have the largest sizes that some dimensions are to have, for all smaller ones too.

    PyTorch's rules say how sizes depend on one another, and its kernels how results of the largest ones lie in memory.
    Where `fixed_sizes` says that some of them are always the same number, nothing else of the result counts.
    """

    def both() -> tuple[Traced, Traced]:
        again = replace(request, varying=varying, ties=ties, state=request.walk(*request.state.roots))
        return traced_once(request), traced_once(again)

    plain, found = without_impure_calls(request.state, partial(without_draws, request.state.sources, both))
    if found.fixed_sizes:
        return found
    name = request.name
    if not _only_computes(found):
        raise UnsupportedError(f"the sizes of {name} do not vary", why="it does more than to compute new tensors")
    kinds = _kinds_beside(found.graph, plain.graph)
    if kinds is None:
        raise UnsupportedError(f"the sizes of {name} do not vary", why="PyTorch runs other operators for other sizes")
    return replace(found, graph=_laid_out(found.graph, kinds))


def _only_computes(traced: Traced) -> bool:
    """Whether a program does nothing but compute new tensors of its arguments and of weights."""
    others = (traced.gradient, traced.numbers, traced.constants, traced.graph.writes)
    own = any(entry.slot.given is None for entry in traced.kept)
    return not any(others) and not own and not (traced.depends_on_offsets or traced.moving or traced.held)


def _kinds_beside(varying: Graph, plain: Graph) -> dict[Value, Type] | None:
    """The types that the same values have in another graph; None where that runs other operators.

    Arithmetic on sizes, and slices of all there is, are in the one alone.
    """
    others = iter((*plain, None))
    other, found = next(others), {}
    for value in varying:
        if value.op == "number":
            continue
        if other is not None and _operator(value) == _operator(other) and _are_alike(value.type, other.type):
            found[value] = other.type
            other = next(others)
        elif not _is_whole(value):
            return None
    return found if other is None else None


def _operator(value: Value) -> str:
    call = value.attributes.get("call")
    return value.op if call is None else str(call.target)


def _are_alike(one: Type, other: Type) -> bool:
    """Whether types differ in nothing but strides."""
    return _with_strides(one, other) == other


def _is_whole(value: Value) -> bool:
    """Whether a value is a slice of all there is."""
    return _operator(value) == "aten.slice.Tensor" and value.type == value.operands[0].type


def _laid_out(varying: Graph, kinds: Mapping[Value, Type]) -> Graph:
    """The graph with tensors that lie in memory as these types say; a slice of all there is lies as what it is of."""
    now: dict[Value, Value] = {}
    for value in varying:
        operands = tuple(now.get(operand, operand) for operand in value.operands)
        kind = value.type
        if value in kinds:
            kind = _with_strides(kind, kinds[value])
        elif value.op != "number":
            kind = _with_strides(kind, operands[0].type)
        now[value] = replace(value, type=kind, operands=operands)
    return replace(
        varying,
        values=tuple(now.values()),
        results=tuple(replace(result, value=now.get(result.value, result.value)) for result in varying.results),
    )


def _with_strides(kind: Type, plain: Type) -> Type:
    if isinstance(kind, TensorType) and isinstance(plain, TensorType):
        return kind if kind.strides == plain.strides else replace(kind, strides=plain.strides)
    if isinstance(kind, TupleType) and isinstance(plain, TupleType):
        return TupleType(tuple(map(_with_strides, kind.items, plain.items)))
    return kind
