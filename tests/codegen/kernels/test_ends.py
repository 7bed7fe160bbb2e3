"""Loops of kernels end where the caller says: what is within is right, and nothing beyond is read or written."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from tests.codegen.kernel_cases import targets
from tests.codegen.kernel_runner import compile_kernel

from weft.codegen.kernels.attention_gradient import emit_attention_gradient
from weft.codegen.kernels.gemm import emit_gemm
from weft.codegen.kernels.loop import emit_loop
from weft.codegen.kernels.pack import emit_pack
from weft.codegen.kernels.reduce import emit_reduce
from weft.codegen.kernels.scatter import emit_scatter
from weft.codegen.llvm.module import Module
from weft.plan.kernels.attention import AttentionSizes
from weft.plan.kernels.attention_gradient import AttentionGradientKernel, AttentionOperands, choose_attention_gradient
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.gemm import (
    Epilogue,
    EpilogueOperand,
    GemmKernel,
    Matrix,
    PackedMatrix,
    choose_schedule,
    packed_size,
    panels,
)
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.loop import LoopExpression, LoopKernel, plan_loop
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.reduce import Finish, Reduction, RowExpression, RowKernel, RowPass, Store, plan_rows
from weft.plan.kernels.scatter import ScatterExpression, plan_scatter
from weft.target import Target

TARGETS = targets()
IDS = [target.name for target in TARGETS]
NAN = math.nan
each_target = pytest.mark.parametrize("target", TARGETS, ids=IDS)


def called(
    emit: Callable[[Module, object], None], kernel: Kernel, target: Target
) -> Callable[[Sequence[torch.Tensor], Sequence[int]], None]:
    """What runs all tiles of a kernel on tensors, with ends."""
    library = compile_kernel(emit, kernel, target)

    def run(tensors: Sequence[torch.Tensor], ends: Sequence[int]) -> None:
        kinds = [*[ctypes.c_void_p] * len(tensors), *[ctypes.c_int64] * (2 + len(ends))]
        function = ctypes.CFUNCTYPE(None, *kinds)(library.address(kernel.name))
        function(*(tensor.data_ptr() for tensor in tensors), 0, kernel.tile_count, *ends)
        assert library is not None

    return run


def poisoned(tensor: torch.Tensor, *sizes: int) -> torch.Tensor:
    """The same with NaN beyond sizes of its first dimensions."""
    found = torch.full_like(tensor, NAN)
    inside = tuple(map(slice, sizes))
    found[inside] = tensor[inside]
    return found


def sizes_around(most: int) -> list[int]:
    return sorted({0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, most - 1, most} & {*range(most + 1)})


@each_target
@pytest.mark.parametrize("shape", [(37,), (5, 37), (3, 6, 7), (4, 100)], ids=str)
def test_loops_end_along_every_dimension(target: Target, shape: tuple[int, ...]) -> None:
    strides = torch.empty(shape).stride()
    view = View("f32", strides)
    body = (Instruction("exp", (0,), "f32"),)
    kernel = plan_loop(LoopExpression("loop", shape, (view,), (view,), body, (1,)), target)
    assert math.prod(kernel.sizes) == math.prod(shape)
    kernel = LoopKernel("loop", shape, (view,), (view,), body, (1,), kernel.schedule, ends=tuple(range(len(shape))))
    run = called(emit_loop, kernel, target)
    x = torch.randn(shape)
    for size in sizes_around(min(shape)):
        for number in range(len(shape)):
            ends = [size if place == number else most for place, most in enumerate(shape)]
            out = torch.full(shape, NAN)
            run([out, poisoned(x, *ends)], ends)
            torch.testing.assert_close(out, poisoned(x.exp(), *ends), equal_nan=True)


@each_target
@pytest.mark.parametrize("crossed", [False, True])
def test_loops_take_strides_and_counts_of_what_lies_without_gaps(target: Target, crossed: bool) -> None:
    shape = (3, 20, 37)
    out, read = View("f32", (20 * 37, 37, 1)), View("f32", (20 * 37, 1, 20) if crossed else (20 * 37, 37, 1))
    body = (Instruction("neg", (0,), "f32"),)
    planned = plan_loop(LoopExpression("loop", shape, (out,), (read,), body, (1,)), target)
    assert bool(planned.schedule.transposed) is crossed
    kernel = LoopKernel(
        "loop", shape, (out,), (read,), body, (1,), planned.schedule,
        ends=(1, 2), pitches=((0, 0), (0, 1), (1, 0), (1, 2 if crossed else 1)), bounds=((1, 1), (1, 2)),
    )  # fmt: skip
    run = called(emit_loop, kernel, target)
    for rows, columns in [(20, 37), (0, 5), (5, 0), (1, 1), (3, 16), (16, 3), (17, 33), (19, 36), (20, 1)]:
        for fewer in (0, 1, 2):  # of what is read
            high, wide = max(rows - fewer, 0), max(columns - fewer, 0)
            x = torch.randn(3, high, wide)
            given = x.mT.contiguous() if crossed else x
            memory = torch.full((3 * rows * columns + 32,), NAN)
            steps = (rows * columns, columns, high * wide, high if crossed else wide)
            run(
                [memory[16:], torch.cat([given.flatten(), torch.full((64,), NAN)])], [rows, columns, *steps, high, wide]
            )
            assert memory[:16].isnan().all()
            assert memory[16 + 3 * rows * columns :].isnan().all()
            found = memory[16 : 16 + 3 * rows * columns].view(3, rows, columns)
            torch.testing.assert_close(found[:, :high, :wide], -x, rtol=0, atol=0)
            if not crossed:
                assert not found.isnan().any()


@each_target
@pytest.mark.parametrize("along_rows", [False, True])
@pytest.mark.parametrize("shape", [(5, 37), (3, 300), (40, 5), (33, 64)], ids=str)
def test_rows_and_columns_of_reductions_end(target: Target, shape: tuple[int, int], along_rows: bool) -> None:
    rows, columns = shape
    strides = (1, rows) if along_rows else (columns, 1)
    view = View("f32", strides)
    stages = (
        RowPass((), (Reduction("max", 0),)),
        RowPass(
            (Instruction("sub", (0, 3), "f32"), Instruction("exp", (4,), "f32")), (Reduction("sum", 5),), (Store(0, 5),)
        ),
        RowPass((Instruction("div", (1, 4), "f32"),), (), (Store(0, 5),)),
        Finish((), (), (Store(1, 4),)),
    )
    outputs = (view, View("f32", (1, 0)))
    found = plan_rows(RowExpression("rows", (rows,), (columns,), outputs, (view,), stages), target)
    assert found.schedule.along_rows is along_rows
    assert (found.expression.rows, found.expression.columns) == ((rows,), (columns,))
    run = called(emit_reduce, RowKernel(found.expression, found.schedule, ends=(0, 1)), target)
    x = torch.randn(shape)
    for ends in [(rows, size) for size in sizes_around(columns)] + [(size, columns - 1) for size in sizes_around(rows)]:
        given = poisoned(x, *ends)
        out, total = torch.full(shape, NAN), torch.full((rows,), NAN)
        if along_rows:
            given, out = given.t().contiguous(), out.t().contiguous()
        run([out, total, given], ends)
        inside = x[: ends[0], : ends[1]]
        expected = torch.full(shape, NAN)
        expected[: ends[0], : ends[1]] = inside.softmax(1) if ends[1] else inside
        torch.testing.assert_close(out.t() if along_rows else out, expected, equal_nan=True)
        if ends[1]:
            assert total[: ends[0]].isfinite().all()
        assert total[ends[0] :].isnan().all()


@each_target
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [(5, 20, 33), (37, 65, 50), (16, 70, 700), (3, 40, 900), (61, 16, 1100)], ids=str)
def test_rows_and_sums_of_products_end(target: Target, size: tuple[int, int, int], packed: bool) -> None:
    rows, columns, inner = size
    schedule = choose_schedule("f32", size, target)
    epilogue = Epilogue(
        EpilogueOperand((), 0, 1), (EpilogueOperand((), columns, 1),), (Instruction("mul", (0, 1), "f32"),)
    )
    kernel = GemmKernel(
        "product", "f32", (2,), rows, columns, inner, Matrix((rows * inner,), inner, 1),
        PackedMatrix((0,)) if packed else Matrix((0,), columns, 1), Matrix((rows * columns,), columns, 1),
        Epilogue(EpilogueOperand((0,), 0, 1), (EpilogueOperand((rows * columns,), columns, 1),), epilogue.body),
        schedule, ends=(0, 1, 3),
    )  # fmt: skip
    run = called(emit_gemm, kernel, target)
    left, right, bias = torch.randn(2, rows, inner), torch.randn(inner, columns), torch.randn(columns)
    factor = torch.randn(2, rows, columns)
    pack = None
    if packed:
        across = panels(columns, schedule)
        pack = called(
            emit_pack,
            PackKernel(
                "pack", "f32", (), inner, columns, Matrix((), columns, 1), (), schedule.lanes, across, ends=(0,)
            ),
            target,
        )
    every = [(2, rows, most) for most in sizes_around(inner)] + [(1, most, inner // 2) for most in sizes_around(rows)]
    for matrices, some, steps in every:
        given = [poisoned(left, matrices, some, steps), poisoned(right, steps), bias, poisoned(factor, matrices, some)]
        if pack is not None:
            memory = torch.full((packed_size(columns, inner, schedule),), NAN)
            pack([memory, given[1]], (steps,))
            given[1] = memory
        out = torch.full((2, rows, columns), NAN)
        run([out, *given], (matrices, some, steps))
        expected = torch.full_like(out, NAN)
        expected[:matrices, :some] = ((left[..., :steps] @ right[:steps] + bias) * factor)[:matrices, :some]
        torch.testing.assert_close(out, expected, equal_nan=True, rtol=1e-4, atol=1e-3)


@each_target
@pytest.mark.parametrize("source", [(1, 70), (40, 1)], ids=["across", "along"])
def test_panels_are_packed_as_far_as_they_are_read(target: Target, source: tuple[int, int]) -> None:
    inner, columns = (70, 40)
    row, column = source
    schedule = choose_schedule("f32", (16, columns, inner), target)
    across = panels(columns, schedule)
    kernel = PackKernel(
        "pack", "f32", (), inner, columns, Matrix((), row, column), (), schedule.lanes, across, ends=(0, 1)
    )
    run = called(emit_pack, kernel, target)
    x = torch.randn(inner, columns)
    size = packed_size(columns, inner, schedule)
    whole = torch.zeros(size)
    run([whole, x if column == 1 else x.t().contiguous()], (inner, columns))
    for steps in sizes_around(inner):
        given = poisoned(x, steps)
        memory = torch.full((size,), NAN)
        run([memory, given if column == 1 else given.t().contiguous()], (steps, columns))
        kept = ~memory.isnan()
        assert kept.sum() == steps * across.total * schedule.lanes
        assert torch.equal(memory[kept], whole[kept])


@each_target
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [(21, 33), (70, 150)], ids=str)
def test_queries_and_keys_of_attention_s_gradients_end(target: Target, size: tuple[int, int], causal: bool) -> None:
    rows, keys = size
    inner, columns = 8, 20
    sizes = AttentionSizes("f32", (2,), rows, keys, inner, columns)
    schedules = [choose_schedule("f32", (rows, keys, depth), target) for depth in (inner, columns)]
    schedule = choose_attention_gradient(sizes, schedules[0], schedules[1], target, causal=causal)

    def lying(down: int, across: int) -> Matrix:
        return Matrix((down * across,), across, 1)

    operands = AttentionOperands(
        lying(rows, inner), lying(keys, inner), lying(keys, columns), lying(rows, inner), lying(inner, keys),
        lying(rows, columns), lying(columns, keys), lying(keys, inner),
    )  # fmt: skip
    numbers = View("f32", (rows, 1, 0))
    body = [Instruction("iota", (), "i64", (0, 1, 0, 0)), Instruction("iota", (), "i64", (0, 0, 1, 0))]
    body += [Instruction("lt", (4, 5), "bool"), Instruction("constant", (), "f32", (-math.inf,))]
    body += [Instruction("select", (6, 7, 0), "f32")] if causal else [Instruction("abs", (0,), "f32")]
    score = 8 if causal else 0
    body += [Instruction("sub", (score, 2), "f32"), Instruction("exp", (9,), "f32")]
    body += [Instruction("sub", (1, 3), "f32"), Instruction("mul", (10, 11), "f32")]
    kernel = AttentionGradientKernel(
        "gradient", sizes, operands, (numbers, numbers), tuple(body), 10, 12, schedule, ends=(0, 1, 2)
    )
    run = called(emit_attention_gradient, kernel, target)
    torch.manual_seed(rows)
    query, gradient = torch.randn(2, rows, inner), torch.randn(2, rows, columns)
    key, values = torch.randn(2, keys, inner), torch.randn(2, keys, columns)
    for matrices, some, seen in [(2, rows, most) for most in sizes_around(keys)] + [
        (1, most, keys - 1) for most in sizes_around(rows)
    ]:
        if not some or not seen:
            continue
        scores = query[:, :some] @ key[:, :seen].mT
        if causal:
            scores = scores.masked_fill(torch.ones(some, seen, dtype=torch.bool).triu(1), -math.inf)
        pull = gradient[:, :some] @ values[:, :seen].mT
        logarithm, weight = torch.logsumexp(scores, -1), torch.randn(2, some)
        shares = (scores - logarithm[..., None]).exp()
        slopes = shares * (pull - weight[..., None])
        inside = [slopes @ key[:, :seen], slopes.mT @ query[:, :some], shares.mT @ gradient[:, :some]]
        whole = [torch.full((2, most, depth), NAN) for most, depth in ((rows, inner), (keys, inner), (keys, columns))]
        expected = [torch.full_like(tensor, NAN) for tensor in whole]
        for tensor, part in zip(expected, inside, strict=True):
            tensor[:matrices, : part.shape[1]] = part[:matrices]
        numbers_given = [torch.full((2, rows), NAN) for _ in range(2)]
        for tensor, part in zip(numbers_given, (logarithm, weight), strict=True):
            tensor[:, :some] = part
        across = [poisoned(tensor, matrices, seen).mT.contiguous() for tensor in (key, values)]
        downwards = [poisoned(tensor, matrices, some) for tensor in (query, gradient)]
        last = poisoned(key, matrices, seen)
        run([*whole, downwards[0], across[0], downwards[1], across[1], last, *numbers_given], (matrices, some, seen))
        for found, right in zip(whole, expected, strict=True):
            torch.testing.assert_close(found, right, equal_nan=True, rtol=1e-4, atol=1e-4)


@each_target
@pytest.mark.parametrize("width", [1, 17, 200])
def test_what_is_scattered_ends_along_each_dimension_of_its_rows(target: Target, width: int) -> None:
    shape = (5, 9, width)
    body = (Instruction("constant", (), "i64", (width,)), Instruction("mul", (0, 2), "i64"))
    inputs = (View("i64", (9, 1, 0)), View("f32", (9 * width, width, 1)))
    expression = ScatterExpression("scatter", shape, "f32", 1, inputs, body, 3, 1, "add")
    kernel = replace(plan_scatter(expression, target), ends=(0, 1))
    run = called(emit_scatter, kernel, target)
    index, source = torch.randint(0, 7, (5, 9)), torch.randn(shape)
    for texts, words in [(5, 9), (0, 9), (5, 0), (1, 1), (3, 4), (5, 8)]:
        out = torch.randn(7, width)
        places = torch.full_like(index, 1 << 40)  # which nobody may go to
        places[:texts, :words] = index[:texts, :words]
        expected = out.index_add(0, index[:texts, :words].flatten(), source[:texts, :words].flatten(0, 1))
        run([out, places, poisoned(source, texts, words)], (texts, words))
        torch.testing.assert_close(out, expected)


@each_target
@pytest.mark.parametrize("shape", [(5, 40, 33), (3, 2, 17, 50)], ids=str)
def test_transposing_loops_end_along_every_dimension(target: Target, shape: tuple[int, ...]) -> None:
    out_view = View("f32", torch.empty(shape).stride())
    *outer, rows, columns = shape
    backwards = torch.empty((*outer, columns, rows)).mT
    across = View("f32", backwards.stride())
    body = (Instruction("exp", (0,), "f32"),)
    kernel = plan_loop(LoopExpression("loop", shape, (out_view,), (across,), body, (1,)), target)
    schedule = kernel.schedule
    if kernel.sizes != shape:  # what steps alike is one dimension
        *_, rows, columns = shape = kernel.sizes
    kernel = LoopKernel(
        "loop", shape, kernel.outputs, kernel.inputs, body, (1,), schedule, ends=tuple(range(len(shape)))
    )
    assert schedule.transposed == (0,)
    run = called(emit_loop, kernel, target)
    x = torch.randn(shape)
    for size in (1, 2, 16, 17, min(shape[-2:])):
        for number in range(len(shape)):
            ends = [min(size, most) if place == number else most for place, most in enumerate(shape)]
            out = torch.full(shape, NAN)
            run([out, x.mT.contiguous()], ends)  # squares are read whole: nothing beyond may be missing
            torch.testing.assert_close(out, poisoned(x.exp(), *ends), equal_nan=True)
