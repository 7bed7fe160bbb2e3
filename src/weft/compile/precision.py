"""Compute products with weights, convolutions and attentions of float32 in a lower precision; all else stays as it is.

In bfloat16 and float16 the operands are rounded and multiplied as such, with sums in float32. In int8 a linear layer's
weights become integers by output, and the rows that it is given integers by row, as each call finds them:

    y[m, n] = (sum over k of (qx[m, k] - 128) * qw[k, n]) * sx[m] * sw[n]

with qx from 1 to 255 and qw from -127 to 127. The sum is one of integers of 32 bits, and exact. What belongs to weights
alone is computed when one of them has changed.

Where calibration has seen what a layer is given, its scale is a constant, and convolutions are computed so too: what
lies beyond saturates. Of numbers that were never negative, zero is the smallest integer, else 128.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from weft.compile.calibration import Calibrated
from weft.errors import UsageError
from weft.ir.graph import Graph, Value
from weft.ir.types import TensorType
from weft.plan.regions.attention import Rewriting
from weft.target import Target
from weft.trace.lift.expression import Expression

NOTHING: Mapping[Value, Calibrated] = MappingProxyType({})
FULL = "float32"
SHORT = {"bfloat16": torch.bfloat16, "float16": torch.float16}
INTEGERS = "int8"
PRECISIONS = (FULL, *SHORT, INTEGERS)
Reasons = Sequence[tuple[Value, str]]  # weights, and why what they are multiplied with is not made integers

FACTORS: Mapping[str, int] = {"matmul": 2, "convolution": 2, "attention": 3}  # the first operands, which are multiplied
MOVES = frozenset({"reshape", "permute", "expand", "slice", "cast"})
# Of a layer that int8 makes faster: below, to find the largest number of each row takes about what is spared.
LEAST_INNER, LEAST_COLUMNS = 64, 32
LARGEST, ZERO = 127.0, 128
ALL_BITS = 255.0  # the largest integer without a sign
LEAST_CHANNELS = 16  # of a convolution's group, in and out: with fewer, words and vectors stay empty
WORD = 4  # channels
LONGEST_SUM = 1 << 16  # of products of 8 bits, which fits in 32
IMAGE_RANK = 4


def refuse_precision(precision: object) -> None:
    """Refuse what is no precision."""
    if precision not in PRECISIONS:
        raise UsageError(
            f"precision is {precision!r}",
            why="products can be computed in " + ", ".join(PRECISIONS),
            fix='use precision="bfloat16", or leave it out for what eager computes',
        )


def lowered(
    graph: Graph,
    weights: frozenset[Value],
    precision: str,
    target: Target,
    calibrated: Mapping[Value, Calibrated] = NOTHING,
) -> Graph:
    """Give a graph of small ops with products in a lower precision; the very same graph in full precision.

    `calibrated` says of weights what the layers that have them were given.
    """
    if precision == FULL:
        return graph
    rule = _to_bytes if precision == INTEGERS else _to_short(SHORT[precision])
    site = Lowering(target, *_made_of(graph, weights, calibrated))
    rewriting = Rewriting(graph)
    for value in graph.values:
        current = rewriting.current(value)
        found = rule(site, value, current) if value.op in FACTORS and _is_full(value) else None
        rewriting.keep(value, current if found is None else found)
    return rewriting.graph_now()


def kept_in_full(
    graph: Graph, weights: frozenset[Value], target: Target, calibrated: Mapping[Value, Calibrated]
) -> Reasons:
    """Give the weights of products that int8 leaves as they are, each with the reason."""
    site = Lowering(target, *_made_of(graph, weights, calibrated))
    products = (value for value in graph.values if value.op in ("matmul", "convolution") and _is_full(value))
    found = [(value.operands[1], _why_full(site, value)) for value in products if value.operands[1] in site.weights]
    return [(_source(weight), why) for weight, why in found if why]


def _source(value: Value) -> Value:
    return _source(value.operands[0]) if value.op in MOVES else value


@dataclass(frozen=True, slots=True)
class Lowering:
    """Where products are lowered: the processor, and the values that are weights, moved or converted."""

    target: Target
    weights: frozenset[Value]
    calibrated: Mapping[Value, Calibrated]

    def range_of(self, value: Value) -> Calibrated | None:
        """What calibration has seen a layer with these weights be given."""
        return self.calibrated.get(value)


Rule = Callable[[Lowering, Value, Value], Value | None]


def _made_of(
    graph: Graph, weights: frozenset[Value], calibrated: Mapping[Value, Calibrated]
) -> tuple[frozenset[Value], dict[Value, Calibrated]]:
    found, known = set(weights), dict(calibrated)
    for value in graph.values:
        if value.op in MOVES and value.operands and value.operands[0] in found:
            found.add(value)
            if value.operands[0] in known:
                known[value] = known[value.operands[0]]
    return frozenset(found), known


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


def _why_full(site: Lowering, value: Value) -> str:
    """Say why a product with weights is left in float32; nothing of one that is not."""
    weight, known = value.operands[1], site.range_of(value.operands[1])
    if not multiplies_bytes(site.target):
        return "this processor has no VNNI"
    if known is not None and known.refused:
        return known.refused
    shape = weight.type.shape if isinstance(weight.type, TensorType) else ()
    if value.op == "matmul":
        few = len(shape) != 2 or shape[0] < LEAST_INNER or shape[1] < LEAST_COLUMNS
        return f"with less than {LEAST_INNER} numbers in or {LEAST_COLUMNS} out int8 is not faster" if few else ""
    if known is None:
        return "its inputs were not calibrated: weft.calibrate(net, batches)"
    channels, outputs = shape[1], shape[0] // value.attributes["groups"]
    if len(shape) != IMAGE_RANK or channels % WORD or min(channels, outputs) < LEAST_CHANNELS:
        return f"groups of {channels} channels in and {outputs} out are not faster in int8"
    return "" if _length(shape) < LONGEST_SUM else "its sums are too long for 32 bits"


def _length(shape: tuple[int, ...]) -> int:
    return shape[1] * shape[2] * shape[3]


def _to_bytes(site: Lowering, value: Value, current: Value) -> Value | None:
    if value.op not in ("matmul", "convolution") or value.operands[1] not in site.weights or _why_full(site, value):
        return None
    known = site.range_of(value.operands[1])
    if value.op == "convolution":
        assert known is not None
        return _convolution_to_bytes(current, value, known)
    rows, weight = (Expression(operand, value.place) for operand in current.operands)
    columns, by_column = _quantised(weight, (0,))
    if known is None:
        numbers, scale = _quantised(rows, (rows.rank - 1,))
        whole, zero = (numbers + float(ZERO)).cast(torch.uint8), ZERO
        sums = whole.cast(torch.int32).matmul(columns.cast(torch.int8).cast(torch.int32)) + _shift(columns, (0,), zero)
        return (sums.cast(torch.float32) * scale * by_column).value
    whole, zero = _saturated(rows, known)
    sums = whole.cast(torch.int32).matmul(columns.cast(torch.int8).cast(torch.int32)) + _shift(columns, (0,), zero)
    return (sums.cast(torch.float32) * (by_column * known.scale)).value


def _convolution_to_bytes(current: Value, value: Value, known: Calibrated) -> Value:
    images, weight = (Expression(operand, value.place) for operand in current.operands)
    whole, zero = _saturated(images, known)
    around = (0, 0, *value.attributes["padding"])
    if any(around):
        whole = whole.build("pad", low=around, high=around, value=zero)
    inside = (1, 2, 3)
    columns, by_output = _quantised(weight, inside)
    factors = whole.cast(torch.int32), columns.cast(torch.int8).cast(torch.int32)
    given = {**value.attributes, "padding": (0,) * len(value.attributes["padding"])}
    sums = factors[0].build("convolution", factors[1], **given)
    beside = (1, weight.shape[0], 1, 1)
    if zero:
        sums = sums + _shift(columns, inside, zero).reshape(beside)
    return (sums.cast(torch.float32) * (by_output.reshape(beside) * known.scale)).value


def _shift(columns: Expression, dimensions: tuple[int, ...], zero: int) -> Expression:
    """What is added to sums of integers without a sign. Sums of so many whole numbers are exact in float32 too."""
    return (columns.sum(dimensions, keep=True) * float(-zero)).cast(torch.int32)


def _saturated(numbers: Expression, known: Calibrated) -> tuple[Expression, int]:
    """Give integers without a sign, by a scale that was calibrated, and which of them is zero."""
    zero = 0 if known.is_positive else ZERO
    whole = (numbers * (1.0 / known.scale)).apply("round") + float(zero)
    return whole.apply("maximum", 0.0).apply("minimum", ALL_BITS).cast(torch.uint8), zero


def multiplies_bytes(target: Target) -> bool:
    """Tell whether a processor multiplies integers of 8 bits faster than floats."""
    return target.has("avx512vnni") and target.vector_bytes == 64


def _quantised(numbers: Expression, dimensions: tuple[int, ...]) -> tuple[Expression, Expression]:
    """Give whole numbers of at most 127, still floats, and what they are multiples of, along dimensions."""
    largest = numbers.apply("abs").reduce("max", dimensions, keep=True)
    # Where all are zero anything but infinity will do.
    times = largest.apply("eq", 0.0).choose(0.0, largest.like(LARGEST) / largest)
    return (numbers * times).apply("round"), largest * (1.0 / LARGEST)
