"""Compute products with weights, convolutions and attentions of float32 in a lower precision; all else stays as it is.

In bfloat16 and float16 the operands are rounded and multiplied as such, with sums in float32. In int8 a linear layer's
weights become integers by output, and the rows that it is given integers by row, as each call finds them:

    y[m, n] = (sum over k of (qx[m, k] - 128) * qw[k, n]) * sx[m] * sw[n]

with qx from 1 to 255 and qw from -127 to 127. The sum is one of integers of 32 bits, and exact. What belongs to weights
alone is computed when one of them has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from weft.errors import UsageError
from weft.ir.graph import Graph, Value
from weft.ir.types import TensorType
from weft.plan.regions.attention import Rewriting
from weft.target import Target
from weft.trace.lift.expression import Expression

FULL = "float32"
SHORT = {"bfloat16": torch.bfloat16, "float16": torch.float16}
PRECISIONS = (FULL, *SHORT, "int8")

FACTORS: Mapping[str, int] = {"matmul": 2, "convolution": 2, "attention": 3}  # the first operands, which are multiplied
MOVES = frozenset({"reshape", "permute", "expand", "slice", "cast"})
# Of a layer that int8 makes faster: below, to find the largest number of each row takes about what is spared.
LEAST_INNER, LEAST_COLUMNS = 64, 32
LARGEST, ZERO = 127.0, 128


def refuse_precision(precision: object) -> None:
    """Refuse what is no precision."""
    if precision not in PRECISIONS:
        raise UsageError(
            f"precision is {precision!r}",
            why="products can be computed in " + ", ".join(PRECISIONS),
            fix='use precision="bfloat16", or leave it out for what eager computes',
        )


def lowered(graph: Graph, weights: frozenset[Value], precision: str, target: Target) -> Graph:
    """Give a graph of small ops with products in a lower precision; the very same graph in full precision."""
    if precision == FULL:
        return graph
    rule = _to_bytes if precision == "int8" else _to_short(SHORT[precision])
    site = Lowering(target, _made_of(graph, weights))
    rewriting = Rewriting(graph)
    for value in graph.values:
        current = rewriting.current(value)
        found = rule(site, value, current) if value.op in FACTORS and _is_full(value) else None
        rewriting.keep(value, current if found is None else found)
    return rewriting.graph_now()


@dataclass(frozen=True, slots=True)
class Lowering:
    """Where products are lowered: the processor, and the values that are weights, moved or converted."""

    target: Target
    weights: frozenset[Value]


Rule = Callable[[Lowering, Value, Value], Value | None]


def _made_of(graph: Graph, weights: frozenset[Value]) -> frozenset[Value]:
    found = set(weights)
    for value in graph.values:
        if value.op in MOVES and value.operands and value.operands[0] in found:
            found.add(value)
    return frozenset(found)


def _is_full(value: Value) -> bool:
    kinds = [operand.type for operand in value.operands[: FACTORS[value.op]]]
    return all(isinstance(kind, TensorType) and kind.dtype is torch.float32 for kind in kinds)


def _to_short(dtype: torch.dtype) -> Rule:
    def rule(site: Lowering, value: Value, current: Value) -> Value | None:
        if value.op == "matmul" and value.operands[1] not in site.weights:
            return None
        count = FACTORS[value.op]
        rounded = (
            Expression(operand, value.place).cast(dtype).cast(torch.float32).value
            for operand in current.operands[:count]
        )
        return replace(current, operands=(*rounded, *current.operands[count:]))

    return rule


def _to_bytes(site: Lowering, value: Value, current: Value) -> Value | None:
    if value.op != "matmul" or value.operands[1] not in site.weights or not multiplies_bytes(site.target):
        return None
    rows, weight = (Expression(operand, value.place) for operand in current.operands)
    if weight.rank != 2 or weight.shape[0] < LEAST_INNER or weight.shape[1] < LEAST_COLUMNS:
        return None
    numbers, scale = _quantised(rows, 1)
    columns, by_column = _quantised(weight, 0)
    # Sums of so many whole numbers are exact in float32 too.
    shift = (columns.sum((0,), keep=True) * float(-ZERO)).cast(torch.int32)
    whole = (numbers + float(ZERO)).cast(torch.uint8).cast(torch.int32)
    sums = whole.matmul(columns.cast(torch.int8).cast(torch.int32)) + shift
    return (sums.cast(torch.float32) * scale * by_column).value


def multiplies_bytes(target: Target) -> bool:
    """Tell whether a processor multiplies integers of 8 bits faster than floats."""
    return target.has("avx512vnni") and target.vector_bytes == 64


def _quantised(numbers: Expression, dimension: int) -> tuple[Expression, Expression]:
    """Give whole numbers of at most 127, still floats, and what they are multiples of, along a dimension."""
    largest = numbers.apply("abs").reduce("max", (dimension,), keep=True)
    # Where all are zero anything but infinity will do.
    times = largest.apply("eq", 0.0).choose(0.0, largest.like(LARGEST) / largest)
    return (numbers * times).apply("round"), largest * (1.0 / LARGEST)
