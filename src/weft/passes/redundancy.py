"""Remove what need not be computed: values that equal earlier ones, and what nobody needs."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from weft.ir.graph import Graph, Value, replace_operands
from weft.ir.library import Argument, Call
from weft.ir.literals import bytes_of
from weft.ir.ops import OPS, refusal_of
from weft.ir.types import TensorType, TupleType
from weft.passes.rewrite import Groups, has_effect, is_reproducible, rebuild

LARGEST_COMPARED = 1 << 16  # bytes: two larger constants are compared by identity, because compiling must stay fast


def share_common_subexpressions(graph: Graph) -> Graph:
    """Let every value stand for the later ones that equal it."""
    seen: dict[Hashable, list[Value]] = {}

    def first_of_its_kind(value: Value, groups: Groups) -> Value:
        if not is_reproducible(value):
            return value
        equals = seen.setdefault(key_of(value), [])
        for earlier in equals:
            if earlier is value or groups.may_replace(value, earlier):
                return earlier
        equals.append(value)
        return value

    return rebuild(graph, first_of_its_kind)


def key_of(value: Value) -> Hashable:
    """What two values share exactly if they are equal whatever their operands hold."""
    operands = tuple(map(id, value.operands))
    if OPS[value.op].commutative:
        operands = tuple(sorted(operands))
    attributes = tuple((name, content_of(value.attributes[name])) for name in sorted(value.attributes))
    return value.op, operands, value.type, attributes


def content_of(attribute: Any) -> Hashable:
    """Something hashable that tells apart what Python finds equal but a program does not: 1, 1.0, True, 0.0, -0.0."""
    if isinstance(attribute, torch.Tensor):
        small = attribute.numel() * attribute.element_size() <= LARGEST_COMPARED
        return bytes_of(attribute) if small else id(attribute)
    if isinstance(attribute, Call):
        return tuple(
            content_of(part) for part in (attribute.target, attribute.arguments, attribute.keywords, attribute.written)
        )
    if isinstance(attribute, tuple):
        return tuple(map(content_of, attribute))
    if isinstance(attribute, float):
        return float, struct.pack("d", attribute)
    if isinstance(attribute, complex):
        return complex, struct.pack("dd", attribute.real, attribute.imag)
    return type(attribute), attribute


def remove_dead_code(graph: Graph) -> Graph:
    """Keep what results and writes are computed from, and what does more: draws at random, or alone refuses data."""
    needed = _needed(graph, set(graph.roots()).union(filter(has_effect, graph.values)))
    alone: dict[Hashable, Value] = {}
    for value in sorted(graph.values, key=lambda value: value not in needed):  # what is needed first, else in order
        alone.setdefault(refusal_of(value), value)
    alone.pop(None, None)
    needed = _needed(graph, needed.union(alone.values()))
    values = tuple(value for value in graph.values if value in needed)
    return graph if len(values) == len(graph.values) else replace(graph, values=values)


def _needed(graph: Graph, wanted: set[Value]) -> set[Value]:
    """What some values are computed from, and these."""
    needed = set(wanted)
    for value in reversed(graph.values):
        if value in needed:
            needed.update(value.operands)
    return needed


# `torch.linalg.svdvals` asks for singular vectors too when autograd might want them, and a trace cannot know earlier
# than here that nobody does.


@dataclass(frozen=True, slots=True)
class Narrowing:
    """An operator whose results at `optional` positions are left out when `argument` is False."""

    optional: frozenset[int]
    argument: int
    name: str


NARROWINGS: Mapping[str, Narrowing] = MappingProxyType(
    {
        "aten._linalg_svd.default": Narrowing(frozenset({0, 2}), 2, "compute_uv"),
        "aten._linalg_eigh.default": Narrowing(frozenset({1}), 2, "compute_v"),
    }
)


def narrow(graph: Graph) -> Graph:
    """Leave out the optional results that no value reads."""
    users = graph.users()
    roots = set(graph.roots())
    replacements: dict[Value, Value] = {}
    for value in graph.values:
        narrowing = NARROWINGS.get(value.attributes["call"].target) if value.op == "library" else None
        if narrowing is None or value in roots:
            continue
        items = {user.attributes["index"] for user in users[value] if user.op == "item"}
        if not items & narrowing.optional and _asks(value.attributes["call"], narrowing):
            replacements[value] = _narrowed(value, narrowing)
    if not replacements:
        return graph
    values = replace_operands([replacements.get(value, value) for value in graph.values], replacements)
    return replace(
        graph,
        values=values,
        results=tuple(replace(result, value=replacements.get(result.value, result.value)) for result in graph.results),
        writes=tuple(replace(write, value=replacements.get(write.value, write.value)) for write in graph.writes),
    )


def _asks(call: Call, narrowing: Narrowing) -> bool:
    given = dict(call.keywords).get(narrowing.name, True)
    return bool(call.arguments[narrowing.argument] if len(call.arguments) > narrowing.argument else given)


def _narrowed(value: Value, narrowing: Narrowing) -> Value:
    call: Call = value.attributes["call"]
    keywords: list[tuple[str, Argument]] = [(name, item) for name, item in call.keywords if name != narrowing.name]
    arguments = list(call.arguments)
    if len(arguments) > narrowing.argument:
        arguments[narrowing.argument] = False
    else:
        keywords.append((narrowing.name, False))
    assert isinstance(value.type, TupleType)
    kinds = tuple(
        _empty(kind) if index in narrowing.optional and isinstance(kind, TensorType) else kind
        for index, kind in enumerate(value.type.items)
    )
    narrower = replace(call, arguments=tuple(arguments), keywords=tuple(keywords))
    return replace(value, type=TupleType(kinds), attributes=MappingProxyType({**value.attributes, "call": narrower}))


def _empty(kind: TensorType) -> TensorType:
    return TensorType(kind.dtype, (0,), (1,), kind.device)
