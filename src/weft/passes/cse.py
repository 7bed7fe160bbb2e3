"""Compute equal values once: the same op, of the same operands, with the same attributes, giving the same type."""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Any

import torch

from weft.ir.calls import Call
from weft.ir.graph import Graph, Value
from weft.ir.literals import bytes_of
from weft.ir.ops import OPS
from weft.passes.rewrite import Groups, is_reproducible, rebuild

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
