"""Define the kernel that finds where the largest or smallest numbers of rows are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from weft.plan.kernels.kernel import Boxes, Kernel
from weft.target import Target

TILE_ELEMENTS = 1024
STEP_CYCLES = 8.0  # of a number that is compared and moved


@dataclass(frozen=True, slots=True)
class TopKernel(Kernel):
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

    @property
    def tile_sizes(self) -> None:
        """All tiles are as many rows but the last."""

    @property
    def cycles(self) -> float:
        """Estimate the cycles to look at each number and to sort those that are kept."""
        return self.rows * (self.extent + self.count**2 / 4) * STEP_CYCLES

    @property
    def summary(self) -> str:
        """Say how many rows there are of what length."""
        return f"{self.rows} rows of {self.extent}"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give nothing narrower than all of the places and all of the numbers."""
        return None, None

    def renamed(self, name: str) -> TopKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> None:
        """Never: places are of another dtype than the numbers."""
