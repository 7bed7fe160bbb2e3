"""Loop kernels against eager PyTorch: every op, dtype, layout, odd size and level of instructions."""

from collections.abc import Callable, Sequence

import pytest
import torch
from tests.codegen.kernel_runner import DTYPES, LEVELS, NAMES, call_kernel, compile_kernel, split, target_of

from weft.codegen.kernels.loop import emit_loop
from weft.plan.kernels.expression import Instruction, View, explicit_rounding
from weft.plan.kernels.loop import LoopExpression, LoopKernel, plan_loop

NAN, INFINITY = float("nan"), float("inf")
SIZES = (0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 4095, 4096, 4097)
SPECIAL = [0.0, -0.0, 1.0, -1.0, NAN, INFINITY, -INFINITY, 0.5, -0.5, 1.5, -1.5, 2.5, 1e-40, -1e-40, 3e38, 1e10, -7.25]


def view_of(tensor: torch.Tensor, sizes: Sequence[int]) -> View:
    expanded = tensor.expand(tuple(sizes))
    return View(NAMES[tensor.dtype], expanded.stride(), expanded.storage_offset())


def plan(
    inputs: Sequence[torch.Tensor],
    body: Sequence[Instruction],
    results: Sequence[int],
    outputs: Sequence[torch.Tensor],
    level: str = "native",
    *,
    in_place: tuple[tuple[int, int], ...] = (),
) -> LoopKernel:
    sizes = tuple(outputs[0].shape)
    rounded, numbers = explicit_rounding([NAMES[tensor.dtype] for tensor in inputs], body, results)
    views = tuple(view_of(tensor, sizes) for tensor in inputs)
    written = tuple(view_of(tensor, sizes) for tensor in outputs)
    return plan_loop(LoopExpression("kernel", sizes, written, views, rounded, numbers, in_place), target_of(level))


def run(kernel: LoopKernel, buffers: Sequence[torch.Tensor], level: str = "native", parts: int = 1) -> None:
    library = compile_kernel(emit_loop, kernel, target_of(level))
    call_kernel(library, kernel.name, buffers, split(kernel.tile_count, parts))


def compute(
    inputs: Sequence[torch.Tensor], body: Sequence[Instruction], dtype: torch.dtype, level: str = "native"
) -> torch.Tensor:
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in inputs))
    output = torch.full(shape, 77, dtype=dtype)
    kernel = plan(inputs, body, [len(inputs) + len(body) - 1], [output], level)
    run(kernel, [output, *inputs], level)
    return output


def one_op(op: str, inputs: Sequence[torch.Tensor], dtype: torch.dtype, level: str = "native") -> torch.Tensor:
    return compute(inputs, [Instruction(op, tuple(range(len(inputs))), NAMES[dtype])], dtype, level)


def many_ops(
    ops: Sequence[str], inputs: Sequence[torch.Tensor], dtype: torch.dtype, level: str
) -> dict[str, torch.Tensor]:
    """Compute several operations on the same operands by one kernel with an output for each."""
    outputs = [torch.full(inputs[0].shape, 77).to(dtype) for _ in ops]
    body = [Instruction(op, tuple(range(len(inputs))), NAMES[dtype]) for op in ops]
    kernel = plan(inputs, body, range(len(inputs), len(inputs) + len(ops)), outputs, level)
    run(kernel, [*outputs, *inputs], level)
    return dict(zip(ops, outputs, strict=True))


def check_ops(
    functions: dict[str, Callable[..., torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    dtype: torch.dtype,
    level: str,
) -> None:
    for op, got in many_ops(list(functions), inputs, dtype, level).items():
        expected = functions[op](*inputs)
        if op in LOOSE:
            torch.testing.assert_close(got, expected, equal_nan=True)
        else:
            same_bits(got, expected)


def same_bits(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    if got.is_floating_point():
        known = ~torch.isnan(expected)
        assert torch.equal(torch.signbit(got)[known], torch.signbit(expected)[known])


def numbers(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    if dtype.is_floating_point:
        values = torch.randn(count, generator=generator, dtype=torch.float64) * 3
        special = torch.tensor(SPECIAL, dtype=torch.float64)
        place = torch.randint(0, max(count, 1), (min(count, len(SPECIAL)),), generator=generator)
        values[place] = special[torch.randperm(len(SPECIAL), generator=generator)[: len(place)]]
        return values.to(dtype)
    info = torch.iinfo(dtype)
    values = torch.randint(-20 if info.min else 0, 20, (count,), generator=generator, dtype=torch.int64).to(dtype)
    if count > 4:
        values[0], values[1] = info.min, info.max
    return values


# Eager rounds these twice in short floats, and not to the nearest in float64.
LOOSE = ("sqrt", "rsqrt")
UNARY_FLOAT = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "relu": torch.relu, "floor": torch.floor,
    "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
}  # fmt: skip
BINARY_FLOAT = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "minimum": torch.minimum,
    "maximum": torch.maximum,
}  # fmt: skip
COMPARE = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}
LOGICAL = {"logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_xor": torch.logical_xor}
UNARY_INTEGER = {"neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "bitwise_not": torch.bitwise_not}
BINARY_INTEGER = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "minimum": torch.minimum, "maximum": torch.maximum,
    "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or, "bitwise_xor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift, "shift_right": torch.bitwise_right_shift,
}  # fmt: skip
DIVISIONS = {"fmod": torch.fmod, "remainder": torch.remainder, "floor_div": torch.floor_divide}
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_exact_operations_on_floats_equal_eager(dtype: torch.dtype, level: str) -> None:
    x, y = numbers(dtype, 301, 1), numbers(dtype, 301, 2)
    check_ops(UNARY_FLOAT, [x], dtype, level)
    check_ops(BINARY_FLOAT, [x, y], dtype, level)
    check_ops({**COMPARE, **LOGICAL}, [x, y], torch.bool, level)
    check_ops({"isnan": torch.isnan, "isinf": torch.isinf, "logical_not": torch.logical_not}, [x], torch.bool, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_divisions_of_floats_equal_eager(dtype: torch.dtype, level: str) -> None:
    x, y = numbers(dtype, 301, 1), numbers(dtype, 301, 2)
    y[y.abs() < 1e-30] = 0  # eager's own fmod is wrong for divisors below the normal range
    check_ops(DIVISIONS, [x, y], dtype, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_operations_on_integers_equal_eager(dtype: torch.dtype, level: str) -> None:
    x, y = numbers(dtype, 301, 1), numbers(dtype, 301, 2).flip(0)
    check_ops(UNARY_INTEGER, [x], dtype, level)
    check_ops(BINARY_INTEGER, [x, y], dtype, level)
    check_ops({"pow": torch.pow}, [x, y.clamp(0, 40)], dtype, level)
    check_ops(DIVISIONS, [x[2:], torch.where(y == 0, 3, y).to(dtype)[2:]], dtype, level)
    check_ops({**COMPARE, **LOGICAL}, [x, y], torch.bool, level)


@pytest.mark.parametrize("level", LEVELS)
def test_operations_on_truth_equal_eager(level: str) -> None:
    x, y = numbers(torch.bool, 67, 1), numbers(torch.bool, 67, 2)
    bits = {"bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or, "bitwise_xor": torch.bitwise_xor}
    extremes = {"minimum": torch.minimum, "maximum": torch.maximum}
    check_ops({**COMPARE, **LOGICAL, **bits, **extremes}, [x, y], torch.bool, level)
    check_ops({"logical_not": torch.logical_not, "bitwise_not": torch.bitwise_not}, [x], torch.bool, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("source", DTYPES)
def test_casts_equal_eager(source: str, level: str) -> None:
    x = numbers(DTYPES[source], 301, 3)
    if x.is_floating_point():
        x = torch.cat([x, torch.tensor([65519.0, 65520.0, 6e-8, 2e-8, 3e9, -3e9, 300.0, 255.5]).to(x.dtype)])
    outputs = [torch.zeros(x.shape, dtype=dtype) for dtype in DTYPES.values()]
    body = [Instruction("cast", (0,), name) for name in DTYPES]
    run(plan([x], body, range(1, len(body) + 1), outputs, level), [*outputs, x], level)
    for got in outputs:
        expected = x.to(got.dtype)
        if x.is_floating_point() and not got.is_floating_point():
            fits = x.double().abs() < 2.0**31  # what eager gives beyond depends on its own vector code
            got, expected = got[fits], expected[fits]
        same_bits(got, expected)


def test_floats_beyond_the_integers_give_the_smallest_integer() -> None:
    x = torch.tensor([NAN, INFINITY, -INFINITY, 1e20, -1e20])
    for dtype in (torch.int32, torch.int64):
        assert one_op("cast", [x], dtype).tolist() == [torch.iinfo(dtype).min] * 5


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_computed_and_nothing_beyond_is_touched(size: int, level: str) -> None:
    x, y = numbers(torch.float32, size, 1), numbers(torch.float32, size, 2)
    whole = torch.full((size + 64,), 77.0)
    output = whole[32 : 32 + size]
    body = [Instruction("mul", (0, 1), "f32"), Instruction("add", (2, 0), "f32")]
    run(plan([x, y], body, [3], [output], level), [output, x, y], level, parts=3)
    same_bits(output, x * y + x)
    assert (whole[:32] == 77).all()
    assert (whole[32 + size :] == 77).all()


LAYOUTS = {
    "transposed": lambda t: (t(70, 33).t(), t(33, 70)),
    "both transposed": lambda t: (t(70, 33).t(), t(70, 33).t()),
    "row broadcast": lambda t: (t(33, 70), t(70)),
    "column broadcast": lambda t: (t(33, 70), t(33, 1)),
    "scalar broadcast": lambda t: (t(33, 70), t(1)),
    "outer": lambda t: (t(33, 1), t(1, 70)),
    "every second": lambda t: (t(33, 140)[:, ::2], t(66, 70)[::2]),
    "channels": lambda t: (t(3, 5, 7, 9), t(5, 1, 1)),
    "channels last": lambda t: (t(3, 5, 7, 9).contiguous(memory_format=torch.channels_last), t(3, 5, 7, 9)),
    "permuted": lambda t: (t(4, 5, 6, 7).permute(2, 0, 3, 1), t(6, 4, 7, 5)),
    "narrow": lambda t: (t(500, 3), t(3)),
    "empty": lambda t: (t(5, 0, 3), t(5, 1, 3)),
    "shifted": lambda t: (t(100)[7:80], t(100)[9:82]),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "i64", "u8", "bool"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_equals_eager(layout: str, dtype: str, level: str) -> None:
    seeds = iter(range(10))

    def tensor(*shape: int) -> torch.Tensor:
        return numbers(DTYPES[dtype], torch.Size(shape).numel(), next(seeds)).reshape(shape)

    x, y = LAYOUTS[layout](tensor)
    same_bits(one_op("maximum", [x, y], DTYPES[dtype], level), torch.maximum(x, y))


@pytest.mark.parametrize("level", LEVELS)
def test_outputs_may_have_any_layout(level: str) -> None:
    x = numbers(torch.float32, 33 * 70).reshape(33, 70)
    first, second = torch.zeros(70, 33).t(), torch.zeros(33, 140)[:, ::2]
    body = [Instruction("neg", (0,), "f32"), Instruction("abs", (0,), "f32")]
    run(plan([x], body, [1, 2], [first, second], level), [first, second, x], level)
    same_bits(first, -x)
    same_bits(second, x.abs())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "u8", "bool"])
@pytest.mark.parametrize("shape", [(16, 16), (3, 70, 133), (2, 65, 64), (17, 200)])
def test_inputs_that_run_across_the_output_are_turned(shape: tuple[int, ...], dtype: str, level: str) -> None:
    x = numbers(DTYPES[dtype], torch.Size(shape).numel()).reshape(*shape[:-2], shape[-1], shape[-2]).mT
    y = numbers(DTYPES[dtype], torch.Size(shape).numel(), 1).reshape(shape)
    output = torch.zeros(shape, dtype=DTYPES[dtype])
    kernel = plan([x, y], [Instruction("maximum", (0, 1), dtype)], [2], [output], level)
    assert kernel.schedule.transposed == (0,)
    run(kernel, [output, x, y], level, parts=4)
    same_bits(output, torch.maximum(x, y))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(2, 5, 40, 3), (1, 3, 33, 2), (70, 4), (2, 17, 4), (1, 31, 16, 3), (3, 7, 3)])
def test_planes_are_interleaved_to_pixels_of_few_channels(
    shape: tuple[int, ...], dtype: torch.dtype, level: str
) -> None:
    planes = (torch.randn(*shape[:-2], shape[-1], shape[-2]) * 50).to(dtype).movedim(-2, -1)
    one_each, whole = torch.randn(shape[-1]), torch.full((*shape[:-2], shape[-2] + 1, shape[-1]), 77.0)
    output = whole[..., 1:, :]  # the pixels of a padded image
    body = [Instruction("cast", (0,), "f32"), Instruction("mul", (2, 1), "f32")]
    kernel = plan([planes, one_each], body, [3], [output], level)
    for parts in (1, 2, kernel.tile_count):
        whole.fill_(77)
        library = compile_kernel(emit_loop, kernel, target_of(level))
        call_kernel(library, kernel.name, [whole.flatten(), planes, one_each], split(kernel.tile_count, parts))
        assert torch.equal(output, planes.float() * one_each)
        assert (whole[..., 0, :] == 77).all()


def test_planes_of_many_pixels_are_interleaved() -> None:
    planes, output = torch.randn(3, 64).t(), torch.empty(64, 3)
    assert plan([planes], [], [0], [output]).schedule.interleaved


@pytest.mark.parametrize("level", LEVELS)
def test_constants_and_positions(level: str) -> None:
    output, rows = torch.zeros(7, 19), torch.zeros(7, 19, dtype=torch.int32)
    body = [
        Instruction("iota", (), "i64", (100, 1, 5)),
        Instruction("cast", (0,), "f32"),
        Instruction("constant", (), "f32", (0.5,)),
        Instruction("mul", (1, 2), "f32"),
        Instruction("iota", (), "i32", (1, 0, 0)),
    ]
    run(plan([], body, [3, 4], [output, rows], level), [output, rows], level)
    expected = torch.arange(7)[:, None].expand(7, 19)
    same_bits(output, (expected * 100 + torch.arange(19) + 5).float() * 0.5)
    same_bits(rows, expected.int())


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_constants_of_short_floats_are_rounded_as_eager_does(dtype: str) -> None:
    for value in (0.1, 1 / 3, 65504.0, -1e-8, NAN, -INFINITY, 3.0):
        output = torch.zeros(3, dtype=DTYPES[dtype])
        run(plan([], [Instruction("constant", (), dtype, (value,))], [0], [output]), [output])
        same_bits(output, torch.full((3,), value, dtype=DTYPES[dtype]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "bool"])
@pytest.mark.parametrize("width", [1, 5, 64, 77])
def test_rows_of_a_table_are_taken_by_their_numbers(width: int, dtype: str, level: str) -> None:
    table = numbers(DTYPES[dtype], 50 * width).reshape(50, width)
    index = torch.randint(0, 50, (9, 4))
    output = torch.zeros(9, 4, width, dtype=DTYPES[dtype])
    body = (
        Instruction("constant", (), "i64", (width,)),
        Instruction("mul", (0, 1), "i64"),
        Instruction("take", (2,), dtype, (0, 0, 0, 1, 0)),
    )
    views = (view_of(index[:, :, None], output.shape),)
    loop = LoopExpression("kernel", (9, 4, width), (view_of(output, output.shape),), views, body, (3,), (), (dtype,))
    run(plan_loop(loop, target_of(level)), [output, index, table], level, parts=2)
    same_bits(output, table[index])


@pytest.mark.parametrize("level", LEVELS)
def test_elements_of_a_table_are_gathered(level: str) -> None:
    table, index = numbers(torch.float32, 30 * 41).reshape(30, 41), torch.randint(0, 30, (7, 41))
    output = torch.zeros(7, 41)
    body = (
        Instruction("constant", (), "i64", (41,)),
        Instruction("mul", (0, 1), "i64"),
        Instruction("take", (2,), "f32", (0, 0, 1, 0)),
        Instruction("neg", (3,), "f32"),
    )
    views = (view_of(index, output.shape),)
    loop = LoopExpression("kernel", (7, 41), (view_of(output, output.shape),), views, body, (4,), (), ("f32",))
    run(plan_loop(loop, target_of(level)), [output, index, table], level)
    same_bits(output, -torch.gather(table, 0, index))


def test_an_input_may_be_written_in_place() -> None:
    x, y = numbers(torch.float32, 1000), numbers(torch.float32, 1000, 1)
    expected = x * y
    kernel = plan([x, y], [Instruction("mul", (0, 1), "f32")], [2], [x], in_place=((0, 0),))
    run(kernel, [x, x, y], parts=4)
    same_bits(x, expected)


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_the_bits_do_not_depend_on_how_tiles_are_shared_out(parts: int) -> None:
    x = torch.randn(300, 333)
    body = [Instruction("exp", (0,), "f32"), Instruction("tanh", (1,), "f32"), Instruction("sin", (2,), "f32")]
    whole, shared = torch.zeros(300, 333), torch.zeros(300, 333)
    kernel = plan([x], body, [3], [whole])
    assert kernel.tile_count > 1
    run(kernel, [whole, x])
    run(kernel, [shared, x], parts=parts)
    assert torch.equal(whole, shared)


def test_select_follows_its_condition() -> None:
    x, y = numbers(torch.float32, 100, 1), numbers(torch.float32, 100, 2)
    body = [Instruction("gt", (0, 1), "bool"), Instruction("select", (2, 0, 1), "f32")]
    same_bits(compute([x, y], body, torch.float32), torch.where(x > y, x, y))


def test_an_op_of_a_short_float_is_computed_in_f32_and_rounded() -> None:
    body, results = explicit_rounding(["bf16", "bf16"], [Instruction("add", (0, 1), "bf16")], [2])
    assert [line.op for line in body] == ["cast", "cast", "add", "cast"]
    assert results == (5,)
