"""A GemmKernel -> LLVM functions: one per register block, and one that walks the blocks of a range of tiles.

Contract of the emitted function: void name(out*, left*, right*, inputs*..., begin, end). It computes tiles
[begin, end); out overlaps no input except where an epilogue operand is read at the very place that is written.
Nothing outside the matrices is read or written. Sizes are constants and may be 0.
"""

from dataclasses import dataclass

from weft.codegen.epilogue import EpilogueEmitter
from weft.codegen.module import FunctionWriter, Module
from weft.codegen.panel_vectors import Vectors
from weft.codegen.register import Register
from weft.codegen.register_block import BlockShape, PanelAddress, RegisterBlock, Turns, begin_block_function
from weft.codegen.tiles import choose, first_of, matrix_pointers, panel_kinds, tile_range
from weft.plan.kernel_gemm import GemmKernel, PackedMatrix


def emit_gemm(module: Module, kernel: GemmKernel) -> None:
    """Emit the functions of a product into a module; the one to call has the kernel's name."""
    pointers = ["ptr"] * (3 + len(kernel.epilogue.inputs))
    writer = module.function(kernel.name, [*pointers, "i64", "i64"])
    if kernel.tile_count:
        GemmEmitter(writer, kernel).emit()


@dataclass(frozen=True)
class Part:
    """A part of the sum: its first step, how many turns of the loop it has, and its phase (see BlockEmitter)."""

    start: Register
    turns: Register
    phase: Register


class GemmEmitter:
    """Emits the walk over tiles and blocks; methods go from the tile inwards."""

    def __init__(self, writer: FunctionWriter, kernel: GemmKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.schedule = kernel.schedule
        self.vectors = Vectors(writer, kernel.element, kernel.schedule.lanes)
        self.kinds = panel_kinds(kernel.panels, kernel.columns, kernel.schedule.lanes)
        self.blocks: dict[BlockShape, str] = {}

    def emit(self) -> None:
        """Emit the loop over tiles."""
        writer, kernel = self.writer, self.kernel
        *pointers, begin, end = writer.parameters
        strides = [kernel.out.batch, kernel.left.batch, kernel.right.batch]
        strides += [operand.batch for operand in kernel.epilogue.inputs]
        with writer.loop(begin, end) as loop:
            rest, column = writer.divide(loop.index, kernel.tile_columns)
            matrix, row = writer.divide(rest, kernel.tile_rows)
            operands = list(zip(pointers, strides, strict=True))
            self.pointers = matrix_pointers(self.vectors, matrix, kernel.batch, operands)
            rows = tile_range(writer, row, self.schedule.tile_row_blocks, kernel.row_blocks.count)
            panels = tile_range(writer, column, self.schedule.tile_panels, kernel.panels.count)
            self._tile(rows, panels)

    def _tile(self, rows: tuple[Register, Register], panels: tuple[Register, Register]) -> None:
        writer, parts = self.writer, self.kernel.turn_blocks
        outer, inner = (rows, panels) if self.schedule.rows_outside else (panels, rows)
        with writer.loop(0, max(parts.count, 1)) as loop:
            part = self._part(loop.index)
            with writer.loop(*outer) as one, writer.loop(*inner) as two:
                row, panel = (one.index, two.index) if self.schedule.rows_outside else (two.index, one.index)
                self._block(row, panel, part)

    def _part(self, index: Register) -> Part:
        writer, parts = self.writer, self.kernel.turn_blocks
        start = first_of(writer, parts, index)
        turns = writer.binary("sub", first_of(writer, parts, writer.add(index, 1)), start)
        after_first = writer.compare("icmp sgt", index, writer.integer(0))
        last = writer.compare("icmp sge", index, writer.integer(parts.count - 1))
        later = writer.select(last, writer.integer(2), writer.integer(1))
        phase = writer.select(after_first, later, writer.integer(0))
        return Part(writer.multiply(start, self.schedule.unroll), turns, phase)

    def _block(self, row: Register, panel: Register, part: Part) -> None:
        """Call the function of the shape that a row block and a panel have."""
        rows = self.kernel.row_blocks
        row_stops = [stop for stop, count in ((rows.large, rows.large), (rows.count, rows.small)) if count]
        place = (
            first_of(self.writer, rows, row),
            self.writer.multiply(first_of(self.writer, self.kernel.panels, panel), self.schedule.lanes),
        )
        shapes = [[BlockShape(size, kind.vectors, kind.tail) for kind in self.kinds] for size in rows.sizes]
        panel_stops = [kind.stop for kind in self.kinds]
        choose(
            self.writer,
            row,
            row_stops,
            lambda i: choose(self.writer, panel, panel_stops, lambda j: self._call(shapes[i][j], place, part)),
        )

    def _call(self, shape: BlockShape, place: tuple[Register, Register], part: Part) -> None:
        kernel, vectors = self.kernel, self.vectors
        row, column = place
        out, left, right, *inputs = self.pointers
        moved = [
            vectors.moved(out, (row, kernel.out.row), (column, 1)),
            vectors.moved(left, (row, kernel.left.row), (part.start, kernel.left.column)),
            vectors.moved(right, (column, kernel.inner), (part.start, shape.vectors * vectors.lanes))
            if isinstance(kernel.right, PackedMatrix)
            else vectors.moved(right, (column, 1), (part.start, kernel.right.row)),
        ]
        for pointer, operand in zip(inputs, kernel.epilogue.inputs, strict=True):
            moved.append(vectors.moved(pointer, (row, operand.row), (column, operand.column)))
        if shape not in self.blocks:
            self.blocks[shape] = BlockEmitter(self.writer.module, kernel, shape).emit()
        arguments = ", ".join(map(str, (*moved, part.turns, part.phase)))
        self.writer.emit_void(f"call void @{self.blocks[shape]}({arguments})")


class BlockEmitter:
    """Emits the function of one register block: void block(out*, left*, right*, inputs*..., turns, phase).

    All pointers are at the block's first row and column and at the first number of the sum to add. Phase 0 is the
    first part of the sum, 2 the last of several, 1 any other.
    """

    def __init__(self, module: Module, kernel: GemmKernel, shape: BlockShape) -> None:
        self.name = f"{kernel.name}.{shape.rows}x{shape.vectors}.{shape.tail}"
        pointers = ["ptr"] * (3 + len(kernel.epilogue.inputs))
        self.writer = begin_block_function(module, self.name, [*pointers, "i64", "i64"])
        self.kernel = kernel
        self.shape = shape
        self.parts = max(kernel.turn_blocks.count, 1)
        self.vectors = Vectors(self.writer, kernel.element, kernel.schedule.lanes)
        self.block = RegisterBlock(self.vectors, shape)
        self.out, self.left, right, *inputs, turns, self.phase = self.writer.parameters
        self.turns = self.writer.integer(kernel.turn_blocks.total) if self.parts == 1 else turns
        width = shape.vectors * kernel.schedule.lanes
        packed = isinstance(kernel.right, PackedMatrix)
        self.panel = PanelAddress(right, width if isinstance(kernel.right, PackedMatrix) else kernel.right.row, packed)
        self.epilogue = EpilogueEmitter(self.vectors, kernel.epilogue, inputs)

    def emit(self) -> str:
        """Emit the sums and what follows them, and give the function's name."""
        kernel, schedule, writer = self.kernel, self.kernel.schedule, self.writer
        turns = Turns(self.turns, schedule.unroll, schedule.chains)
        sums = self.block.loop(self._start(), turns, self.panel, self._rows)
        if self.parts == 1:
            self._finish(self._rest(sums), add=kernel.accumulate, last=True)
            return self.name
        first, middle, last, after = (writer.label(stem) for stem in ("first", "middle", "last", "after"))
        writer.emit_void(f"switch {self.phase}, label %{middle} [ i64 0, label %{first} i64 2, label %{last} ]")
        for label in (first, middle, last):
            writer.begin_block(label)
            self.epilogue.begin_block()
            rest = self._rest(sums) if label == last else sums
            self._finish(rest, add=kernel.accumulate or label != first, last=label == last)
            writer.branch(after)
        writer.begin_block(after)
        return self.name

    def _places(self) -> list[tuple[int, int, int]]:
        """List row, column and count of every vector of the block."""
        lanes, shape = self.vectors.lanes, self.shape
        return [(r, v * lanes, shape.count(v, lanes)) for r in range(shape.rows) for v in range(shape.vectors)]

    def _start(self) -> list[Register]:
        starts = [self.epilogue.bias(*place) for place in self._places()]
        if self.parts == 1 or self.kernel.epilogue.bias is None:
            return starts
        first = self.writer.compare("icmp eq", self.phase, self.writer.integer(0))
        return [self.writer.select(first, start, self.vectors.zero) for start in starts]

    def _rows(self, turn: Register, step: int) -> list[Register]:
        left, unroll = self.kernel.left, self.kernel.schedule.unroll
        base = self.vectors.moved(self.left, (turn, left.column * unroll))
        places = [self.vectors.address(base, step * left.column + row * left.row) for row in range(self.shape.rows)]
        return [self.vectors.load_splat(place) for place in places]

    def _rest(self, sums: list[Register]) -> list[Register]:
        """Add the steps that do not fill a turn."""
        unroll = self.kernel.schedule.unroll
        base = self.vectors.moved(self.panel.pointer, (self.turns, self.panel.step * unroll))
        for step in range(self.kernel.inner % unroll):
            sums = self.block.step(sums, base, (self.panel, step), self._rows(self.turns, step))
        return sums

    def _finish(self, sums: list[Register], *, add: bool, last: bool) -> None:
        for value, place in zip(sums, self._places(), strict=True):
            row, column, count = place
            address = self.vectors.address(self.out, row * self.kernel.out.row + column)
            total = self.writer.binary("fadd", value, self.vectors.load(address, count)) if add else value
            self.vectors.store(self.epilogue.apply(total, *place) if last else total, address, count)
