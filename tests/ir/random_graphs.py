"""Random valid Graphs with hypothesis, for any test that takes a Graph: `@given(graphs())`, `random_inputs(graph)`.

Every Graph verifies and runs: small ops of every kind, library calls, updates of views, items, numbers, constants of
odd layouts, writes into inputs and results that are views. `graphs(calls=False)` leaves out library calls and updates.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import torch
from hypothesis import strategies as st

from weft.errors import UsageError
from weft.ir.graph import Graph, Place, Result, Value, Write
from weft.ir.library import HOLE, Call, Operand, ViewStep, WrittenArgument, WrittenPlace
from weft.ir.ops import OPS, build
from weft.ir.types import NumberType, TensorType, TupleType, Type, contiguous, row_major

DTYPES = (
    torch.float32,
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
)
EXTENTS = st.sampled_from([0, 1, 1, 2, 3, 4])
SHAPES = st.lists(EXTENTS, max_size=3).map(tuple)
NAMES = st.sampled_from(["x", "y", "weight", "fc1.weight", "", "0", "it's", "x"])
PLACES = st.sampled_from([None, Place("net.py", 3), Place("/a b/n#t.py", 12, "forward"), Place('"', 1, "<lambda> x")])
UNARY = [op.name for op in OPS.values() if op.elementwise and op.arity == 1 and op.name != "cast"]
BINARY = [op.name for op in OPS.values() if op.elementwise and op.arity == 2]
# Dividing integers by zero stops a program; shifting by more than the width is undefined in C++.
UNSAFE_FOR_INTEGERS = {"floor_div", "remainder", "fmod", "shift_left", "shift_right", "pow"}
REDUCTIONS = ["sum", "prod", "min", "max", "any", "all"]
Draw = Callable[..., object]
Pool = list[Value]


def tensors(pool: Pool, accept: Callable[[TensorType], bool] = lambda _: True) -> Pool:
    return [value for value in pool if isinstance(value.type, TensorType) and accept(value.type)]


def pick(draw: Draw, pool: Pool, accept: Callable[[TensorType], bool] = lambda _: True) -> Value | None:
    found = tensors(pool, accept)
    return draw(st.sampled_from(found)) if found else None


def attempt(op: str, *operands: Value, **attributes: object) -> list[Value]:
    """One value, or none where the op does not take such operands."""
    try:
        return [build(op, *operands, **attributes)]
    except UsageError:
        return []


def unary(draw: Draw, pool: Pool) -> Pool:
    value = pick(draw, pool)
    return attempt(draw(st.sampled_from(UNARY)), value) if value else []


def alike(draw: Draw, pool: Pool) -> tuple[Value, Value] | None:
    left = pick(draw, pool)
    if left is None:
        return None
    right = pick(draw, pool, lambda kind: (kind.dtype, kind.shape) == (left.type.dtype, left.type.shape))
    return left, right


def binary(draw: Draw, pool: Pool) -> Pool:
    pair = alike(draw, pool)
    op = draw(st.sampled_from(BINARY))
    if pair is None or (op in UNSAFE_FOR_INTEGERS and not pair[0].type.dtype.is_floating_point):
        return []
    return attempt(op, *pair)


def select(draw: Draw, pool: Pool) -> Pool:
    pair = alike(draw, pool)
    if pair is None:
        return []
    condition = pick(draw, pool, lambda kind: kind.dtype == torch.bool and kind.shape == pair[0].type.shape)
    return attempt("select", condition, *pair) if condition else []


def cast(draw: Draw, pool: Pool) -> Pool:
    # Casting NaN or a large float to an integer is undefined in C++, so only between floats, and from integers.
    value = pick(draw, pool)
    to = draw(st.sampled_from([torch.float32, torch.float64, torch.bool]))
    return attempt("cast", value, dtype=to) if value else []


def reduce(draw: Draw, pool: Pool) -> Pool:
    value = pick(draw, pool)
    if value is None:
        return []
    dimensions = tuple(d for d in range(value.type.rank) if draw(st.booleans()))
    return attempt(draw(st.sampled_from(REDUCTIONS)), value, dimensions=dimensions, keep=draw(st.booleans()))


def extreme(draw: Draw, pool: Pool) -> Pool:
    value = pick(draw, pool)
    if value is None:
        return []
    dimension = draw(st.sampled_from([None, *range(value.type.rank)]))
    return attempt(draw(st.sampled_from(["argmax", "argmin"])), value, dimension=dimension, keep=draw(st.booleans()))


def move(draw: Draw, pool: Pool) -> Pool:
    value = pick(draw, pool)
    if value is None:
        return []
    shape = value.type.shape
    kind = draw(st.sampled_from(["reshape", "permute", "expand", "slice", "pad", "reverse", "concat"]))
    if kind == "reshape":
        return attempt("reshape", value, shape=draw(st.sampled_from([(value.type.size,), (*shape, 1), (1, *shape)])))
    if kind == "permute":
        return attempt("permute", value, order=tuple(draw(st.permutations(range(len(shape))))))
    if kind == "expand":
        wider = tuple(draw(st.integers(0, 3)) if extent == 1 else extent for extent in shape)
        return attempt("expand", value, shape=(*draw(st.sampled_from([(), (2,)])), *wider))
    if kind == "slice":
        starts = tuple(draw(st.integers(0, extent)) for extent in shape)
        stops = tuple(draw(st.integers(start, extent)) for start, extent in zip(starts, shape, strict=True))
        return attempt("slice", value, start=starts, stop=stops, step=tuple(draw(st.integers(1, 2)) for _ in shape))
    if kind == "pad":
        counts = [tuple(draw(st.integers(0, 2)) for _ in shape) for _ in range(2)]
        return attempt("pad", value, low=counts[0], high=counts[1], value=draw(st.sampled_from([0, 1, True])))
    if kind == "reverse":
        return attempt("reverse", value, dimensions=tuple(d for d in range(len(shape)) if draw(st.booleans())))
    return attempt("concat", value, value, value, dimension=draw(st.integers(0, 2)))


def take(draw: Draw, pool: Pool) -> Pool:
    value = pick(draw, pool, lambda kind: kind.rank > 0 and 0 not in kind.shape)
    if value is None:
        return []
    index = Value("constant", (), contiguous(torch.int64, (2,)), MappingProxyType({"tensor": torch.tensor([0, 0])}))
    return [index, *attempt("take", value, index, dimension=draw(st.integers(0, value.type.rank - 1)))]


def product(draw: Draw, pool: Pool) -> Pool:
    left = pick(draw, pool, lambda kind: kind.rank >= 2)
    if left is None:
        return []
    order = (*range(left.type.rank - 2), left.type.rank - 1, left.type.rank - 2)
    turned = build("permute", left, order=order)
    return [turned, *attempt("matmul", left, turned)]


def attention(draw: Draw, pool: Pool) -> Pool:
    rows = pick(draw, pool, lambda kind: kind.rank >= 2 and kind.dtype in (torch.float32, torch.float64))
    if rows is None:
        return []
    given = {"scale": 1.0, "causal": draw(st.booleans()), "zeros": draw(st.booleans()), "hidden": float("-inf")}
    whole = attempt("attention", rows, rows, rows, **given)
    return [
        value
        for found in whole
        for value in (found, *(build("item", found, type=kind, index=i) for i, kind in enumerate(found.type.items)))
    ]


def constant(draw: Draw, pool: Pool) -> Pool:
    del pool
    shape, dtype = draw(SHAPES), draw(st.sampled_from(DTYPES))
    numbers = st.sampled_from([0, 1, 2, 3]) if not dtype.is_floating_point else st.floats(width=32)
    count = contiguous(dtype, shape).size
    tensor = torch.tensor([draw(numbers) for _ in range(count)], dtype=torch.float64).to(dtype).reshape(shape)
    tensor = tensor.transpose(0, -1) if tensor.dim() and draw(st.booleans()) else tensor
    kind = TensorType(dtype, tuple(tensor.shape), tuple(tensor.stride()))
    return [Value("constant", (), kind, MappingProxyType({"tensor": tensor}))]


def number(draw: Draw, pool: Pool) -> Pool:
    numbers = [value for value in pool if isinstance(value.type, NumberType)]
    if not numbers:
        return []
    value = draw(st.sampled_from(numbers))
    literal = draw(st.sampled_from([2, -1.5, float("inf"), -0.0]))
    kind = "float" if value.type.kind == "float" or isinstance(literal, float) else "int"
    given = MappingProxyType({"operator": draw(st.sampled_from(["add", "mul"])), "arguments": (Operand(0), literal)})
    summed = Value("number", (value,), NumberType(kind), given)
    return [summed, *attempt("scalar", value, dtype=torch.float32)]


def library_value(operands: tuple[Value, ...], kind: Type, call: Call, op: str = "library") -> Value:
    return Value(op, operands, kind, MappingProxyType({"call": call}))


def library(draw: Draw, pool: Pool) -> Pool:
    value = pick(
        draw, pool, lambda kind: kind.rank == 2 and kind.is_contiguous and kind.strides == row_major(kind.shape)
    )
    if value is None:
        return []
    (rows, columns), dtype = value.type.shape, value.type.dtype
    if draw(st.booleans()) or not rows:
        turned = TensorType(dtype, (columns, rows), (1, max(columns, 1)))
        return [library_value((value,), turned, Call("aten.t.default", (Operand(0),)))]
    sizes = (1, rows - 1)
    parts = tuple(TensorType(dtype, (size, columns), row_major((rows, columns))) for size in sizes)
    whole = library_value((value,), TupleType(parts), Call("aten.split_with_sizes.default", (Operand(0), sizes)))
    return [whole, *(Value("item", (whole,), part, MappingProxyType({"index": i})) for i, part in enumerate(parts))]


def update(draw: Draw, pool: Pool) -> Pool:
    pair = alike(
        draw, tensors(pool, lambda kind: kind.dtype == torch.float32 and kind.rank > 0 and 0 not in kind.shape)
    )
    if pair is None:
        return []
    base, other = pair
    step = ViewStep("aten.select.int", (HOLE, 0, draw(st.integers(0, base.type.shape[0] - 1))))
    path = (step,) if draw(st.booleans()) else ()
    if path:
        call = Call("aten.neg_.default", (WrittenArgument(0),), (), (WrittenPlace(0, path),))
        return [library_value((base,), base.type, call, "update")]
    call = Call("aten.add_.Tensor", (WrittenArgument(0), Operand(1)), (("alpha", 2),), (WrittenPlace(0),))
    return [library_value((base, other), base.type, call, "update")]


SMALL = (unary, binary, binary, select, cast, reduce, extreme, move, move, take, product, attention, constant, number)
CALLS = (library, update)


@st.composite
def graphs(draw: Draw, most_values: int = 10, *, calls: bool = True) -> Graph:
    """A valid Graph."""
    inputs = [draw_input(draw) for _ in range(draw(st.integers(1, 3)))]
    values: list[Value] = []
    recipes = st.sampled_from(SMALL + CALLS if calls else SMALL)
    for _ in range(draw(st.integers(0, most_values))):
        values += draw(recipes)(draw, [*inputs, *values])
    values = placed(values, draw(PLACES))
    targets = tensors(inputs, lambda kind: 0 not in kind.shape)
    writes = [write for target in targets if (write := draw_write(draw, target, [*inputs, *values]))]
    chosen = draw(st.lists(st.sampled_from(tensors([*inputs, *values]) or inputs), max_size=3))
    results = [draw_result(draw, value) for value in chosen]
    return Graph(draw(st.sampled_from(["net", "a b"])), tuple(inputs), tuple(values), tuple(results), tuple(writes))


def draw_input(draw: Draw) -> Value:
    if draw(st.integers(0, 5)) == 0:
        return Value("input", (), NumberType(draw(st.sampled_from(["int", "float"]))), name=draw(NAMES))
    shape = draw(SHAPES)
    kind = contiguous(draw(st.sampled_from(DTYPES)), shape)
    if len(shape) == 2 and 0 not in shape and draw(st.booleans()):
        kind = TensorType(kind.dtype, shape, (1, shape[0]))
    return Value("input", (), kind, name=draw(NAMES))


def placed(values: list[Value], place: Place | None) -> list[Value]:
    """The same values with a place each."""
    new: dict[Value, Value] = {}
    for value in values:
        operands = tuple(new.get(operand, operand) for operand in value.operands)
        new[value] = Value(value.op, operands, value.type, value.attributes, place)
    return list(new.values())


def draw_write(draw: Draw, target: Value, pool: Pool) -> Write | None:
    if draw(st.booleans()):
        return None
    kind = target.type
    source = pick(draw, pool, lambda other: (other.dtype, other.shape) == (kind.dtype, kind.shape))
    return Write(target, source) if source else None


def draw_result(draw: Draw, value: Value) -> Result:
    if isinstance(value.type, TensorType) and value.type.rank > 0 and draw(st.integers(0, 3)) == 0:
        return Result(value, (ViewStep("aten.unsqueeze.default", (HOLE, 0)), ViewStep("aten.squeeze.dim", (HOLE, 0))))
    return Result(value)


def random_inputs(graph: Graph, seed: int = 0) -> list[object]:
    """Inputs of the types that a Graph declares."""
    generator = torch.Generator().manual_seed(seed)
    return [random_input(value.type, generator) for value in graph.inputs]


def random_input(kind: Type, generator: torch.Generator) -> object:
    if isinstance(kind, NumberType):
        return 3 if kind.kind == "int" else 1.5
    assert isinstance(kind, TensorType)
    numbers = torch.randn(kind.shape, generator=generator, dtype=torch.float64) * 3
    numbers = numbers if kind.dtype.is_floating_point else numbers.abs().floor()
    result = torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype)
    return result.copy_(numbers.to(kind.dtype))
