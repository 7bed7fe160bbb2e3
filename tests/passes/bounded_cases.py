"""Write small graphs for every rule of `passes/bounded.py`, of sizes that are numbers or vary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from weft.ir.extents import Extent
from weft.ir.graph import Value
from weft.ir.ops import build
from weft.ir.size_numbers import number_of
from weft.ir.types import TupleType, contiguous


@dataclass
class Draft:
    """The inputs and values of a graph while it is written."""

    inputs: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    most: dict[Value, Any] = field(default_factory=dict)  # of inputs that are places: below which size they are

    def input(self, *shape: int, dtype: torch.dtype = torch.float32) -> Value:
        """A tensor that is given."""
        self.inputs.append(Value("input", (), contiguous(dtype, shape), name=f"x{len(self.inputs)}"))
        return self.inputs[-1]

    def places(self, *shape: int, below: int) -> Value:
        """Places along a dimension of a size."""
        value = self.input(*shape, dtype=torch.int64)
        self.most[value] = below
        return value

    def build(self, op: str, *operands: Value, **given: Any) -> Value:
        """A value."""
        self.values.append(build(op, *operands, **given))
        return self.values[-1]

    def items(self, whole: Value) -> list[Value]:
        """All results of a value that has several."""
        assert isinstance(whole.type, TupleType)
        return [self.build("item", whole, type=kind, index=index) for index, kind in enumerate(whole.type.items)]

    def full(self, number: float, *shape: int, dtype: torch.dtype = torch.float32) -> Value:
        """A number in every element."""
        attributes = MappingProxyType({"tensor": torch.tensor(number, dtype=dtype)})
        self.values.append(Value("constant", (), contiguous(dtype, ()), attributes))
        return self.build("expand", self.values[-1], shape=shape)

    def number(self, size: int, *shape: int) -> Value:
        """A size in every element."""
        if not isinstance(size, Extent):
            return self.full(size, *shape, dtype=torch.int64)

        def emit(value: Value) -> Value:
            self.values.append(value)
            return value

        number = number_of(size.expression, emit=emit)
        return self.build("expand", self.build("scalar", number, dtype=torch.int64), shape=shape)


Case = Callable[[Draft, int, int], Sequence[Value]]
"""Writes a graph of two sizes, and gives its results."""


def elementwise(g: Draft, n: int, m: int) -> Sequence[Value]:
    x, y = g.input(n, m), g.input(n, m)
    return [g.build("select", g.build("lt", x, y), g.build("add", x, y), g.build("exp", x)), g.build("neg", y)]


def cast(g: Draft, n: int, m: int) -> Sequence[Value]:
    return [g.build("cast", g.input(n, 3, m), dtype=torch.float64)]


def expand(g: Draft, n: int, m: int) -> Sequence[Value]:
    repeated = g.build("expand", g.input(n, 1), shape=(n, m))
    return [repeated, g.build("sum", repeated, dimensions=(1,), keep=False)]


def expand_in_front(g: Draft, n: int, m: int) -> Sequence[Value]:
    return [g.build("expand", g.input(m, 2), shape=(n, m, 2))]


def permute(g: Draft, n: int, m: int) -> Sequence[Value]:
    return [g.build("permute", g.input(n, m, 3), order=(2, 0, 1))]


def merge(g: Draft, n: int, m: int) -> Sequence[Value]:
    rows = g.build("reshape", g.input(n, m, 4), shape=(n * m, 4))
    every = g.build("reshape", rows, shape=(n * m * 4,))
    return [rows, every, g.build("sum", rows, dimensions=(0,), keep=False), g.build("reshape", every, shape=(n, m, 4))]


def merge_repeated(g: Draft, n: int, m: int) -> Sequence[Value]:
    """Channels that are each the same at all pixels: of all of them together no prefix counts."""
    repeated = g.build("expand", g.input(3, 1, 1), shape=(3, n, m))
    every = g.build("reshape", repeated, shape=(3 * n * m,))
    groups = g.build("reshape", g.build("expand", g.input(n, 1, 2), shape=(n, m, 2)), shape=(n, m * 2))
    return [
        *(g.build(op, every, dimensions=(0,), keep=False) for op in ("sum", "max")),
        g.build("sum", groups, dimensions=(1,), keep=False),
        g.build("reshape", every, shape=(3, n, m)),
    ]


def take_apart(g: Draft, n: int, m: int) -> Sequence[Value]:
    heads = g.build("reshape", g.input(n, m, 6), shape=(n, m, 2, 3))
    return [g.build("reshape", g.build("permute", heads, order=(0, 2, 1, 3)), shape=(n, 2 * m * 3))]


def iota(g: Draft, n: int, m: int) -> Sequence[Value]:
    found = g.build("iota", shape=(n, m), dimension=1, dtype=torch.int64)
    return [found, g.build("max", found, dimensions=(0, 1), keep=False)]


def reduction(op: str, dtype: torch.dtype = torch.float32) -> Case:
    def case(g: Draft, n: int, m: int) -> Sequence[Value]:
        x = g.input(n, m, 3, dtype=dtype)
        ways = (((0,), False), ((0, 1), False), ((1,), True), ((2,), False))
        return [g.build(op, x, dimensions=dimensions, keep=keep) for dimensions, keep in ways]

    return case


def of_merged(op: str) -> Case:
    def case(g: Draft, n: int, m: int) -> Sequence[Value]:
        rows = g.build("reshape", g.input(n, m, 3), shape=(n * m, 3))
        return [g.build(op, rows, dimensions=(0,), keep=False)]

    return case


def position(op: str) -> Case:
    def case(g: Draft, n: int, m: int) -> Sequence[Value]:
        x = g.input(n, m, 3)
        return [g.build(op, x, dimension=0, keep=False), g.build(op, x, dimension=1, keep=True)]

    return case


def top_places(g: Draft, n: int, m: int) -> Sequence[Value]:
    x = g.input(n, m, 5)  # of as many as a size that varies says the library takes them
    return [g.build("top_places", x, count=2, largest=largest, sorted=True) for largest in (True, False)]


def resampled(g: Draft, n: int, m: int) -> Sequence[Value]:
    x = g.build("exp", g.input(n, m, 4))
    found = []
    for dimension, size in enumerate((n, m)):
        steps = g.build("iota", shape=(2 * size,), dimension=0, dtype=torch.int64)
        places = g.build(
            "minimum", g.build("floor_div", steps, g.full(2, 2 * size, dtype=torch.int64)), g.number(size - 1, 2 * size)
        )
        found.append(g.build("take", x, places, dimension=dimension))
    return found


def recurrent(cell: str, *, reverse: bool = False) -> Case:
    def case(g: Draft, n: int, m: int) -> Sequence[Value]:
        rows = 4 * {"lstm": 4, "gru": 3, "rnn_tanh": 1}[cell]
        given, weight, first = g.input(n, m, rows), g.input(rows, 4), g.input(m, 4)
        # Small weights: with large ones a state remembers each rounding for ever.
        weight = g.build("mul", weight, g.full(0.2, rows, 4))
        others = [g.input(*shape) for shape in {"lstm": [(m, 4)], "gru": [(4,)]}.get(cell, [])]
        return g.items(g.build("recurrent", given, weight, first, *others, cell=cell, reverse=reverse))

    return case


def matmul(g: Draft, n: int, m: int) -> Sequence[Value]:
    return [
        g.build("matmul", g.input(n, m), g.input(m, 5)),
        g.build("matmul", g.input(3, n, m), g.input(3, m, n)),
        g.build("matmul", g.input(n, 4, 2), g.input(n, 2, m)),
    ]


def attention(hidden: float, *, causal: bool = False, masked: torch.dtype | None = None) -> Case:
    def case(g: Draft, n: int, m: int) -> Sequence[Value]:
        query, key, value = (g.input(n, 2, m, 4) for _ in range(3))
        masks = [] if masked is None else [g.input(n, 2, m, m, dtype=masked)]
        given = {"scale": 0.5, "causal": causal, "zeros": False, "hidden": hidden}
        return g.items(g.build("attention", query, key, value, *masks, **given))

    return case


def cross_attention(g: Draft, n: int, m: int) -> Sequence[Value]:
    given = {"scale": 0.5, "causal": False, "zeros": False, "hidden": -math.inf}
    return g.items(g.build("attention", g.input(2, n, 4), g.input(2, m, 4), g.input(2, m, 3), **given))


def attention_gradient(g: Draft, n: int, m: int) -> Sequence[Value]:
    query, key, value, gradient = (g.input(n, m, 4) for _ in range(4))
    given = {"scale": 0.5, "causal": False, "zeros": False}
    result, logarithm = g.items(g.build("attention", query, key, value, hidden=-math.inf, **given))
    weight = g.build("sum", g.build("mul", gradient, result), dimensions=(2,), keep=False)
    return g.items(g.build("attention_gradient", gradient, query, key, value, logarithm, weight, **given))


def sliced(start: Sequence[Any], stop: Sequence[Any], step: Sequence[int]) -> Case:
    """Slices of [n, m + 3]; what is given of a size is a function of it."""

    def case(g: Draft, n: int, m: int) -> Sequence[Value]:
        sizes = (n, m + 3)

        def known(entries: Sequence[Any]) -> tuple[int, ...]:
            return tuple(entry(size) if callable(entry) else entry for entry, size in zip(entries, sizes, strict=True))

        part = g.build("slice", g.input(*sizes), start=known(start), stop=known(stop), step=known(step))
        return [part, g.build("sum", part, dimensions=(0, 1), keep=False)]

    return case


def all_of(size: int) -> int:
    return size


def pad(low: int, high: int) -> Case:
    def case(g: Draft, n: int, m: int) -> Sequence[Value]:
        padded = g.build("pad", g.input(n, m + 1), low=(0, low), high=(0, high), value=2.0)
        return [padded, g.build("sum", padded, dimensions=(1,), keep=False)]

    return case


def concat(g: Draft, n: int, m: int) -> Sequence[Value]:
    found = [
        g.build("concat", g.input(n, m), g.input(n, m), dimension=1),
        g.build("concat", g.input(n, m), g.input(3, m), g.input(n, m), dimension=0),
        g.build("concat", g.input(n, 2), g.input(n, m), dimension=1),
        g.build("concat", g.input(n, m), dimension=1),
    ]
    return [*found, *(g.build("sum", one, dimensions=(0,), keep=False) for one in found)]


def reverse(g: Draft, n: int, m: int) -> Sequence[Value]:
    return [g.build("reverse", g.input(n, m, 3), dimensions=dimensions) for dimensions in ((0,), (0, 2), (0, 1))]


def take(g: Draft, n: int, m: int) -> Sequence[Value]:
    return [
        g.build("take", g.input(m, 3), g.places(n, below=m), dimension=0),
        g.build("take", g.input(2, n, m), g.places(3, below=m), dimension=2),
    ]


def gather(g: Draft, n: int, m: int) -> Sequence[Value]:
    return [
        g.build("gather", g.input(n, m), g.places(n, 3, below=m), dimension=1),
        g.build("gather", g.input(m, 3), g.places(n, 3, below=m), dimension=0),
    ]


def scatter(g: Draft, n: int, m: int) -> Sequence[Value]:
    places = g.build("iota", shape=(2, 3), dimension=0, dtype=torch.int64)
    return [g.build("scatter", g.input(m + 2, 3), places, g.input(2, 3), dimension=0)]


def scatter_some(g: Draft, n: int, m: int) -> Sequence[Value]:
    rows, columns = g.build("iota", shape=(n, 3), dimension=0, dtype=torch.int64), g.places(2, n, below=5)
    return [
        g.build("scatter", g.input(n, 3), rows, g.input(n, 3), dimension=0),
        g.build("scatter", g.input(n + m, 3), rows, g.input(n, 3), dimension=0),
        g.build("scatter", g.input(2, 5), columns, g.build("expand", g.input(2, 1), shape=(2, n)), dimension=1),
    ]


def scatter_with(op: str) -> Case:
    def case(g: Draft, n: int, m: int) -> Sequence[Value]:
        return [g.build(op, g.input(m, 3), g.places(n, 3, below=m), g.input(n, 3), dimension=0)]

    return case


WINDOW = {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
PLAIN = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
POOL = {"kernel_size": (3, 3), "stride": (2, 2), "padding": (1, 1)}
MAX_POOL = {**POOL, "dilation": (1, 1), "ceil_mode": False}
MEAN_POOL = {"kernel_size": (2, 2), "stride": (2, 2), "padding": (0, 0), "ceil_mode": False}


def convolution(g: Draft, n: int, m: int) -> Sequence[Value]:
    weight = g.input(4, 3, 3, 3)
    return [
        g.build("convolution", g.input(n, 3, m + 2, 9), weight, **WINDOW),
        g.build("convolution", g.input(2, 3, n + 2, m + 2), weight, **{**WINDOW, "padding": (0, 0)}),
    ]


def convolutions_in_turn(g: Draft, n: int, m: int) -> Sequence[Value]:
    """Images that only kernels see, between one window and the next; wide and narrow enough for each way."""
    first = g.build("convolution", g.input(1, 16, n + 2, m + 2), g.input(16, 16, 3, 3), **PLAIN)
    bent = g.build("tanh", first)
    second = g.build("convolution", bent, g.input(8, 16, 3, 3), **{**PLAIN, "stride": (2, 2)})
    alone = g.build("convolution", bent, g.input(16, 1, 3, 3), **{**PLAIN, "groups": 16})
    wide = g.build("convolution", bent, g.input(16, 16, 3, 3), **{**PLAIN, "dilation": (2, 2), "padding": (2, 2)})
    one = g.build("convolution", bent, g.input(4, 16, 1, 1), **{**PLAIN, "stride": (2, 2), "padding": (0, 0)})
    largest, _ = g.items(g.build("max_pool", bent, **MAX_POOL))
    both = g.build("add", g.build("add", wide, first), alone)
    return [second, one, largest, both]


def convolutions_of_many(g: Draft, n: int, m: int) -> Sequence[Value]:
    """Blocks of one pixel of several images, whose windows see much of what is outside."""
    wide = {**PLAIN, "padding": (4, 1)}
    first = g.build("convolution", g.input(n, 16, m, 3), g.input(16, 16, 5, 3), **wide)
    return [g.build("convolution", g.build("tanh", first), g.input(8, 16, 5, 3), **wide)]


def input_gradient(g: Draft, n: int, m: int) -> Sequence[Value]:
    shape = (n, 3, m + 2, 9)
    weight = g.input(4, 3, 3, 3)
    return [g.build("convolution_input_gradient", g.input(n, 4, m + 2, 9), weight, shape=shape, **PLAIN)]


def weight_gradient(g: Draft, n: int, m: int) -> Sequence[Value]:
    given = (g.input(n, 3, m + 2, 9), g.input(n, 4, m + 2, 9))
    return [g.build("convolution_weight_gradient", *given, shape=(4, 3, 3, 3), **PLAIN)]


def max_pool(g: Draft, n: int, m: int) -> Sequence[Value]:
    largest, _ = g.items(g.build("max_pool", g.input(n, 3, m + 2, 8), **MAX_POOL))
    return [largest, *g.items(g.build("max_pool", g.input(n, m + 2 - m, 6, 8), **MAX_POOL))]


def max_pool_gradient(g: Draft, n: int, m: int) -> Sequence[Value]:
    image = g.input(n, 3, m + 2, 8)
    whole = g.build("max_pool", image, **MAX_POOL)
    largest, places = g.items(whole)
    gradient = g.build("exp", largest)
    return [g.build("max_pool_gradient", gradient, image, places, **MAX_POOL)]


def average_pool(g: Draft, n: int, m: int) -> Sequence[Value]:
    whole = {**MEAN_POOL, "count_include_pad": True, "divisor_override": None}
    padded = {**POOL, "ceil_mode": False, "count_include_pad": True, "divisor_override": None}
    image = g.input(n, 3, m + 2, 8)
    return [g.build("average_pool", image, **given) for given in (whole, padded)]


def average_pool_gradient(g: Draft, n: int, m: int) -> Sequence[Value]:
    given = {**MEAN_POOL, "count_include_pad": True, "divisor_override": None}
    image = g.input(n, 3, m + 2, 8)
    gradient = g.build("exp", g.build("average_pool", image, **given))
    return [g.build("average_pool_gradient", gradient, image, **given)]


BOOLS = torch.bool
CASES: dict[str, dict[str, Case]] = {
    "elementwise": {"select": elementwise, "cast": cast},
    "expand": {"behind": expand, "in front": expand_in_front},
    "permute": {"three": permute},
    "reshape": {"merged": merge, "merged of repeated": merge_repeated, "taken apart": take_apart},
    "iota": {"along": iota},
    **{op: {"some": reduction(op), "merged": of_merged(op)} for op in ("sum", "prod", "min", "max")},
    **{op: {"some": reduction(op, BOOLS)} for op in ("any", "all")},
    **{op: {"some": position(op)} for op in ("argmax", "argmin")},
    "top_places": {"one": top_places},
    "recurrent": {
        "lstm": recurrent("lstm"),
        "gru from behind": recurrent("gru", reverse=True),
        "plain": recurrent("rnn_tanh"),
    },
    "matmul": {"some": matmul},
    "attention": {
        "plain": attention(-math.inf),
        "causal": attention(-math.inf, causal=True),
        "truth": attention(-math.inf, masked=BOOLS),
        "numbers": attention(-math.inf, masked=torch.float32),
        "crossed": cross_attention,
    },
    "attention_gradient": {"plain": attention_gradient},
    "slice": {
        "in the middle": sliced((0, 1), (all_of, 3), (1, 1)),
        "all but the first": sliced((0, 1), (all_of, all_of), (1, 1)),
        "every second": sliced((0, 0), (all_of, all_of), (1, 2)),
        "the last": sliced((0, lambda size: size - 1), (all_of, all_of), (1, 1)),
        "the second half": sliced((0, lambda size: size // 2), (all_of, all_of), (1, 1)),
        "the first half": sliced((0, 0), (all_of, lambda size: size // 2), (1, 1)),
    },
    "pad": {"both": pad(1, 2), "in front": pad(2, 0)},
    "concat": {"some": concat},
    "reverse": {"some": reverse},
    "take": {"some": take, "resampled": resampled},
    "gather": {"some": gather},
    "scatter": {"fixed": scatter, "some": scatter_some},
    **{op: {"some": scatter_with(op)} for op in ("scatter_add", "scatter_mul", "scatter_min", "scatter_max")},
    "convolution": {"some": convolution, "in turn": convolutions_in_turn, "of many": convolutions_of_many},
    "convolution_input_gradient": {"some": input_gradient},
    "convolution_weight_gradient": {"some": weight_gradient},
    "max_pool": {"some": max_pool},
    "max_pool_gradient": {"some": max_pool_gradient},
    "average_pool": {"some": average_pool},
    "average_pool_gradient": {"some": average_pool_gradient},
    "item": {"of a pooling": max_pool},
}
