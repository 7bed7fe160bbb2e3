"""Loops of kernels end where the caller says: what is within is right, and nothing beyond is read or written."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from tests.codegen.kernel_cases import targets
from tests.codegen.kernel_runner import compile_kernel

from weft.codegen.kernels.gemm import emit_gemm
from weft.codegen.kernels.loop import emit_loop
from weft.codegen.kernels.pack import emit_pack
from weft.codegen.kernels.reduce import emit_reduce
from weft.codegen.llvm.module import Module
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
