"""A matrix product -> the kernel that computes it, with every scheduling choice as a field.

The product is out[b, r, c] = epilogue(sum over i of left[b, r, i] * right[b, i, c] + bias). Vectors run along the
columns, so the output's column stride is 1; a product with the other layout is the product of the transposes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from weft.errors import InternalError
from weft.plan.kernels.blocks import Blocks, cut
from weft.plan.kernels.box import Box, Range, box, cut_range
from weft.plan.kernels.cycles import BLOCK_CYCLES, body_cycles, dot_cycles
from weft.plan.kernels.epilogue import Epilogue, Operand
from weft.plan.kernels.expression import DTYPE_BYTES
from weft.plan.kernels.kernel import Boxes, Kernel, Sizes, by
from weft.plan.kernels.walk import Walk
from weft.target import Target

ELEMENT_BITS = {"f32": 32, "f64": 64, "bf16": 16}


@dataclass(frozen=True)
class Matrix:
    """Where a batch of matrices lies: strides in elements, one per batch dimension, then of rows and columns."""

    batch: tuple[int, ...]
    row: int
    column: int


@dataclass(frozen=True)
class PackedMatrix:
    """A right operand as a packing kernel leaves it: one panel after the other, each panel row after row.

    A panel is as many columns as a register block is wide, filled up with zeros to whole vectors.
    """

    batch: tuple[int, ...]


@dataclass(frozen=True)
class GemmSchedule:
    """How a product is computed.

    A register block is `block_rows` by `block_vectors` vectors of `lanes` numbers, or a little less at the edge.
    `inner_block` numbers of the sum are done before the next register block, partial sums waiting in the output; with
    `parts_inside` a register block does all such parts itself, and their total stays in its registers.
    A tile is `tile_row_blocks` by `tile_panels` register blocks; `rows_outside` visits all panels for a row block
    before the next row block. `unroll` steps of the sum are done per turn of the innermost loop, in `chains` separate
    sums. With `along_sum`, vectors run along the sum, where numbers of both operands lie side by side: a turn is one
    vector of each of `lanes` columns.
    """

    lanes: int
    block_rows: int
    block_vectors: int
    inner_block: int
    tile_row_blocks: int
    tile_panels: int
    rows_outside: bool
    unroll: int = 1
    chains: int = 1
    along_sum: bool = False
    parts_inside: bool = False


@dataclass(frozen=True)
class GemmKernel(Kernel):
    """One product, or a batch of equal ones; arguments are out, left, right, the epilogue's inputs, begin, end."""

    name: str
    element: str
    batch: tuple[int, ...]
    rows: int
    columns: int
    inner: int
    left: Matrix
    right: Matrix | PackedMatrix
    out: Matrix
    epilogue: Epilogue
    schedule: GemmSchedule
    accumulate: bool = False

    def __post_init__(self) -> None:
        if self.out.column != 1 and self.columns > 1:
            fact = f"the kernel {self.name} writes columns {self.out.column} apart"
            raise InternalError(fact, why="its vectors run along the columns, which must be side by side")

    @property
    def parts(self) -> Blocks:
        """Cut the turns of the loop over the sum into parts, each added up alone."""
        unroll = self.schedule.unroll
        return cut(self.inner // unroll, max(self.schedule.inner_block // unroll, 1))

    @property
    def walk(self) -> Walk:
        """Give the blocks and tiles; `inner % unroll` steps of the sum follow its turns."""
        schedule, parts = self.schedule, self.parts
        return Walk(
            matrices=prod(self.batch),
            lines=1,
            row_blocks=cut(self.rows, schedule.block_rows),
            panels=panels(self.columns, schedule),
            columns=self.columns,
            lanes=schedule.lanes,
            parts=cut(parts.total, max(parts.total, 1)) if schedule.parts_inside else parts,
            part_step=schedule.unroll,
            tile_row_blocks=schedule.tile_row_blocks,
            tile_panels=schedule.tile_panels,
            rows_outside=schedule.rows_outside,
        )

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        return self.walk.tile_count

    @property
    def tile_sizes(self) -> tuple[Sizes, Sizes]:
        """Give the rows of tiles above each other and the vectors of those side by side."""
        return self.walk.tile_sizes

    @property
    def cycles(self) -> float:
        """Estimate the cycles of its register blocks, or of its dots."""
        epilogue = body_cycles(self.epilogue.body)
        if self.schedule.along_sum:
            panel = dot_cycles(self.inner, self.schedule.lanes) + BLOCK_CYCLES + epilogue
            return self.walk.matrices * self.rows * self.walk.panels.count * panel
        return self.walk.cycles(self.inner, epilogue)

    @property
    def summary(self) -> str:
        """Say the batch, rows, columns and steps of the sum."""
        return by(*self.batch, self.rows, self.columns, self.inner)

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give the rows and columns written, what of both operands they are made of, and the epilogue's operands there.

        A packed operand may be read anywhere.
        """
        part = self.walk.covered(begin, end)
        rows, columns, inner = part.rows, part.columns, (0, self.inner)
        element = DTYPE_BYTES[self.element]

        def matrix(where: Matrix | Operand, sides: tuple[Range, Range], item: int) -> Box | None:
            offset, steps = cut_range(self.batch, where.batch, *part.matrices) if self.batch else (0, [])
            for stride, (first, last) in zip((where.row, where.column), sides, strict=True):
                offset += first * stride
                steps = [*steps, (stride, last - first)]
            return box(offset, steps, item)

        right = None if isinstance(self.right, PackedMatrix) else matrix(self.right, (inner, columns), element)
        return (
            matrix(self.out, (rows, columns), self.epilogue.stored_bytes(self.element)),
            matrix(self.left, (rows, inner), element),
            right,
            *(matrix(line, (rows, columns), element) for line in self.epilogue.inputs),
        )

    def renamed(self, name: str) -> GemmKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> GemmKernel | None:
        """Give the same kernel for an epilogue's operand that lies as the output, unless partial sums wait there."""
        operand = self.epilogue.operand_stored_alike(read - 2, self.element)
        if operand is None or self.accumulate or self.walk.parts.count > 1:
            return None
        return self if operand == Operand(self.out.batch, self.out.row, self.out.column) else None


def panels(columns: int, schedule: GemmSchedule) -> Blocks:
    """Cut columns, counted in vectors, into panels."""
    return cut(-(-columns // schedule.lanes), schedule.block_vectors)


def packed_size(columns: int, inner: int, schedule: GemmSchedule) -> int:
    """Count the numbers of one packed matrix."""
    return panels(columns, schedule).total * schedule.lanes * inner
