"""Products of few rows with a matrix that lies the other way round -> the product of the transposes, read in place.

A linear layer multiplies rows with its transposed weights, the columns of which lie far apart: they would be packed at
each call. For few rows it costs less to pack these, and to leave the result with its rows side by side.
"""

from __future__ import annotations

from dataclasses import replace

from weft.ir.graph import Value
from weft.plan.fuse.fusion import Fusion, dtype_of, tensor_type
from weft.plan.fuse.products import Product, matrix_of, multiply, right_operand
from weft.plan.kernels.epilogue import Epilogue, Operand
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.schedule_gemm import FEW_ROWS, choose_schedule
from weft.plan.regions.lazy import Lazy, Leaf
from weft.plan.regions.window import Window

LEAST_LEFT_IN_PLACE = 32 * 1024  # numbers of a matrix that is worth it
SAVING = 2  # so many times more numbers would be moved to pack the matrix


def multiply_either_way(fusion: Fusion, value: Value) -> Lazy:
    """A product of matrices, or of their transposes where that spares more than it costs."""
    right = fusion.operand(value, 1).node
    if isinstance(right, Leaf) and _is_turned(fusion, value, right):
        return _multiply_turned(fusion, value, right)
    return multiply(fusion, value)


def _is_turned(fusion: Fusion, value: Value, right: Leaf) -> bool:
    """Whether a right operand lies column by column, is read once, and is large beside the rows and the result."""
    rows, columns = tensor_type(value).shape[-2:]
    if right.source.pending is not None or len(tensor_type(value).shape) != 2 or len(right.window.shape) != 2:
        return False
    inner = right.window.shape[0]
    moved = rows * inner + 2 * rows * columns  # the result is turned back, or read across
    return (
        right.window.strides[0] == 1
        and right.window.strides[1] >= inner
        and fusion.uses[value.operands[1]] == 1
        and not fusion.is_weight(right)
        and rows > FEW_ROWS
        and inner * columns >= max(LEAST_LEFT_IN_PLACE, SAVING * moved)
    )


def _multiply_turned(fusion: Fusion, value: Value, right: Leaf) -> Lazy:
    left, dtype = fusion.assembly.in_memory(fusion.operand(value)), dtype_of(value)
    (rows, inner), columns = left.window.shape, right.window.shape[1]
    sizes = (columns, rows, inner)
    schedule = choose_schedule(dtype, sizes, fusion.assembly.target)
    panels, place = right_operand(fusion, replace(left, window=left.window.permuted((1, 0))), sizes, dtype)

    def emit(out: Leaf, epilogue: Epilogue, inputs: tuple[Leaf, ...]) -> None:
        kernel = GemmKernel(
            fusion.assembly.name("product"), dtype, (), columns, rows, inner, matrix_of(right.window.permuted((1, 0))),
            panels, matrix_of(out.window.permuted((1, 0))), epilogue, schedule,
        )  # fmt: skip
        reads = (fusion.assembly.location(right), place, *map(fusion.assembly.location, inputs))
        fusion.assembly.call(kernel, (fusion.assembly.location(out),), reads)

    def steps(window: Window) -> Operand | None:
        across, down = window.strides
        return Operand((), down, across) if across in (0, 1) else None

    home = Window((rows, columns), (1, rows))
    return Product(fusion, home, dtype, emit, steps, rows).lazy()
