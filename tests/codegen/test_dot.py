"""Products of few rows as dot products equal torch's at any size, however the tiles are split."""

from dataclasses import replace

import pytest
import torch
from tests.codegen.kernels import assert_as_exact_as_eager, assert_untouched, compiled, guarded, targets

from weft.codegen.dot import emit_dot
from weft.plan.epilogue import Epilogue, Operand
from weft.plan.expression import Instruction
from weft.plan.kernel_dot import DotKernel, choose_dot_schedule, prefers_dot
from weft.plan.kernel_gemm import Matrix
from weft.target import Target

TARGETS = targets()
IDS = [target.name for target in TARGETS]
SIZES = [
    (1, 1, 1), (1, 7, 15), (1, 8, 16), (1, 33, 17), (2, 9, 64), (3, 16, 31), (4, 17, 65), (1, 5, 0), (1, 0, 5),
    (0, 3, 3),
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_dot_products_equal_linear(target: Target, size: tuple[int, int, int]) -> None:
    rows, columns, inner = size
    kernel = DotKernel(
        name="dot",
        element="f32",
        batch=(),
        rows=rows,
        columns=columns,
        inner=inner,
        left=Matrix((), inner, 1),
        right=Matrix((), 1, inner),
        out=Matrix((), columns, 1),
        epilogue=Epilogue(Operand((), 0, 1), body=(Instruction("relu", (0,), "f32"),)),
        schedule=replace(choose_dot_schedule("f32", size, target), tile_blocks=2),
    )
    x, weight, bias = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(columns)
    out, whole = guarded(rows, columns)
    call = compiled(target, lambda module: emit_dot(module, kernel))
    for tile in reversed(range(kernel.tile_count)):
        call("dot", out, x, weight, bias, begin=tile, end=tile + 1)
    linear = torch.nn.functional.linear
    exact = linear(x.double(), weight.double(), bias.double()).relu()
    assert_as_exact_as_eager(out, linear(x, weight, bias).relu(), exact)
    assert_untouched(whole)


def test_a_batch_of_queries_meets_its_keys() -> None:
    target, (batch, heads, keys, width) = TARGETS[0], (2, 3, 21, 40)
    kernel = DotKernel(
        name="dot",
        element="f64",
        batch=(batch, heads),
        rows=1,
        columns=keys,
        inner=width,
        left=Matrix((heads * width, width), width, 1),
        right=Matrix((keys * heads * width, width), 1, heads * width),
        out=Matrix((heads * keys * 2, keys * 2), keys * 2, 2),
        epilogue=Epilogue(),
        schedule=choose_dot_schedule("f64", (1, keys, width), target),
    )
    query, key = torch.randn(batch, heads, width).double(), torch.randn(batch, keys, heads, width).double()
    out = torch.zeros(batch, heads, keys, 2).double()
    call = compiled(target, lambda module: emit_dot(module, kernel))
    call("dot", out, query, key, begin=0, end=kernel.tile_count)
    torch.testing.assert_close(out[..., 0], torch.einsum("bhd,bkhd->bhk", query, key))
    assert out[..., 1].abs().sum() == 0


def test_dot_products_are_preferred_for_few_rows_and_columns_side_by_side() -> None:
    row, column = Matrix((), 64, 1), Matrix((), 1, 64)
    assert prefers_dot(1, 64, row, column)
    assert not prefers_dot(1, 64, row, row)
    assert not prefers_dot(32, 64, row, column)
