"""Cut kernels into tiles of a few rows, so that a call of small sizes leaves out most of what it can."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.blocks import cut
from weft.plan.kernels.expression import DTYPE_BYTES
from weft.plan.kernels.gemm import Epilogue, EpilogueOperand, GemmKernel
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.reduce import RowKernel

FAR_BYTES, FAR_ROWS = 1 << 20, 32  # of a right operand that is in no near cache when the next rows come: more of these
LOOP_TILE, ROW_TILE = 512, 512  # elements of a tile of a loop, or of rows: small, for a few rows to be left out


def finer_tiles(kernel: Kernel, line: int, block: int) -> Kernel:
    """Give the same kernel in smaller tiles, none of which is of two lines of so many rows; 0 is one line.

    Products and attentions have blocks of so many rows.
    """
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


def _finer_product(kernel: GemmKernel, line: int, block: int) -> GemmKernel:
    if line and not kernel.batch and kernel.rows > line and not kernel.rows % line:
        kernel = replace(
            kernel,
            batch=(kernel.rows // line,),
            rows=line,
            left=replace(kernel.left, batch=(line * kernel.left.row,)),
            right=replace(kernel.right, batch=(0,)),
            out=replace(kernel.out, batch=(line * kernel.out.row,)),
            epilogue=_in_lines(kernel.epilogue, line),
        )
    schedule, panels = kernel.schedule, kernel.walk.panels.count
    if kernel.inner * kernel.columns * DTYPE_BYTES[kernel.element] > FAR_BYTES:
        down = min(schedule.tile_row_blocks, -(-FAR_ROWS // schedule.block_rows))
        return replace(kernel, schedule=replace(schedule, tile_row_blocks=down))
    across = cut(panels, max(1, min(panels, schedule.tile_panels * schedule.tile_row_blocks))).size
    rows = min(block, schedule.block_rows)
    return replace(kernel, schedule=replace(schedule, block_rows=rows, tile_row_blocks=1, tile_panels=across))


def _in_lines(epilogue: Epilogue, line: int) -> Epilogue:
    def lined(operand: EpilogueOperand) -> EpilogueOperand:
        return replace(operand, batch=(line * operand.row,))

    bias = None if epilogue.bias is None else lined(epilogue.bias)
    return replace(epilogue, bias=bias, operands=tuple(map(lined, epilogue.operands)))
