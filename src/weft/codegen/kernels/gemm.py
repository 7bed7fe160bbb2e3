"""A GemmKernel -> LLVM functions: one per register block, and one that walks the blocks of a range of tiles.

Contract of the emitted function: void name(out*, left*, right*, inputs*..., begin, end). It computes tiles
[begin, end); out overlaps no input except where an epilogue operand is read at the very place that is written.
Nothing outside the matrices is read or written. Sizes are constants and may be 0.
"""

from dataclasses import replace
from functools import partial

from weft.codegen.kernels.block_function import BlockFunction, Ending, PartOfSum
from weft.codegen.kernels.epilogue import EpilogueEmitter
from weft.codegen.kernels.gemm_dot import DotSums
from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.kernels.register_block import BlockShape, PanelAddress, RegisterBlock, Turns, begin_block_function
from weft.codegen.kernels.tiles import first_of, matrix_pointers
from weft.codegen.kernels.walk import Place, Visitor, emit_walk
from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register
from weft.plan.kernels.gemm import GemmKernel, PackedMatrix


def emit_gemm(module: Module, kernel: GemmKernel) -> None:
    """Emit the functions of a product into a module; the one to call has the kernel's name."""
    pointers = ["ptr"] * (3 + len(kernel.epilogue.inputs))
    writer = module.function(kernel.name, [*pointers, "i64", "i64"])
    if kernel.tile_count:
        GemmEmitter(writer, kernel).emit()


class GemmEmitter:
    """Emits the walk over blocks, and a function for each shape of block that the walk meets."""

    def __init__(self, writer: FunctionWriter, kernel: GemmKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.element, kernel.schedule.lanes)
        self.pointers = list(writer.parameters[:-2])
        self.blocks: dict[BlockShape, str] = {}

    def emit(self) -> None:
        """Emit the walk."""
        emit_walk(self.writer, self.kernel.walk, Visitor(self._enter, self._block))

    def _enter(self, matrix: Register) -> None:
        """Move all pointers to one matrix of the batch."""
        kernel = self.kernel
        strides = [kernel.out.batch, kernel.left.batch, kernel.right.batch]
        strides += [operand.batch for operand in kernel.epilogue.inputs]
        operands = list(zip(self.writer.parameters[:-2], strides, strict=True))
        self.pointers = matrix_pointers(self.vectors, matrix, kernel.batch, operands)

    def _block(self, shape: BlockShape, place: Place) -> None:
        """Call the function of a shape."""
        kernel, vectors = self.kernel, self.vectors
        out, left, right, *inputs = self.pointers
        moved = [
            vectors.moved(out, (place.row, kernel.out.row), (place.column, 1)),
            vectors.moved(left, (place.row, kernel.left.row), (place.first, kernel.left.column)),
            vectors.moved(right, (place.column, kernel.inner), (place.first, shape.vectors * vectors.lanes))
            if isinstance(kernel.right, PackedMatrix)
            else vectors.moved(right, (place.column, kernel.right.column), (place.first, kernel.right.row)),
        ]
        for pointer, operand in zip(inputs, kernel.epilogue.inputs, strict=True):
            moved.append(vectors.moved(pointer, (place.row, operand.row), (place.column, operand.column)))
        if shape not in self.blocks:
            self.blocks[shape] = BlockEmitter(self.writer.module, kernel, shape).emit()
        arguments = ", ".join(map(str, (*moved, place.turns, place.phase)))
        self.writer.emit_void(f"call void @{self.blocks[shape]}({arguments})")


class BlockEmitter:
    """Emits the function of one register block: void block(out*, left*, right*, inputs*..., turns, phase).

    All pointers are at the block's first row and column and at the first number of the sum to add.
    """

    def __init__(self, module: Module, kernel: GemmKernel, shape: BlockShape) -> None:
        self.name = f"{kernel.name}.{shape.rows}x{shape.vectors}.{shape.tail}"
        pointers = ["ptr"] * (3 + len(kernel.epilogue.inputs))
        self.writer = begin_block_function(module, self.name, [*pointers, "i64", "i64"])
        self.kernel = kernel
        self.shape = shape
        self.vectors = Vectors(self.writer, kernel.element, kernel.schedule.lanes)
        self.block = RegisterBlock(self.vectors, shape)
        self.out, self.left, self.right, *self.inputs, turns, phase = self.writer.parameters
        in_parts = kernel.walk.parts.count > 1
        self.phase = PartOfSum.of(phase, kernel.walk.parts.count)
        self.turns = turns if in_parts else self.writer.integer(kernel.walk.parts.total)
        if isinstance(kernel.right, PackedMatrix):
            self.panel = PanelAddress(self.right, shape.vectors * kernel.schedule.lanes, whole=True)
        else:
            self.panel = PanelAddress(self.right, kernel.right.row, whole=False)

    def emit(self) -> str:
        """Emit the sums and what follows them, and give the function's name."""
        kernel, schedule = self.kernel, self.kernel.schedule
        turns = Turns(self.turns, schedule.unroll, schedule.chains)
        rows = [self.vectors.address(self.out, row * kernel.out.row) for row in range(self.shape.rows)]
        ending = Ending(rows, EpilogueEmitter(self.vectors, kernel.epilogue, self.inputs), kernel.accumulate)
        function = BlockFunction(self.block, self.writer, ending, self.phase)
        if schedule.along_sum:
            dots = DotSums(self.vectors, kernel, self.shape, (self.left, self.right))
            if self.phase is None:
                function.emit(lambda sums: dots.add(sums, self.turns, dots.rest))
            else:
                function.emit(
                    lambda sums: dots.add(sums, self.turns, 0),
                    lambda sums: dots.add(sums, self.writer.integer(0), dots.rest, self.turns),
                )
        else:
            rest = self._rest if kernel.inner % schedule.unroll else None
            inside = schedule.parts_inside and kernel.parts.count > 1
            function.emit(self._parts if inside else lambda sums: self._run(sums, self.writer.integer(0), turns), rest)
        return self.name

    def _parts(self, sums: list[Register]) -> list[Register]:
        """Add the parts of the sum, which are set aside one by one."""
        parts, schedule, writer = self.kernel.parts, self.kernel.schedule, self.writer
        with writer.loop(0, parts.count, carried=sums) as loop:
            first = first_of(writer, parts, loop.index)
            count = writer.integer(parts.size)
            if parts.small:
                count = writer.binary("sub", first_of(writer, parts, writer.add(loop.index, 1)), first)
            part = self._run([self.vectors.zero] * len(sums), first, Turns(count, schedule.unroll, schedule.chains))
            totals = zip(loop.carried, part, strict=True)
            loop.carry(*(writer.binary("fadd", total, value) for total, value in totals))
        return list(loop.carried)

    def _run(self, sums: list[Register], first: Register, turns: Turns) -> list[Register]:
        """Add the products of so many turns from one on."""
        panel, unroll = self.panel, self.kernel.schedule.unroll
        panel = replace(panel, pointer=self.vectors.moved(panel.pointer, (first, panel.step * unroll)))
        left = self.vectors.moved(self.left, (first, self.kernel.left.column * unroll))
        return self.block.loop(sums, turns, panel, partial(self._rows, left))

    def _rows(self, left_base: Register, turn: Register, step: int) -> list[Register]:
        left, unroll = self.kernel.left, self.kernel.schedule.unroll
        base = self.vectors.moved(left_base, (turn, left.column * unroll))
        places = [self.vectors.address(base, step * left.column + row * left.row) for row in range(self.shape.rows)]
        return [self.vectors.load_splat(place) for place in places]

    def _rest(self, sums: list[Register]) -> list[Register]:
        """Add the steps that do not fill a turn."""
        unroll = self.kernel.schedule.unroll
        base = self.vectors.moved(self.panel.pointer, (self.turns, self.panel.step * unroll))
        for step in range(self.kernel.inner % unroll):
            sums = self.block.step(sums, base, (self.panel, step), self._rows(self.left, self.turns, step))
        return sums
