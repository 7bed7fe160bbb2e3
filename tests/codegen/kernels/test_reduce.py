"""Row kernels against eager PyTorch: every kind, dtype, layout, odd size and level of instructions."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.kernel_runner import DTYPES, LEVELS, NAMES, call_kernel, compile_kernel, split, target_of

from weft.codegen.kernels.reduce import emit_reduce
from weft.plan.fuse.split_reductions import plan_reduction
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.reduce import Finish, Reduction, RowExpression, RowKernel, RowPass, Stage, Store, plan_rows

NAN, INFINITY = float("nan"), float("inf")
SIZES = (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 255, 257, 1023, 1025, 4095, 4096, 4097)


def view_of(tensor: torch.Tensor, rows: Sequence[int], columns: Sequence[int]) -> View:
    expanded = tensor.expand(*rows, *columns)
    return View(NAMES[tensor.dtype], expanded.stride(), expanded.storage_offset())


def row_kernel(
    buffers: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
    sizes: tuple[tuple[int, ...], tuple[int, ...]],
    stages: Sequence[Stage],
    level: str = "native",
) -> RowKernel:
    outputs, inputs = ([view_of(tensor, *sizes) for tensor in tensors] for tensors in buffers)
    expression = RowExpression("kernel", *sizes, tuple(outputs), tuple(inputs), tuple(stages))
    return plan_rows(expression, target_of(level))


def run(kernel: RowKernel, buffers: Sequence[torch.Tensor], level: str = "native", parts: int = 1) -> None:
    library = compile_kernel(emit_reduce, kernel, target_of(level))
    call_kernel(library, kernel.name, buffers, split(kernel.tile_count, parts))


def reduced(kind: str, x: torch.Tensor, dims: Sequence[int], level: str = "native", parts: int = 1) -> torch.Tensor:
    """Reduce some dimensions of a tensor, widened to the dtype PyTorch accumulates in."""
    dims = [dim % x.dim() for dim in dims]
    kept = [dim for dim in range(x.dim()) if dim not in dims]
    moved = x.permute(*kept, *dims)
    rows, columns = tuple(moved.shape[: len(kept)]), tuple(moved.shape[len(kept) :])
    result = torch.int64 if kind.startswith("arg") else x.dtype
    output = torch.full((*rows, *[1] * len(columns)), 77).to(result)
    short = x.dtype in (torch.float16, torch.bfloat16)
    # Values: the input, the output, then what the pass makes.
    body = (Instruction("cast", (0,), "f32"),) if short else ()
    stages: list[Stage] = [RowPass(body, (Reduction(kind, 2 if short else 0),))]
    last = 2
    finish = (Instruction("cast", (2,), NAMES[x.dtype]),) if short and result == x.dtype else ()
    stages.append(Finish(finish, (), (Store(0, 3 if finish else last),)))
    kernel = row_kernel(([output], [moved]), (rows, columns), stages, level)
    run(kernel, [output, x], level, parts)
    return output.reshape(rows)


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.9
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


def as_exact_as_eager(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """The design's measure: at most twice eager's error, plus a few units in the last place."""
    assert got.shape == eager.shape
    size = exact.abs().max().item() if exact.numel() else 0.0
    allowed = 2 * (eager.double() - exact).abs().max().item() if exact.numel() else 0.0
    apart = (got.double() - exact).abs().max().item() if exact.numel() else 0.0
    assert apart <= allowed + 4 * torch.finfo(got.dtype).eps * size


EAGER = {
    "max": torch.amax, "min": torch.amin, "any": torch.any, "all": torch.all, "argmax": torch.argmax,
    "argmin": torch.argmin, "prod": torch.prod,
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES)
def test_sums_of_rows_of_every_size_are_as_exact_as_eager(size: int, level: str) -> None:
    x = numbers(torch.float32, 5, size)
    as_exact_as_eager(reduced("sum", x, [1], level), x.sum(1), x.double().sum(1))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES)
def test_sums_of_columns_of_every_size_are_as_exact_as_eager(size: int, level: str) -> None:
    x = numbers(torch.float32, 67, size)
    as_exact_as_eager(reduced("sum", x, [0], level), x.sum(0), x.double().sum(0))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", [1, 3, 16, 17, 65, 257])
@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
def test_extremes_equal_eager(kind: str, size: int, level: str) -> None:
    x = numbers(torch.float32, 9, size).round()  # with ties
    for dims in ([0], [1]):
        assert torch.equal(reduced(kind, x, dims, level), EAGER[kind](x, dims[0]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
def test_extremes_of_what_is_no_number_equal_eager(kind: str, level: str) -> None:
    x = numbers(torch.float32, 40, 100)
    x[3, 50], x[4, 99], x[5, 0], x[6] = NAN, NAN, NAN, NAN
    x[7, 20], x[7, 80], x[8], x[9] = INFINITY, INFINITY, -INFINITY, INFINITY
    for dims in ([0], [1]):
        torch.testing.assert_close(reduced(kind, x, dims, level), EAGER[kind](x, dims[0]), equal_nan=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64", "u8"])
def test_reductions_of_integers_equal_eager(dtype: str, level: str) -> None:
    x = numbers(DTYPES[dtype], 21, 75)
    for dims in ([0], [1]):
        for kind in ("max", "min", "argmax", "argmin"):
            assert torch.equal(reduced(kind, x, dims, level), EAGER[kind](x, dims[0]))
        assert torch.equal(reduced("sum", x, dims, level), x.sum(dims[0], dtype=x.dtype))
        assert torch.equal(reduced("prod", x, dims, level), x.prod(dims[0], dtype=x.dtype))


@pytest.mark.parametrize("level", LEVELS)
def test_any_and_all_equal_eager(level: str) -> None:
    x = numbers(torch.bool, 21, 75)
    x[3], x[4] = False, True
    for dims in ([0], [1]):
        for kind in ("any", "all", "max", "min"):
            expected = {"max": torch.any, "min": torch.all}.get(kind, EAGER[kind])(x, dims[0])
            assert torch.equal(reduced(kind, x, dims, level), expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
def test_sums_in_other_floats_are_as_exact_as_eager(dtype: str, level: str) -> None:
    x = numbers(DTYPES[dtype], 33, 517)
    for dims in ([0], [1]):
        as_exact_as_eager(reduced("sum", x, dims, level), x.sum(dims[0]), x.double().sum(dims[0]))


LAYOUTS = {
    "inner two": (lambda: numbers(torch.float32, 4, 5, 6, 7), [2, 3]),
    "outer and inner": (lambda: numbers(torch.float32, 40, 5, 6, 7), [0, 2, 3]),
    "channels last": (lambda: numbers(torch.float32, 4, 5, 6, 7).contiguous(memory_format=torch.channels_last), [1, 2]),
    "channels of channels last": (
        lambda: numbers(torch.float32, 4, 33, 6, 7).contiguous(memory_format=torch.channels_last),
        [0, 2, 3],
    ),
    "middle": (lambda: numbers(torch.float32, 7, 45, 19), [1]),
    "transposed": (lambda: numbers(torch.float32, 45, 70).t(), [1]),
    "transposed columns": (lambda: numbers(torch.float32, 45, 70).t(), [0]),
    "every second": (lambda: numbers(torch.float32, 45, 140)[:, ::2], [1]),
    "all": (lambda: numbers(torch.float32, 45, 7, 3), [0, 1, 2]),
    "broadcast": (lambda: numbers(torch.float32, 1, 17).expand(20, 17), [0]),
    "of many rows": (lambda: numbers(torch.float32, 3000, 3), [1]),
    "apart": (lambda: numbers(torch.float32, 5, 6, 7, 8), [0, 2]),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_equals_eager(layout: str, level: str) -> None:
    make, dims = LAYOUTS[layout]
    x = make()
    assert torch.equal(reduced("max", x, dims, level, parts=2), x.amax(dims))
    as_exact_as_eager(reduced("sum", x, dims, level, parts=2), x.sum(dims), x.double().sum(dims))


def test_nothing_is_reduced_to_the_start() -> None:
    x = torch.zeros(5, 0)
    assert torch.equal(reduced("sum", x, [1]), torch.zeros(5))
    assert torch.equal(reduced("prod", x, [1]), torch.ones(5))
    assert reduced("sum", x, [0]).shape == (0,)
    assert torch.equal(reduced("all", x.bool(), [1]), torch.ones(5).bool())


def test_a_long_sum_stays_exact() -> None:
    x = torch.rand(1, 1 << 20)
    exact = x.double().sum()
    assert abs(reduced("sum", x, [1]).double().item() - exact) <= 2e-7 * exact
    column = x.reshape(-1, 1)[:, [0, 0]]
    assert abs(reduced("sum", column, [0])[0].double().item() - column.double()[:, 0].sum()) < 2e-7 * (1 << 20)


def softmax_stages(*, logarithm: bool) -> list[Stage]:
    # Values: input 0, output 1, the maximum 2, the sum 3.
    shifted = Instruction("sub", (0, 2), "f32")
    if logarithm:
        return [
            RowPass((), (Reduction("max", 0),)),
            RowPass((shifted, Instruction("exp", (3,), "f32")), (Reduction("sum", 4),)),
            Finish((Instruction("log", (3,), "f32"),), (4,)),
            RowPass((shifted, Instruction("sub", (5, 4), "f32")), (), (Store(0, 6),)),
        ]
    return [
        RowPass((), (Reduction("max", 0),)),
        RowPass((shifted, Instruction("exp", (3,), "f32")), (Reduction("sum", 4),), (Store(0, 4),)),
        RowPass((Instruction("div", (1, 3), "f32"),), (), (Store(0, 4),)),
    ]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(6, 1), (6, 10), (6, 17), (3, 1000), (5, 64)])
@pytest.mark.parametrize("logarithm", [False, True])
def test_softmax_over_rows_and_over_columns_is_as_exact_as_eager(
    logarithm: bool, shape: tuple[int, int], level: str
) -> None:
    function = torch.log_softmax if logarithm else torch.softmax
    for dim in (1, 0):
        x = numbers(torch.float32, *shape) * 5
        x[0, 0] = -INFINITY if not logarithm and 1 not in shape else x[0, 0]
        output = torch.zeros_like(x)
        moved, written = (x, output) if dim else (x.t(), output.t())
        sizes = ((moved.shape[0],), (moved.shape[1],))
        kernel = row_kernel(([written], [moved]), sizes, softmax_stages(logarithm=logarithm), level)
        run(kernel, [output, x], level)
        as_exact_as_eager(output, function(x, dim), function(x.double(), dim))


def test_softmax_may_write_over_its_input() -> None:
    x = numbers(torch.float32, 40, 333)
    expected = torch.softmax(x, 1)
    view = view_of(x, (40,), (333,))
    stages = tuple(softmax_stages(logarithm=False))
    kernel = plan_rows(RowExpression("kernel", (40,), (333,), (view,), (view,), stages, ((0, 0),)), target_of("native"))
    run(kernel, [x, x], parts=3)
    torch.testing.assert_close(x, expected)


def layer_norm_stages(size: int) -> list[Stage]:
    # Values: x 0, weight 1, bias 2, output 3, sum 4, mean 5, sum of squares 6, one over the deviation 7.
    return [
        RowPass((), (Reduction("sum", 0),)),
        Finish((Instruction("constant", (), "f32", (1 / size,)), Instruction("mul", (4, 5), "f32")), (6,)),
        RowPass((Instruction("sub", (0, 5), "f32"), Instruction("mul", (6, 6), "f32")), (Reduction("sum", 7),)),
        Finish(
            (
                Instruction("constant", (), "f32", (1 / size,)),
                Instruction("mul", (6, 7), "f32"),
                Instruction("constant", (), "f32", (1e-5,)),
                Instruction("add", (8, 9), "f32"),
                Instruction("rsqrt", (10,), "f32"),
            ),
            (11,),
        ),
        RowPass(
            (
                Instruction("sub", (0, 5), "f32"),
                Instruction("mul", (8, 7), "f32"),
                Instruction("mul", (9, 1), "f32"),
                Instruction("add", (10, 2), "f32"),
            ),
            (),
            (Store(0, 11),),
        ),
    ]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(7, 1), (7, 15), (7, 64), (5, 768), (3, 1025)])
def test_layer_norm_is_as_exact_as_eager(shape: tuple[int, int], level: str) -> None:
    x, weight, bias = numbers(torch.float32, *shape), numbers(torch.float32, shape[1]), numbers(torch.float32, shape[1])
    output = torch.zeros_like(x)
    kernel = row_kernel(([output], [x, weight, bias]), ((shape[0],), (shape[1],)), layer_norm_stages(shape[1]), level)
    run(kernel, [output, x, weight, bias], level, parts=2)
    norm = torch.nn.functional.layer_norm
    eager = norm(x, shape[1:], weight, bias)
    as_exact_as_eager(output, eager, norm(x.double(), shape[1:], weight.double(), bias.double()))


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_the_bits_do_not_depend_on_how_tiles_are_shared_out(parts: int) -> None:
    for shape, dims in (((64, 5000), [1]), ((500, 3000), [0])):
        x = numbers(torch.float32, *shape)
        assert torch.equal(reduced("sum", x, dims), reduced("sum", x, dims, parts=parts))


@pytest.mark.parametrize("level", LEVELS)
def test_positions_are_known_in_every_pass(level: str) -> None:
    """The sum over columns of x where the column is not after the row: a lower triangle."""
    x = numbers(torch.float32, 37, 70)
    body = (
        Instruction("iota", (), "i64", (1, 0, 0)),
        Instruction("iota", (), "i64", (0, 1, 0)),
        Instruction("le", (3, 2), "bool"),
        Instruction("constant", (), "f32", (0.0,)),
        Instruction("select", (4, 0, 5), "f32"),
    )
    stages = [RowPass(body, (Reduction("sum", 6),)), Finish((), (), (Store(0, 2),))]
    for moved, exact in ((x, x.double().tril().sum(1)), (x[:, :37].t(), x[:, :37].double().t().tril().sum(1))):
        output = torch.zeros(37, 1)
        kernel = row_kernel(([output], [moved]), ((37,), (moved.shape[1],)), stages, level)
        run(kernel, [output, x], level)
        torch.testing.assert_close(output[:, 0].double(), exact, rtol=1e-5, atol=1e-5)


def sum_of_squares(rows: tuple[int, ...], columns: tuple[int, ...], x: View, output: View) -> RowExpression:
    body = (Instruction("mul", (0, 0), "f32"),)
    finish = (Instruction("sqrt", (2,), "f32"),)
    stages = (RowPass(body, (Reduction("sum", 2), Reduction("max", 0))), Finish(finish, (), (Store(0, 4),)))
    return RowExpression("norm", rows, columns, (output,), (x,), stages)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape, dims", [((1, 300_001), [1]), ((70_001, 5), [0]), ((2, 400, 700), [1, 2])])
def test_few_long_rows_are_cut_into_chunks_that_any_number_of_lanes_may_share(
    shape: tuple[int, ...], dims: list[int], level: str
) -> None:
    x = numbers(torch.float32, *shape)
    kept = [dim for dim in range(x.dim()) if dim not in dims]
    moved = x.permute(*kept, *dims)
    rows, columns = tuple(moved.shape[: len(kept)]), tuple(moved.shape[len(kept) :])
    exact = x.double().square().sum(dims).sqrt()
    found = []
    for parts in (1, 3):
        output = torch.zeros(*rows, *[1] * len(columns))
        views = (view_of(moved, rows, columns), view_of(output, rows, columns))
        plan = plan_reduction(sum_of_squares(rows, columns, *views), target_of(level))
        assert len(plan.calls) > 1
        scratch = [torch.zeros(part.elements, dtype=DTYPES[part.dtype]) for part in plan.scratch]
        buffers = [output, x, *scratch]
        for call in plan.calls:
            run(call.kernel, [buffers[number] for number in call.buffers], level, parts)
        found.append(output.reshape(rows))
    assert torch.equal(*found)
    torch.testing.assert_close(found[0].double(), exact, rtol=3e-7, atol=0)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None)
@given(st.data())
def test_reductions_of_any_dimensions_of_any_layout_equal_eager(data: st.DataObject) -> None:
    sizes = st.sampled_from([1, 2, 3, 7, 16, 17, 33, 65])
    shape = data.draw(st.lists(sizes, min_size=1, max_size=4).filter(lambda found: torch.Size(found).numel() < 200_000))
    order = data.draw(st.permutations(range(len(shape))))
    dims = data.draw(st.lists(st.sampled_from(range(len(shape))), min_size=1, unique=True))
    kind = data.draw(st.sampled_from(["sum", "max", "min", "argmax"]))
    x = numbers(torch.float32, *shape, seed=data.draw(st.integers(0, 99))).permute(order)
    dims = dims[:1] if kind == "argmax" else dims
    level, parts = data.draw(st.sampled_from(LEVELS)), data.draw(st.integers(1, 3))
    got = reduced(kind, x, dims, level, parts)
    if kind == "sum":
        as_exact_as_eager(got, x.sum(dims), x.double().sum(dims))
    else:
        assert torch.equal(got, EAGER[kind](x, dims[0] if kind == "argmax" else dims))
