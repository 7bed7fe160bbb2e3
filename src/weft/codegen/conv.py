"""A ConvKernel -> LLVM functions: one per register block, and one that walks the blocks of a range of tiles.

Contract of the emitted function: void name(out*, input*, weights*, inputs*..., begin, end). It computes tiles
[begin, end); out overlaps no input except where an epilogue operand is read at the very place that is written.
Nothing outside the tensors is read or written. Sizes are constants and may be 0.
"""

from collections.abc import Callable

from weft.codegen.block_function import BlockFunction, Ending, SetAside
from weft.codegen.epilogue import EpilogueEmitter
from weft.codegen.module import FunctionWriter, Module
from weft.codegen.panel_vectors import Vectors
from weft.codegen.pixels import Pixels
from weft.codegen.register import Register
from weft.codegen.register_block import BlockShape, PanelAddress, RegisterBlock, Turns, begin_block_function
from weft.codegen.walk import Place, Visitor, emit_walk
from weft.plan.kernel_conv import ConvKernel


def emit_conv(module: Module, kernel: ConvKernel) -> None:
    """Emit the functions of a convolution into a module; the one to call has the kernel's name."""
    pointers = ["ptr"] * (3 + len(kernel.epilogue.inputs))
    writer = module.function(kernel.name, [*pointers, "i64", "i64"])
    if kernel.tile_count:
        ConvEmitter(writer, kernel).emit()


class ConvEmitter:
    """Emits the walk over blocks, and a function for each shape of block that the walk meets."""

    def __init__(self, writer: FunctionWriter, kernel: ConvKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.element, kernel.schedule.lanes)
        self.pointers = list(writer.parameters[:-2])
        self.blocks: dict[BlockShape, str] = {}

    def emit(self) -> None:
        """Emit the walk."""
        emit_walk(self.writer, self.kernel.walk, Visitor(self._enter, self._block))

    def _enter(self, group: Register) -> None:
        """Move all pointers to the channels of one group."""
        kernel, moved = self.kernel, self.vectors.moved
        out, image, weights, *inputs = self.writer.parameters[:-2]
        self.pointers = [
            moved(out, (group, kernel.out_channels)),
            moved(image, (group, kernel.in_channels * kernel.input.channel)),
            moved(weights, (group, kernel.packed_group)),
        ]
        for pointer, operand in zip(inputs, kernel.epilogue.inputs, strict=True):
            self.pointers.append(moved(pointer, (group, kernel.out_channels * operand.column)))

    def _block(self, shape: BlockShape, place: Place) -> None:
        """Call the function of a shape."""
        kernel, moved = self.kernel, self.vectors.moved
        out, image, weights, *inputs = self.pointers
        arguments = [
            moved(out, (place.column, 1)),
            moved(image, (place.first, kernel.input.channel)),
            moved(weights, (place.column, kernel.depth), (place.first, shape.vectors * self.vectors.lanes)),
        ]
        for pointer, operand in zip(inputs, kernel.epilogue.inputs, strict=True):
            arguments.append(moved(pointer, (place.row, operand.row), (place.column, operand.column)))
        if shape not in self.blocks:
            self.blocks[shape] = ConvBlockEmitter(self.writer.module, kernel, shape).emit()
        listed = ", ".join(map(str, (*arguments, place.row, place.turns, place.phase)))
        self.writer.emit_void(f"call void @{self.blocks[shape]}({listed})")


class ConvBlockEmitter:
    """Emits the function of one register block: void block(out*, input*, weights*, inputs*..., pixel, turns, phase).

    out and input are at the first pixel of the first image, all pointers at the block's first channels.
    """

    def __init__(self, module: Module, kernel: ConvKernel, shape: BlockShape) -> None:
        self.name = f"{kernel.name}.{shape.rows}x{shape.vectors}.{shape.tail}"
        pointers = ["ptr"] * (3 + len(kernel.epilogue.inputs))
        self.writer = begin_block_function(module, self.name, [*pointers, "i64", "i64", "i64"])
        self.kernel = kernel
        self.shape = shape
        self.vectors = Vectors(self.writer, kernel.element, kernel.schedule.lanes)
        self.block = RegisterBlock(self.vectors, shape)
        out, image, self.weights, *inputs, pixel, turns, phase = self.writer.parameters
        in_parts = kernel.walk.parts.count > 1
        self.phase = phase if in_parts else None
        self.turns = turns if in_parts else self.writer.integer(kernel.walk.parts.total)
        self.pixels = Pixels(self.vectors, kernel, pixel, shape.rows)
        self.inputs = self.pixels.inputs(image)
        epilogue = EpilogueEmitter(self.vectors, kernel.epilogue, inputs)
        self.ending = Ending(self.pixels.outputs(out), epilogue)

    def emit(self) -> str:
        """Emit the sums and what follows them, and give the function's name."""
        BlockFunction(self.block, self.writer, self.ending, self.phase).emit(self._rows)
        return self.name

    def _rows(self, sums: list[Register]) -> list[Register]:
        """Add what the rows of the window give."""
        writer, rows = self.writer, self.kernel.window.size[0]
        if self.kernel.schedule.unroll_rows:
            for row in range(rows):
                sums = self._columns(writer.integer(row), sums)
            return sums
        return self._repeat("rows", rows, sums, self._columns)

    def _columns(self, row: Register, sums: list[Register]) -> list[Register]:
        """Add what the columns of one row of the window give."""
        if self.kernel.schedule.merge_columns:
            return self._run((row, self.writer.integer(0)), sums)
        columns = self.kernel.window.size[1]
        return self._repeat("columns", columns, sums, lambda column, inside: self._run((row, column), inside))

    def _repeat(
        self, name: str, count: int, sums: list[Register], add: Callable[[Register, list[Register]], list[Register]]
    ) -> list[Register]:
        """Add to the sums again and again: in registers, or in memory what each time gives alone."""
        if self.kernel.schedule.set_aside != name:
            with self.writer.loop(0, count, carried=sums) as loop:
                loop.carry(*add(loop.index, list(loop.carried)))
            return list(loop.carried)
        aside = SetAside(self.writer, self.vectors, sums)
        with self.writer.loop(0, count) as loop:
            aside.add(add(loop.index, [self.vectors.zero] * len(sums)))
        return aside.totals()

    def _run(self, tap: tuple[Register, Register], sums: list[Register]) -> list[Register]:
        """Add the products of the numbers that lie in a row from a place of the window on."""
        kernel, vectors = self.kernel, self.vectors
        row, column = tap
        width = self.shape.vectors * vectors.lanes
        per_column = kernel.in_channels * width
        weights = vectors.moved(self.weights, (row, per_column * kernel.window.size[1]), (column, per_column))
        pointers = self.pixels.seen(self.inputs, row, column)
        # A merged run goes on through columns; its numbers are side by side.
        step = 1 if kernel.schedule.merge_columns else kernel.input.channel
        unroll = kernel.schedule.unroll

        def numbers(turn: Register, place: int) -> list[Register]:
            bases = [vectors.moved(pointer, (turn, unroll * step)) for pointer in pointers]
            return [vectors.load_splat(vectors.address(base, place * step)) for base in bases]

        return self.block.loop(sums, Turns(self.turns, unroll), PanelAddress(weights, width, whole=True), numbers)
