"""A matrix product -> the kernel that computes it, with every scheduling choice as a field.

The product is out[b, r, c] = epilogue(sum over i of left[b, r, i] * right[b, i, c] + bias). Vectors run along the
columns, so the output's column stride is 1; a product with the other layout is the product of the transposes.
"""

from dataclasses import dataclass
from math import prod

from weft.errors import InternalError
from weft.plan.kernels.blocks import Blocks, cut
from weft.plan.kernels.epilogue import Epilogue
from weft.plan.kernels.walk import Walk

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
class GemmKernel:
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


def panels(columns: int, schedule: GemmSchedule) -> Blocks:
    """Cut columns, counted in vectors, into panels."""
    return cut(-(-columns // schedule.lanes), schedule.block_vectors)


def packed_size(columns: int, inner: int, schedule: GemmSchedule) -> int:
    """Count the numbers of one packed matrix."""
    return panels(columns, schedule).total * schedule.lanes * inner


@dataclass(frozen=True)
class PackKernel:
    """The packing of a right operand, from any strides; arguments are packed, source, begin, end.

    The sum may run over more dimensions, outside `inner`: `outer` has the size and the source's stride of each, which
    may be negative; `offset` elements of the source come before the first. With `scale_batch` there is another argument
    behind the source: numbers side by side that the columns are multiplied with, so many steps on for each matrix.
    """

    name: str
    element: str
    batch: tuple[int, ...]
    inner: int
    columns: int
    source: Matrix
    packed_batch: tuple[int, ...]
    lanes: int
    panels: Blocks
    outer: tuple[tuple[int, int], ...] = ()
    offset: int = 0
    scale_batch: tuple[int, ...] | None = None

    @property
    def depth(self) -> int:
        """Count the steps of the whole sum."""
        return prod(size for size, _ in self.outer) * self.inner

    @property
    def tile_count(self) -> int:
        """Count the panels of all matrices."""
        return prod(self.batch) * self.panels.count
