"""Where the largest or smallest numbers of rows are -> kernels with their tiles."""

from dataclasses import dataclass
from math import ceil

TILE_ELEMENTS = 1024


@dataclass(frozen=True, slots=True)
class TopKernel:
    """For each row of `extent` numbers, which lie one after the other, the places of `count` of them (i64).

    They are the largest, or the smallest, in the order in which PyTorch's operator gives them: sorted or as they fall.
    """

    name: str
    dtype: str
    rows: int
    extent: int
    count: int
    largest: bool
    sorted: bool

    @property
    def row_tile(self) -> int:
        """Count the rows of a tile."""
        return max(1, TILE_ELEMENTS // self.extent)

    @property
    def tile_count(self) -> int:
        """Count the tiles."""
        return ceil(self.rows / self.row_tile) if self.count else 0
