"""A product of few rows with columns that each lie side by side -> the kernel that computes it as dot products.

This is for a right operand that is read once or changes with every call: nothing is packed, vectors run along the sum.
"""

from dataclasses import dataclass
from math import prod

from weft.errors import InternalError
from weft.plan.epilogue import Epilogue
from weft.plan.kernel_gemm import ELEMENT_BITS, Matrix
from weft.plan.schedule_gemm import TILE_CYCLES, vector_registers
from weft.target import Target

MOST_DOT_ROWS = 2  # up to here dot products in place are as fast as a packed panel, or faster
MOST_BLOCK_COLUMNS = 8


@dataclass(frozen=True)
class DotSchedule:
    """How dot products are computed: `block_columns`, a power of two, at a time; a tile is `tile_blocks` blocks."""

    lanes: int
    block_columns: int
    tile_blocks: int


@dataclass(frozen=True)
class DotKernel:
    """One product, or a batch of equal ones; arguments are out, left, right, the epilogue's inputs, begin, end.

    As for a GemmKernel, but left rows and right columns lie side by side along the sum.
    """

    name: str
    element: str
    batch: tuple[int, ...]
    rows: int
    columns: int
    inner: int
    left: Matrix
    right: Matrix
    out: Matrix
    epilogue: Epilogue
    schedule: DotSchedule

    def __post_init__(self) -> None:
        if self.inner > 1 and (self.left.column != 1 or self.right.row != 1):
            raise InternalError(f"the kernel {self.name} sums numbers that do not lie side by side")

    @property
    def blocks(self) -> int:
        """Count the blocks of columns."""
        return -(-self.columns // self.schedule.block_columns)

    @property
    def tiles_across(self) -> int:
        """Count the tiles of one matrix."""
        return -(-self.blocks // self.schedule.tile_blocks)

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        return prod(self.batch) * self.tiles_across if self.rows else 0


def prefers_dot(rows: int, inner: int, left: Matrix, right: Matrix) -> bool:
    """Tell whether to compute a product as dot products, even where its right operand could be packed once."""
    return rows <= MOST_DOT_ROWS and (inner <= 1 or left.column == right.row == 1)


def choose_dot_schedule(element: str, sizes: tuple[int, int, int], target: Target) -> DotSchedule:
    """Choose how so many rows and columns of dot products of a length are computed."""
    rows, _, inner = sizes
    lanes = target.lanes(ELEMENT_BITS[element])
    columns = min(MOST_BLOCK_COLUMNS, lanes)
    while columns > 1 and columns * rows + rows + 1 > vector_registers(target):
        columns //= 2
    cycles = columns * max(rows, 1) * (-(-inner // lanes) + lanes)
    return DotSchedule(lanes, columns, max(1, int(TILE_CYCLES / cycles)))
