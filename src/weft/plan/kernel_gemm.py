"""A matrix product -> the kernel that computes it, with every scheduling choice as a field.

The product is out[b, r, c] = epilogue(sum over i of left[b, r, i] * right[b, i, c] + bias). Vectors run along the
columns, so the output's column stride is 1; a product with the other layout is the product of the transposes.
"""

from dataclasses import dataclass
from math import prod

from weft.errors import InternalError
from weft.plan.blocks import Blocks, cut
from weft.plan.epilogue import Epilogue

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
    `inner_block` numbers of the sum are done before the next register block, partial sums waiting in the output.
    A tile is `tile_row_blocks` by `tile_panels` register blocks; `rows_outside` visits all panels for a row block
    before the next row block. `unroll` steps of the sum are done per turn of the innermost loop, in `chains` separate
    sums.
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
    def row_blocks(self) -> Blocks:
        """Give the rows, cut into register blocks."""
        return cut(self.rows, self.schedule.block_rows)

    @property
    def panels(self) -> Blocks:
        """Give the columns, counted in vectors and cut into panels."""
        return panels(self.columns, self.schedule)

    @property
    def turn_blocks(self) -> Blocks:
        """Give the turns of the loop over the sum, cut into what is done at a time; `inner % unroll` steps follow."""
        unroll = self.schedule.unroll
        return cut(self.inner // unroll, max(self.schedule.inner_block // unroll, 1))

    @property
    def tile_rows(self) -> int:
        """Count the tiles above each other."""
        return -(-self.row_blocks.count // self.schedule.tile_row_blocks)

    @property
    def tile_columns(self) -> int:
        """Count the tiles side by side."""
        return -(-self.panels.count // self.schedule.tile_panels)

    @property
    def matrices(self) -> int:
        """Count the products of the batch."""
        return prod(self.batch)

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        return self.matrices * self.tile_rows * self.tile_columns


def panels(columns: int, schedule: GemmSchedule) -> Blocks:
    """Cut columns, counted in vectors, into panels."""
    return cut(-(-columns // schedule.lanes), schedule.block_vectors)


def packed_size(columns: int, inner: int, schedule: GemmSchedule) -> int:
    """Count the numbers of one packed matrix."""
    return panels(columns, schedule).total * schedule.lanes * inner


@dataclass(frozen=True)
class PackKernel:
    """The packing of a right operand, from any strides; arguments are packed, source, begin, end."""

    name: str
    element: str
    batch: tuple[int, ...]
    inner: int
    columns: int
    source: Matrix
    packed_batch: tuple[int, ...]
    lanes: int
    panels: Blocks

    @property
    def tile_count(self) -> int:
        """Count the panels of all matrices."""
        return prod(self.batch) * self.panels.count
