"""A Walk -> loops over tiles, parts of the sum and register blocks, which call a function per shape of block."""

from collections.abc import Callable
from dataclasses import dataclass

from weft.codegen.kernels.register_block import BlockShape
from weft.codegen.kernels.tiles import choose, first_of, panel_kinds, tile_range
from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register
from weft.plan.kernels.walk import Walk


@dataclass(frozen=True)
class Place:
    """A register block: its first row, visit and column, and of a part of the sum the first step, turns and phase."""

    row: Register
    visit: Register
    column: Register
    first: Register
    turns: Register
    phase: Register


@dataclass(frozen=True)
class Visitor:
    """What is done on a walk: `enter` when a matrix begins, `block` for a block of a shape at a place."""

    enter: Callable[[Register], None]
    block: Callable[[BlockShape, Place], None]


def emit_walk(writer: FunctionWriter, walk: Walk, visitor: Visitor) -> None:
    """Emit the walk over the tiles between the function's last two parameters."""
    begin, end = writer.parameters[-2:]
    with writer.loop(begin, end) as loop:
        rest, column = writer.divide(loop.index, walk.tile_columns)
        matrix, row = writer.divide(rest, walk.tile_rows)
        visitor.enter(matrix)
        rows = tile_range(writer, row, walk.tile_row_blocks, walk.blocks_down)
        panels = tile_range(writer, column, walk.tile_panels, walk.panels.count)
        outer, inner = (rows, panels) if walk.rows_outside else (panels, rows)
        with writer.loop(0, max(walk.parts.count, 1)) as part:
            first, turns, phase = _part(writer, walk, part.index)
            with writer.loop(*outer) as one, writer.loop(*inner) as two:
                below, panel = (one.index, two.index) if walk.rows_outside else (two.index, one.index)
                below, visit = writer.divide(below, walk.visits)
                line, block = _divided(writer, below, walk)
                row_start = first_of(writer, walk.row_blocks, block)
                start = writer.add(writer.multiply(line, walk.row_blocks.total), row_start)
                across = writer.multiply(first_of(writer, walk.panels, panel), walk.lanes)
                _choose_shape(writer, walk, (block, panel), Place(start, visit, across, first, turns, phase), visitor)


def _divided(writer: FunctionWriter, index: Register, walk: Walk) -> tuple[Register, Register]:
    """Split the index of a row block into its line and its place in it."""
    return (writer.integer(0), index) if walk.lines == 1 else writer.divide(index, walk.row_blocks.count)


def _part(writer: FunctionWriter, walk: Walk, index: Register) -> tuple[Register, Register, Register]:
    """Give the first step, the number of turns and the phase of a part of the sum."""
    start = first_of(writer, walk.parts, index)
    turns = writer.binary("sub", first_of(writer, walk.parts, writer.add(index, 1)), start)
    after_first = writer.compare("icmp sgt", index, writer.integer(0))
    last = writer.compare("icmp sge", index, writer.integer(walk.parts.count - 1))
    later = writer.select(last, writer.integer(2), writer.integer(1))
    return writer.multiply(start, walk.part_step), turns, writer.select(after_first, later, writer.integer(0))


def _choose_shape(
    writer: FunctionWriter, walk: Walk, index: tuple[Register, Register], place: Place, visitor: Visitor
) -> None:
    rows, kinds = walk.row_blocks, panel_kinds(walk.panels, walk.columns, walk.lanes)
    row_stops = [stop for stop, count in ((rows.large, rows.large), (rows.count, rows.small)) if count]
    panel_stops = [kind.stop for kind in kinds]
    shapes = [[BlockShape(size, kind.vectors, kind.tail) for kind in kinds] for size in rows.sizes]
    block, panel = index
    choose(
        writer,
        block,
        row_stops,
        lambda i: choose(writer, panel, panel_stops, lambda j: visitor.block(shapes[i][j], place)),
    )
