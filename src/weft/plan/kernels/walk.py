"""Order the register blocks of a product or convolution: which tile has them, and when it visits each."""

from dataclasses import dataclass

from weft.plan.kernels.blocks import Blocks
from weft.plan.kernels.expression import BLOCK_CYCLES, block_step_cycles
from weft.plan.kernels.kernel import Range


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
