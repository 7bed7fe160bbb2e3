"""Cut lengths into register blocks as even as possible, and say which tile visits each block when."""

from __future__ import annotations

from dataclasses import dataclass

from weft.plan.kernels.expression import BLOCK_CYCLES, block_step_cycles
from weft.plan.kernels.kernel import Range


@dataclass(frozen=True)
class Blocks:
    """A length cut in order: `large` blocks of `size`, then `small` blocks of `size - 1`."""

    size: int
    large: int
    small: int

    @property
    def count(self) -> int:
        """Count the blocks."""
        return self.large + self.small

    @property
    def total(self) -> int:
        """Give the length that was cut."""
        return self.large * self.size + self.small * (self.size - 1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Give the distinct block sizes that occur, largest first."""
        return tuple(size for size, count in ((self.size, self.large), (self.size - 1, self.small)) if count)

    @property
    def kinds(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Give both sizes, each with how many blocks there are of it."""
        return (self.size, self.large), (self.size - 1, self.small)

    def grouped(self, times: int, group: int) -> list[int]:
        """Give the length of each group of so many blocks, of a length that is cut so many times."""
        sizes = ([self.size] * self.large + [self.size - 1] * self.small) * times
        return [sum(sizes[first : first + group]) for first in range(0, len(sizes), group)]

    def start(self, index: int) -> int:
        """Give where a block starts; `start(count)` is the total."""
        return index * self.size - max(0, index - self.large)


def cut(total: int, most: int) -> Blocks:
    """Cut a length into as few blocks of at most `most` as possible: `cut(17, 8)` is 6 + 6 + 5."""
    if total == 0:
        return Blocks(size=most, large=0, small=0)
    count = -(-total // most)
    size = -(-total // count)
    small = size * count - total
    return Blocks(size=size, large=count - small, small=small)


def whole_cut(total: int, most: int) -> list[int]:
    """Cut a length into pieces of `most` and a rest: `whole_cut(17, 8)` is 8 + 8 + 1."""
    whole, rest = divmod(total, most)
    return [most] * whole + [rest] * bool(rest)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a range of tiles covers: matrices (groups), rows and columns of each."""

    matrices: Range
    rows: Range
    columns: Range


@dataclass(frozen=True)
class Walk:
    """Blocks of rows (in lines of equal length) by panels of columns, for each matrix and part of the sum.

    A tile is `tile_row_blocks` by `tile_panels` register blocks of one matrix; `rows_outside` visits all panels for a
    row block before the next row block. `parts` cuts the turns of the loop over the sum, each of `part_step` steps.
    A row block is visited `visits` times in a row, each time as other rows: another pixel of the same images.
    """

    matrices: int
    lines: int
    row_blocks: Blocks
    panels: Blocks
    columns: int
    lanes: int
    parts: Blocks
    part_step: int
    tile_row_blocks: int
    tile_panels: int
    rows_outside: bool
    visits: int = 1

    @property
    def blocks_down(self) -> int:
        """Count the visits of all row blocks of all lines."""
        return self.lines * self.row_blocks.count * self.visits

    @property
    def tile_rows(self) -> int:
        """Count the tiles above each other."""
        return -(-self.blocks_down // self.tile_row_blocks)

    @property
    def tile_columns(self) -> int:
        """Count the tiles side by side."""
        return -(-self.panels.count // self.tile_panels)

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        return self.matrices * self.tile_rows * self.tile_columns

    @property
    def tile_sizes(self) -> tuple[list[int], list[int]]:
        """Give the rows of tiles above each other, of one matrix, and the vectors of those side by side."""
        # Where a block of rows is visited several times a group of visits is taken for one of blocks.
        down = self.row_blocks.grouped(self.lines * self.visits, self.tile_row_blocks)
        return down, self.panels.grouped(1, self.tile_panels)

    def cycles(self, steps: float, epilogue: float = 0.0) -> float:
        """Estimate the cycles of all register blocks, each so many steps of a sum and an epilogue per vector."""
        return (
            self.matrices
            * self.lines
            * self.visits
            * sum(
                rows * columns * (block_step_cycles(height, width) * steps + BLOCK_CYCLES + epilogue * height * width)
                for height, rows in self.row_blocks.kinds
                for width, columns in self.panels.kinds
            )
        )

    def covered(self, begin: int, end: int) -> Coverage:
        """Give the rows and columns that a range of a walk's tiles covers: all of them where it is more than one row.

        Rows are those of all visits.
        """
        rows, columns = (0, self.lines * self.row_blocks.total * self.visits), (0, self.columns)
        first, last = begin // self.tile_columns, (end - 1) // self.tile_columns
        matrices = (first // self.tile_rows, last // self.tile_rows + 1)
        if matrices[1] - matrices[0] == 1:
            top = first % self.tile_rows * self.tile_row_blocks
            bottom = min((last % self.tile_rows + 1) * self.tile_row_blocks, self.blocks_down)
            first_row, last_row = self._row_start(top // self.visits), self._row_start(-(-bottom // self.visits))
            rows = (first_row * self.visits, last_row * self.visits)
        if first == last:
            left = begin % self.tile_columns * self.tile_panels
            right = min(((end - 1) % self.tile_columns + 1) * self.tile_panels, self.panels.count)
            columns = (self.panels.start(left) * self.lanes, min(self.panels.start(right) * self.lanes, self.columns))
        return Coverage(matrices, rows, columns)

    def _row_start(self, block: int) -> int:
        line, place = divmod(block, max(self.row_blocks.count, 1))
        return line * self.row_blocks.total + self.row_blocks.start(place)


def partial_heights(rows: int) -> list[int]:
    """List the heights of which there is code for fewer rows than a block has."""
    below = [height for height in (2, 4) if height < rows]
    return [*below, rows] if rows - 1 > max(below, default=0) else below
