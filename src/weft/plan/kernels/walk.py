"""Register blocks of a product or convolution -> tiles, and the order in which a tile visits its blocks."""

from dataclasses import dataclass

from weft.plan.kernels.blocks import Blocks


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
