"""Cut kernels into tiles of a few rows, so that a call of small sizes leaves out most of what it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.conv import ConvKernel, conv_with_ends
from weft.plan.kernels.conv_weight import DepthwiseWeightKernel, WeightGradientKernel
from weft.plan.kernels.expression import DTYPE_BYTES, with_strides
from weft.plan.kernels.gemm import Epilogue, EpilogueOperand, GemmKernel
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.loop import TILE_ELEMENTS, LoopKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.pool import PoolKernel
from weft.plan.kernels.recurrent import RecurrentKernel
from weft.plan.kernels.reduce import RowKernel
from weft.plan.kernels.scatter import ScatterKernel
from weft.plan.kernels.walk import cut
from weft.plan.kernels.winograd import WinogradKernel, winograd_with_ends

FAR_BYTES, FAR_ROWS = 1 << 20, 32  # of a right operand that is in no near cache when the next rows come: more of these
SHARES, ATTENTION_ROWS = 128, 32  # tiles of a loop, and rows of one of an attention, that lanes share at small sizes
LOOP_TILE, ROW_TILE = 512, 512  # elements of a tile of a loop, or of rows: small, for a few rows to be left out
ACROSS = 4  # tiles side by side of a product, which lanes share where there are few rows


AS_THEY_ARE = (
    PackKernel
    | PoolKernel
    | AttentionGradientKernel
    | ScatterKernel
    | WeightGradientKernel
    | DepthwiseWeightKernel
    | RecurrentKernel
)
"""Kernels that are cut into no other tiles where loops of theirs end."""


def with_ends(kernel: Kernel, dimensions: tuple[int, ...]) -> Kernel:
    """Give the same kernel with loops that end where the caller says, in tiles of some rows for lanes to share."""
    if isinstance(kernel, LoopKernel):
        step, schedule = kernel.schedule.lanes * kernel.schedule.unroll, kernel.schedule
        wanted = max(LOOP_TILE, prod(kernel.sizes) // SHARES)
        if kernel.rows == 1:
            across = min(schedule.column_tile, -(-wanted // step) * step)
            return replace(kernel, ends=dimensions, schedule=replace(schedule, column_tile=across))
        down = schedule.row_tile if schedule.transposed else max(1, wanted // max(schedule.column_tile, 1))
        return replace(kernel, ends=dimensions, schedule=replace(schedule, row_tile=min(schedule.row_tile, down)))
    if isinstance(kernel, RowKernel):
        wanted = max(ROW_TILE, prod((*kernel.expression.rows, *kernel.expression.columns)) // SHARES)
        down = max(1, wanted // max(prod(kernel.expression.columns) * kernel.schedule.lane_tile, 1))
        fewer = replace(kernel.schedule, row_tile=min(kernel.schedule.row_tile, down))
        return replace(kernel, ends=dimensions, schedule=fewer)
    if isinstance(kernel, AttentionKernel):
        block = min(kernel.schedule.row_block, ATTENTION_ROWS)
        return replace(kernel, ends=dimensions, schedule=replace(kernel.schedule, row_block=block))
    if isinstance(kernel, GemmKernel):
        rows_end = len(kernel.batch) in dimensions
        found = _finer_product(kernel, 0, kernel.schedule.block_rows) if rows_end else kernel
        return replace(found, ends=dimensions)
    if isinstance(kernel, ConvKernel):
        return conv_with_ends(kernel, dimensions)
    if isinstance(kernel, WinogradKernel):
        return winograd_with_ends(kernel, dimensions)
    assert isinstance(kernel, AS_THEY_ARE)
    return replace(kernel, ends=dimensions)


def in_lines(kernel: Kernel, lines: Sequence[tuple[int, int]]) -> Kernel:
    """Give the same kernel with some dimensions as two each: lines of so many places, one behind the other.

    What varies inside of lines can then end there. Lines of lines are three dimensions, and so on.
    """
    for axis in sorted({axis for axis, _ in lines}, reverse=True):  # so that numbers of those before stay
        place, longer = axis, 0
        for line in sorted((line for other, line in lines if other == axis), reverse=True):
            found = kernel if longer % line else _split_at(kernel, place, line)
            if found is not kernel:
                kernel, place, longer = found, place + 1, line
    return kernel


def _split_at(kernel: Kernel, axis: int, line: int) -> Kernel:
    if isinstance(kernel, LoopKernel):
        return (
            _across_in_lines(kernel, axis, line) if kernel.schedule.transposed else _loop_in_lines(kernel, axis, line)
        )
    if isinstance(kernel, RowKernel) and axis < len(kernel.outer_rows):
        return _rows_in_lines(kernel, axis, line)
    if isinstance(kernel, ScatterKernel) and axis < len(kernel.expression.sizes) - 1:
        return _scatter_in_lines(kernel, axis, line)
    if isinstance(kernel, GemmKernel) and axis == len(kernel.batch) == 0:
        return _product_in_lines(kernel, line)
    return kernel


def _split(numbers: tuple[int, ...], axis: int, outer: int, inner: int) -> tuple[int, ...]:
    return (*numbers[:axis], outer, inner, *numbers[axis + 1 :])


def _across_in_lines(kernel: LoopKernel, axis: int, line: int) -> LoopKernel:
    """The same of a loop that transposes inputs: rows and columns of what it transposes stay the last dimensions."""
    last, schedule = len(kernel.sizes) - 1, kernel.schedule
    if axis >= last - 1 and line < schedule.block:
        return kernel
    found = _loop_in_lines(kernel, axis, line)
    if axis < last - 1 or found is kernel:
        return found
    down = min(schedule.row_tile, line) if axis < last else schedule.row_tile
    found = replace(found, schedule=replace(found.schedule, row_tile=down))
    return found if axis < last else _with_axes(found, last, last - 1)


def _with_axes(kernel: LoopKernel, axis: int, place: int) -> LoopKernel:
    """The same loop with a dimension at another place among the others."""

    def moved(numbers: tuple[int, ...]) -> tuple[int, ...]:
        rest = (*numbers[:axis], *numbers[axis + 1 :])
        return (*rest[:place], numbers[axis], *rest[place:])

    return replace(
        kernel,
        sizes=moved(kernel.sizes),
        outputs=tuple(replace(view, strides=moved(view.strides)) for view in kernel.outputs),
        inputs=tuple(replace(view, strides=moved(view.strides)) for view in kernel.inputs),
        body=tuple(with_strides(one, moved) for one in kernel.body),
    )


def _loop_in_lines(kernel: LoopKernel, axis: int, line: int) -> LoopKernel:
    def split(strides: tuple[int, ...]) -> tuple[int, ...]:
        return _split(strides, axis, strides[axis] * line, strides[axis])

    schedule = kernel.schedule
    if axis == len(kernel.sizes) - 1:
        step = schedule.lanes * schedule.unroll
        if line < step:
            return kernel
        across = min(line, schedule.column_tile)
        across = line if line - across < step else across
        schedule = replace(schedule, column_tile=across, row_tile=max(1, TILE_ELEMENTS // across))
    return replace(
        kernel,
        sizes=_split(kernel.sizes, axis, kernel.sizes[axis] // line, line),
        outputs=tuple(replace(view, strides=split(view.strides)) for view in kernel.outputs),
        inputs=tuple(replace(view, strides=split(view.strides)) for view in kernel.inputs),
        body=tuple(with_strides(one, split) for one in kernel.body),
        schedule=schedule,
    )


def _rows_in_lines(kernel: RowKernel, axis: int, line: int) -> RowKernel:
    def split(strides: tuple[int, ...]) -> tuple[int, ...]:
        return _split(strides, axis, strides[axis] * line, strides[axis])

    before = kernel.expression
    stages = tuple(
        replace(stage, body=tuple(with_strides(one, split) for one in stage.body)) for stage in before.stages
    )
    expression = replace(
        before,
        rows=_split(before.rows, axis, before.rows[axis] // line, line),
        outputs=tuple(replace(view, strides=split(view.strides)) for view in before.outputs),
        inputs=tuple(replace(view, strides=split(view.strides)) for view in before.inputs),
        stages=stages,
    )
    return replace(kernel, expression=expression)


def _scatter_in_lines(kernel: ScatterKernel, axis: int, line: int) -> ScatterKernel:
    def split(strides: tuple[int, ...]) -> tuple[int, ...]:
        return _split(strides, axis, strides[axis] * line, strides[axis])

    before = kernel.expression
    expression = replace(
        before,
        sizes=_split(before.sizes, axis, before.sizes[axis] // line, line),
        inputs=tuple(replace(view, strides=split(view.strides)) for view in before.inputs),
        body=tuple(with_strides(one, split) for one in before.body),
    )
    return replace(kernel, expression=expression)


def finer_tiles(kernel: Kernel, line: int, block: int) -> Kernel:
    """Give the same kernel in smaller tiles, none of which is of two lines of so many rows; 0 is one line.

    Products and attentions have blocks of so many rows; 0 is as many as they have.
    """
    block = block or _block_rows(kernel)
    if isinstance(kernel, LoopKernel) and kernel.rows == 1:
        step, before = kernel.schedule.lanes * kernel.schedule.unroll, kernel.schedule.column_tile
        steps = _rows(LOOP_TILE // step, before // step, line // step if line % step == 0 else 0)
        return replace(kernel, schedule=replace(kernel.schedule, column_tile=min(before, steps * step)))
    if isinstance(kernel, LoopKernel) and not kernel.schedule.transposed:
        rows = LOOP_TILE // max(kernel.schedule.column_tile, 1)
        return replace(
            kernel, schedule=replace(kernel.schedule, row_tile=_rows(rows, kernel.schedule.row_tile, line, block))
        )
    if isinstance(kernel, RowKernel) and not kernel.schedule.along_rows:
        rows = ROW_TILE // max(prod(kernel.expression.columns), 1)
        return replace(
            kernel, schedule=replace(kernel.schedule, row_tile=_rows(rows, kernel.schedule.row_tile, line, block))
        )
    if isinstance(kernel, AttentionKernel):
        return replace(kernel, schedule=replace(kernel.schedule, row_block=min(block, kernel.schedule.row_block)))
    return _finer_product(kernel, line, block) if isinstance(kernel, GemmKernel) else kernel


def _rows(wanted: int, before: int, line: int, block: int = 0) -> int:
    """So many rows for a tile, or a few less, so that lines, and blocks of products, are whole tiles."""
    most = max(1, min(wanted, before))
    return next(rows for rows in range(most, 0, -1) if not (line % rows or block % rows))


def _block_rows(kernel: Kernel) -> int:
    if isinstance(kernel, AttentionKernel):
        return kernel.schedule.row_block
    return kernel.schedule.block_rows if isinstance(kernel, GemmKernel) else 0


def _product_in_lines(kernel: GemmKernel, line: int) -> GemmKernel:
    return replace(
        kernel,
        batch=(kernel.rows // line,),
        rows=line,
        left=replace(kernel.left, batch=(line * kernel.left.row,)),
        right=replace(kernel.right, batch=(0,)),
        out=replace(kernel.out, batch=(line * kernel.out.row,)),
        epilogue=_in_lines(kernel.epilogue, line),
    )


def _finer_product(kernel: GemmKernel, line: int, block: int) -> GemmKernel:
    if line and not kernel.batch and kernel.rows > line and not kernel.rows % line:
        kernel = _product_in_lines(kernel, line)
    schedule, panels = kernel.schedule, kernel.walk.panels.count
    if kernel.inner * kernel.columns * DTYPE_BYTES[kernel.element] > FAR_BYTES:
        down = min(schedule.tile_row_blocks, -(-FAR_ROWS // schedule.block_rows))
        return replace(kernel, schedule=replace(schedule, tile_row_blocks=down))
    most = min(-(-panels // ACROSS), schedule.tile_panels * schedule.tile_row_blocks)
    across = cut(panels, max(1, most)).size
    rows = min(block, schedule.block_rows)
    return replace(kernel, schedule=replace(schedule, block_rows=rows, tile_row_blocks=1, tile_panels=across))


def _in_lines(epilogue: Epilogue, line: int) -> Epilogue:
    def lined(operand: EpilogueOperand) -> EpilogueOperand:
        return replace(operand, batch=(line * operand.row,))

    bias = None if epilogue.bias is None else lined(epilogue.bias)
    return replace(epilogue, bias=bias, operands=tuple(map(lined, epilogue.operands)))
