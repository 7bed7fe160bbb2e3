"""Scatter kernels against eager PyTorch: joined in order, in any number of lanes."""

import pytest
import torch
from tests.codegen.kernel_runner import DTYPES, LEVELS, NAMES, call_kernel, compile_kernel, split, target_of

from weft.codegen.kernels.scatter import emit_scatter
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.scatter import ScatterExpression, ScatterKernel, plan_scatter


def view_of(tensor: torch.Tensor, shape: tuple[int, ...]) -> View:
    expanded = tensor.expand(shape)
    return View(NAMES[tensor.dtype], expanded.stride(), expanded.storage_offset())


def scatter(
    output: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *, join: str, level: str = "native", parts: int = 1
) -> ScatterKernel:
    """Join rows, or single elements, of a source with an output of two dimensions, where its first has the index."""
    shape = tuple(source.shape)
    body = (Instruction("constant", (), "i64", (output.stride(0),)), Instruction("mul", (0, 2), "i64"))
    inputs = (view_of(index, shape), view_of(source, shape))
    name = NAMES[output.dtype]
    expression = ScatterExpression("kernel", shape, name, output.stride(1), inputs, body, 3, 1, join)
    kernel = plan_scatter(expression, target_of(level))
    library = compile_kernel(emit_scatter, kernel, target_of(level))
    call_kernel(library, "kernel", [output, index, source], split(kernel.tile_count, parts))
    return kernel


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i8"])
@pytest.mark.parametrize("width", [1, 3, 16, 17, 77, 200])
def test_rows_are_added_where_their_numbers_say(width: int, dtype: str, level: str) -> None:
    source = (torch.randn(60, width) * 20).to(DTYPES[dtype])
    index = torch.randint(0, 9, (60, 1))
    output = (torch.randn(9, width) * 20).to(DTYPES[dtype])
    expected = output.clone().index_add_(0, index[:, 0], source)
    scatter(output, index, source, join="add", level=level, parts=3)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_elements_are_added_where_their_own_numbers_say(level: str) -> None:
    source, index, output = torch.randn(50, 33), torch.randint(0, 9, (50, 33)), torch.randn(9, 33)
    expected = output.clone()
    expected.scatter_add_(0, index, source)
    columns = torch.arange(33).expand(50, 33)
    shape = (50, 33)
    body = (
        Instruction("constant", (), "i64", (33,)),
        Instruction("mul", (0, 2), "i64"),
        Instruction("iota", (), "i64", (0, 1, 0)),
        Instruction("add", (3, 4), "i64"),
    )
    inputs = (view_of(index, shape), view_of(source, shape))
    expression = ScatterExpression("kernel", shape, "f32", 0, inputs, body, 5, 1, "add")
    kernel = plan_scatter(expression, target_of(level))
    assert (kernel.lanes, kernel.tile_count, columns.shape) == (1, 1, shape)
    library = compile_kernel(emit_scatter, kernel, target_of(level))
    call_kernel(library, "kernel", [output, index, source], [(0, 1)])
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("join, reduce", [("maximum", "amax"), ("minimum", "amin"), ("mul", "prod")])
def test_other_joins_equal_eager(join: str, reduce: str) -> None:
    source, index, output = torch.randn(60, 20), torch.randint(0, 9, (60, 1)), torch.randn(9, 20)
    expected = output.clone().scatter_reduce_(0, index.expand(60, 20), source, reduce)
    scatter(output, index, source, join=join)
    torch.testing.assert_close(output, expected)


def test_the_last_row_stored_remains() -> None:
    source, output = torch.randn(4, 20), torch.zeros(3, 20)
    scatter(output, torch.tensor([[2], [0], [2], [0]]), source, join="store")
    assert torch.equal(output, torch.stack([source[3], torch.zeros(20), source[2]]))


def test_short_floats_are_rounded_at_every_addition() -> None:
    source, output = torch.full((300, 20), 1.0).bfloat16(), torch.zeros(1, 20).bfloat16()
    scatter(output, torch.zeros(300, 1, dtype=torch.int64), source, join="add")
    assert (output == 256).all()  # 257 is no bfloat16


def test_the_bits_do_not_depend_on_how_tiles_are_shared_out() -> None:
    source, index = torch.randn(500, 300), torch.randint(0, 5, (500, 1))
    one, many = torch.zeros(5, 300), torch.zeros(5, 300)
    assert scatter(one, index, source, join="add").tile_count > 1
    scatter(many, index, source, join="add", parts=4)
    assert torch.equal(one, many)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_nothing_is_scattered_from_nothing(shape: tuple[int, int]) -> None:
    output = torch.ones(3, max(shape[1], 1))
    scatter(output, torch.zeros(shape[0], 1, dtype=torch.int64), torch.zeros(shape), join="add")
    assert (output == 1).all()
