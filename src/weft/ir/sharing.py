"""Name the operands whose memory a value may share: that limits which values may stand for which."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from weft.ir import library
from weft.ir.extents import is_same_size
from weft.ir.graph import Graph, Value
from weft.ir.library import Call, Path
from weft.ir.types import TensorType, Type

SHARING_OPS = frozenset({"reshape", "permute", "expand", "slice", "cast", "item"})
"""Ops whose result may be computed as a view of an operand, or as the operand itself."""

NEGATED_VIEW = "aten._neg_view.default"


def sources(value: Value) -> tuple[Value, ...]:
    """The operands whose memory a value may share."""
    if value.op == "library":
        return () if library.is_fresh(value.attributes["call"].target) else value.operands
    if value.op not in SHARING_OPS:
        return ()
    if value.op == "item":  # the results of one operator are separate, unless they are views
        return value.operands if sources(value.operands[0]) else ()
    return value.operands


def is_negated(value: Value) -> bool:
    """Whether memory holds the numbers of a value with the other sign: PyTorch's operators know, kernels do not.

    A view keeps the negative bit of what it looks into, `_neg_view` flips it, and what is new has none.
    """
    flipped = False
    while value.operands and sources(value):
        if value.op == "library" and value.attributes["call"].target == NEGATED_VIEW:
            flipped = not flipped
        value = value.operands[0]
    return flipped


def looks_into_memory(target: str) -> bool:
    """Whether an operator counts from the start of memory, and not from the first element."""
    return target.startswith("aten.as_strided")


def looks_row_by_row(arguments: tuple[Any, ...], kind: Type) -> bool:
    """Whether as_strided, from a tensor's first element on, gives all elements of a row-major tensor in order.

    Sizes of one may have any stride, and so the result any layout that PyTorch likes: global pooling of images that are
    laid out channels last ends in such a look, and its backward begins with one.
    """
    _, sizes, strides, *offset = arguments
    if not isinstance(kind, TensorType) or offset[:1] not in ([], [None]) or 0 in kind.shape:
        return False
    numbers = (*sizes, *strides)
    return (
        all(isinstance(number, int) for number in numbers)
        and is_same_size(prod(sizes), prod(kind.shape))
        and _is_row_major(sizes, strides)
        and _is_row_major(kind.shape, kind.strides)
    )


def _is_row_major(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    apart = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and not is_same_size(stride, apart):
            return False
        apart *= size
    return True


def looks_elsewhere(call: Call, operands: tuple[Value, ...]) -> bool:
    """Whether a call reads or writes memory of an operand by places that are not its elements in order."""
    if looks_into_memory(call.target) and not looks_row_by_row(call.arguments, operands[0].type):
        return True
    return any(_elsewhere(place.path, operands[place.base].type) for place in call.written)


def _elsewhere(path: Path, kind: Type) -> bool:
    """Whether a path does: only of its first step it is known what that looks at."""
    first = bool(path) and looks_into_memory(path[0].target) and not looks_row_by_row(path[0].arguments, kind)
    return first or any(looks_into_memory(step.target) for step in path[1:])


def looked_into(graph: Graph) -> Iterator[Value]:
    """The values into whose memory as_strided looks, but where it reads a tensor row by row."""
    for value in graph.values:
        call: Call | None = value.attributes.get("call")
        if call is None:
            continue
        if looks_into_memory(call.target) and not looks_row_by_row(call.arguments, value.operands[0].type):
            yield from value.operands
        for place in call.written:
            if _elsewhere(place.path, value.operands[place.base].type):
                yield value.operands[place.base]
    for result in graph.results:
        if any(looks_into_memory(step.target) for step in result.path):
            yield result.value
