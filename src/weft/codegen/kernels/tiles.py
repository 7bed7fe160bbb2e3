"""Loop over tiles, parts of a sum and register blocks, and call a function for each shape of block.

A kernel of this family (matmuls, convolutions, their gradients) cuts its result into blocks of rows by panels of
columns, of at most two sizes each (`Blocks`), and the numbers it adds up into parts that caches hold:

    for tile in begin..end:                      one matrix or group, some row blocks, some panels
      for part of the sum:                       so that what a part reads stays in the cache
        for row block, for panel of the tile:    the one that is read again innermost
          block_<rows>x<vectors>(...)            all sums in registers: register_block.py
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace

from weft.codegen.kernels.register_block import WHOLE_SUM, BlockShape
from weft.codegen.kernels.vectors import Vectors
from weft.codegen.llvm.module import FunctionWriter, Register
from weft.plan.kernels.walk import Blocks, Walk, partial_heights

LEAST_HALVED = 4  # rows of a block of which there is one of half as many


@dataclass(frozen=True)
class PanelKind:
    """Panels of one shape: they end before panel `stop`."""

    stop: int
    vectors: int
    tail: int


def panel_kinds(panels: Blocks, columns: int, lanes: int) -> list[PanelKind]:
    """List the shapes of panels in order; the last panel is one of its own where its last vector is partial."""
    tail = columns - (panels.total - 1) * lanes
    kinds = [PanelKind(panels.large, panels.size, lanes), PanelKind(panels.count, panels.size - 1, lanes)]
    kinds = [kind for kind, count in zip(kinds, (panels.large, panels.small), strict=True) if count]
    if tail == lanes:
        return kinds
    last = kinds.pop()
    if last.stop - 1 > (kinds[-1].stop if kinds else 0):
        kinds.append(PanelKind(last.stop - 1, last.vectors, lanes))
    return [*kinds, PanelKind(last.stop, last.vectors, tail)]


def first_of(writer: FunctionWriter, blocks: Blocks, index: Register) -> Register:
    """Give where a block starts, for an index known when the kernel runs."""
    start = writer.multiply(index, blocks.size)
    if not blocks.small:
        return start
    over = writer.add(index, -blocks.large)
    none = writer.integer(0)
    return writer.binary("sub", start, writer.select(writer.compare("icmp sgt", over, none), over, none))


def blocks_before(writer: FunctionWriter, blocks: Blocks, end: Register) -> Register:
    """Give how many blocks begin before a place."""
    if not blocks.count:
        return writer.integer(0)
    whole = blocks.large * blocks.size
    among_large = writer.divide(writer.add(writer.minimum(end, writer.integer(whole)), blocks.size - 1), blocks.size)[0]
    if not blocks.small:
        return among_large
    rest = writer.maximum(writer.add(end, -whole), writer.integer(0))
    height = blocks.size - 1
    more = writer.divide(writer.add(rest, height - 1), height)[0]
    return writer.binary("add", among_large, writer.minimum(more, writer.integer(blocks.small)))


def tile_range(writer: FunctionWriter, tile: Register, size: int, count: int) -> tuple[Register, Register]:
    """Give the first block of a tile and the one after its last, where a tile has `size` blocks of `count`."""
    if size >= count:
        return writer.integer(0), writer.integer(count)
    start = writer.multiply(tile, size)
    stop = writer.add(start, size)
    return start, writer.minimum(stop, writer.integer(count)) if count % size else stop


def choose(writer: FunctionWriter, index: Register, stops: list[int], emit: Callable[[int], None]) -> None:
    """Emit one alternative per stop and run the one of the first stop that is above the index."""
    after = writer.label("chosen")
    for place, stop in enumerate(stops[:-1]):
        yes, no = writer.label("here"), writer.label("later")
        writer.branch_if(writer.compare("icmp slt", index, writer.integer(stop)), yes, no)
        writer.begin_block(yes)
        emit(place)
        writer.branch(after)
        writer.begin_block(no)
    emit(len(stops) - 1)
    writer.branch(after)
    writer.begin_block(after)


def choose_size(writer: FunctionWriter, index: Register, blocks: Blocks, emit: Callable[[int], None]) -> None:
    """Emit one alternative for each size that blocks have, and run the one of the block at an index."""
    stops = [stop for stop, count in ((blocks.large, blocks.large), (blocks.count, blocks.small)) if count]
    choose(writer, index, stops, emit)


def matrix_pointers(
    writer: FunctionWriter,
    index: Register,
    batch: tuple[int, ...],
    operands: Sequence[tuple[Register, tuple[int, ...], Vectors]],
) -> list[Register]:
    """Move pointers to one matrix of a batch; each comes with its strides along the batch, and vectors of its dtype."""
    pointers = [pointer for pointer, _, _ in operands]
    for place in reversed(range(len(batch))):
        index, coordinate = writer.divide(index, batch[place])
        pointers = [
            vectors.moved(pointer, (coordinate, strides[place]))
            for pointer, (_, strides, vectors) in zip(pointers, operands, strict=True)
        ]
    return pointers


@dataclass(frozen=True)
class CutCount:
    """A count that is known when a kernel runs, cut as `Blocks` are: into as few parts of at most so many as possible.

    Of nothing there is one part, which is empty.
    """

    writer: FunctionWriter
    count: Register
    size: Register
    large: Register

    @classmethod
    def of(cls, writer: FunctionWriter, total: Register, most: int) -> "CutCount":
        """Cut a count."""
        one = writer.integer(1)
        count = writer.maximum(writer.divide(writer.add(total, most - 1), most)[0], one)
        size = writer.binary("udiv", writer.add(writer.binary("add", total, count), -1), count)
        small = writer.binary("sub", writer.binary("mul", size, count), total)
        return cls(writer, count, size, writer.binary("sub", count, small))

    def first(self, index: Register) -> Register:
        """Give where a part starts."""
        writer = self.writer
        over = writer.maximum(writer.binary("sub", index, self.large), writer.integer(0))
        return writer.binary("sub", writer.binary("mul", index, self.size), over)


@dataclass(frozen=True)
class BlockPosition:
    """Where a block is: its first row, visit and column; of a part of the sum the first step, iterations and phase.

    `rows` are those that a block has, where it has fewer than its shape.
    """

    row: Register
    visit: Register
    column: Register
    first: Register
    iterations: Register
    phase: Register
    rows: Register | None = None


class BlockLoops(ABC):
    """Emits the loops; a kernel's emitter says what is done where a matrix begins and at each block.

    Where sizes vary, rows end at `rows_end`, and the sum has the parts of `cut`. Of each line the first `blocks` row
    blocks are computed, of the lines that `is_line_needed` says.
    """

    def __init__(self, writer: FunctionWriter, walk: Walk) -> None:
        self.writer = writer
        self.walk = walk
        self.begin, self.end = writer.parameters[-2:]
        self.rows_end: Register | None = None
        self.cut: CutCount | None = None
        self.blocks: Register | None = None
        self._functions: dict[BlockShape, str] = {}

    def is_needed(self, matrix: Register) -> Register | None:
        """Tell whether a matrix is computed; None where all are."""
        del matrix
        return None

    def is_line_needed(self, line: Register) -> Register | None:
        """Tell whether something of a line is computed; None where something of all is."""
        del line
        return None

    def is_block_needed(self, at: BlockPosition) -> Register | None:
        """Tell whether a block is computed; None where all are."""
        del at
        return None

    def rows_left(self, at: BlockPosition) -> Register | None:
        """Tell how many rows are needed from a block's first on, where half a block may do; None where it may not."""
        del at
        return None

    @abstractmethod
    def enter(self, matrix: Register) -> None:
        """Move pointers to one matrix of the batch, or one group."""

    @abstractmethod
    def block(self, shape: BlockShape, at: BlockPosition) -> None:
        """Call the function of a shape with what it needs at a position."""

    @abstractmethod
    def block_function(self, shape: BlockShape) -> str:
        """Emit the function of a shape, and give its name."""

    def call_block(self, shape: BlockShape, arguments: list[Register]) -> None:
        """Call the function of a shape, which is emitted when it is first needed."""
        if shape not in self._functions:
            self._functions[shape] = self.block_function(shape)
        # SAFETY: the loops stay inside the walk's counts of blocks and panels, so pointers are at blocks that exist; a
        # shape says how many rows and columns there are, and its function touches no others.
        self.writer.emit_void(f"call void @{self._functions[shape]}({', '.join(map(str, arguments))})")

    def emit(self) -> None:
        """Emit the loops over the tiles between the function's last two parameters."""
        writer, walk = self.writer, self.walk
        with writer.loop(self.begin, self._last_tile()) as loop:
            rest, column = writer.divide(loop.index, walk.tile_columns)
            matrix, row = writer.divide(rest, walk.tile_rows)
            needed = self._is_tile_needed(matrix, row)
            with writer.only_if(needed) if needed else nullcontext():
                self.enter(matrix)
                self._tile(row, column)

    def _is_tile_needed(self, matrix: Register, row: Register) -> Register | None:
        """Tell whether some of a tile is computed; None where something of all is."""
        writer, walk, needed = self.writer, self.walk, self.is_needed(matrix)
        if self.rows_end is None or walk.lines * walk.visits > 1:
            return needed
        first = first_of(writer, walk.row_blocks, writer.multiply(row, walk.tile_row_blocks))
        above = writer.compare("icmp slt", first, self.rows_end)
        return above if needed is None else writer.binary("and", needed, above)

    def _last_tile(self) -> Register:
        """Give where tiles end, at the latest behind the last row of the only matrix."""
        writer, walk = self.writer, self.walk
        if self.rows_end is None or walk.matrices * walk.lines * walk.visits > 1:
            return self.end
        height = max(walk.row_blocks.sizes[-1] * walk.tile_row_blocks, 1)
        tiles, _ = writer.divide(writer.add(self.rows_end, height - 1), height)
        return writer.minimum(self.end, writer.multiply(tiles, walk.tile_columns))

    def _tile(self, row: Register, column: Register) -> None:
        writer, walk = self.writer, self.walk
        rows = tile_range(writer, row, walk.tile_row_blocks, walk.blocks_down)
        panels = tile_range(writer, column, walk.tile_panels, walk.panels.count)
        with writer.loop(0, self.cut.count if self.cut else max(walk.parts.count, 1)) as part:
            first, iterations, phase = self._part(part.index)
            with ExitStack() as loops:
                panel = None if walk.rows_outside else loops.enter_context(writer.loop(*panels)).index
                line, visit, block = loops.enter_context(self._row_blocks(rows))
                if panel is None:
                    panel = loops.enter_context(writer.loop(*panels)).index
                row_start = first_of(writer, walk.row_blocks, block)
                start = writer.add(writer.multiply(line, walk.row_blocks.total), row_start)
                across = writer.multiply(first_of(writer, walk.panels, panel), walk.lanes)
                at = BlockPosition(start, visit, across, first, iterations, phase)
                needed = self.is_block_needed(at) if self.blocks is None else None
                with writer.only_if(needed) if needed else nullcontext():
                    self._choose_shape((block, panel), at)

    @contextmanager
    def _row_blocks(self, rows: tuple[Register, Register]) -> Iterator[tuple[Register, Register, Register]]:
        """Go through the row blocks of a tile: give the line of each, which visit of that, and its place in it."""
        writer, walk, count = self.writer, self.walk, self.walk.row_blocks.count
        if self.blocks is None:
            with writer.loop(*rows) as loop:
                below, visit = writer.divide(loop.index, walk.visits)
                line, block = self._line_and_block(below)
                yield line, visit, block
            return
        first, last = writer.divide(rows[0], count)[0], writer.divide(writer.add(rows[1], count - 1), count)[0]
        with writer.loop(first, last) as loop:
            needed = self.is_line_needed(loop.index)
            with writer.only_if(needed) if needed else nullcontext():
                begin = writer.multiply(loop.index, count)
                inside = [writer.binary("sub", bound, begin) for bound in rows]
                start = writer.maximum(inside[0], writer.integer(0))
                with writer.loop(start, writer.minimum(inside[1], self.blocks)) as across:
                    yield loop.index, writer.integer(0), across.index

    def _line_and_block(self, index: Register) -> tuple[Register, Register]:
        """Split the index of a row block into its line and its place in it."""
        writer, walk = self.writer, self.walk
        return (writer.integer(0), index) if walk.lines == 1 else writer.divide(index, walk.row_blocks.count)

    def _part(self, index: Register) -> tuple[Register, Register, Register]:
        """Give the first step, the number of iterations and the phase of a part of the sum."""
        writer, parts, cut = self.writer, self.walk.parts, self.cut
        start, count = first_of(writer, parts, index), writer.integer(parts.count)
        following = writer.add(index, 1)
        if cut is None:
            iterations = writer.binary("sub", first_of(writer, parts, following), start)
        else:
            start, count = cut.first(index), cut.count
            iterations = writer.binary("sub", cut.first(following), start)
        after_first = writer.compare("icmp sgt", index, writer.integer(0))
        last = writer.compare("icmp sge", following, count)
        later = writer.select(last, writer.integer(2), writer.integer(1))
        first = writer.integer(0) if cut is None else writer.select(last, writer.integer(WHOLE_SUM), writer.integer(0))
        return (
            writer.multiply(start, self.walk.part_step),
            iterations,
            writer.select(after_first, later, first),
        )

    def _choose_shape(self, index: tuple[Register, Register], at: BlockPosition) -> None:
        walk, (block, panel) = self.walk, index
        kinds = panel_kinds(walk.panels, walk.columns, walk.lanes)
        stops = [kind.stop for kind in kinds]
        shapes = [[BlockShape(size, kind.vectors, kind.tail) for kind in kinds] for size in walk.row_blocks.sizes]

        def emit(height: int) -> None:
            choose(self.writer, panel, stops, lambda kind: self._block(shapes[height][kind], at))

        choose_size(self.writer, block, walk.row_blocks, emit)

    def _block(self, shape: BlockShape, at: BlockPosition) -> None:
        """Emit the block of a shape; where rows end, one of fewer rows may be all that is left, or none."""
        writer = self.writer
        if self.rows_end is None:
            left, half = self.rows_left(at), -(-shape.rows // 2)
            if left is None or shape.rows < LEAST_HALVED:
                self.block(shape, at)
            else:
                parts = (replace(shape, rows=half), shape)
                choose(writer, left, [half + 1, shape.rows + 1], lambda place: self.block(parts[place], at))
            return
        rows = writer.binary("sub", self.rows_end, at.row)
        heights = partial_heights(shape.rows)

        def emit(place: int) -> None:
            if place > len(heights):
                self.block(shape, at)
            elif place:
                self.block(replace(shape, rows=heights[place - 1], partial=True), replace(at, rows=rows))

        choose(writer, rows, [1, *(min(height + 1, shape.rows) for height in heights), shape.rows + 1], emit)
