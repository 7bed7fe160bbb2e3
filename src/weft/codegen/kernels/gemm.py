"""Emit batched matmuls: out = epilogue(left x right), a function per register block and the loops over blocks.

Contract of the emitted function: void name(out*, left*, right*, inputs*..., begin, end). It computes tiles
[begin, end); out overlaps no input except where an epilogue operand is read at the very place that is written.
Nothing outside the matrices is read or written. Sizes are constants and may be 0.

The right operand is packed in panels (pack.py), or read where it is: row by row, its columns in vectors, or column by
column, with vectors along the sum (`DotSums`).
"""

from dataclasses import replace
from functools import partial

from weft.codegen.kernels.ends import Parameters, all_below, parameter_kinds
from weft.codegen.kernels.register_block import (
    BlockFunction,
    BlockShape,
    Ending,
    EpilogueEmitter,
    Iterations,
    Multiplier,
    PanelAddress,
    PartOfSum,
    RegisterBlock,
    stored_and_read,
)
from weft.codegen.kernels.tiles import BlockLoops, BlockPosition, CutCount, first_of, matrix_pointers
from weft.codegen.kernels.vectors import Vectors, all_lanes, row_coordinates
from weft.codegen.llvm.module import FunctionWriter, Module, Register
from weft.errors import InternalError
from weft.plan.kernels.gemm import GemmKernel, Matrix, PackedMatrix


def emit_gemm(module: Module, kernel: GemmKernel) -> None:
    """Emit the functions of a matmul into a module; the one to call has the kernel's name."""
    # SAFETY: nothing is claimed of the pointers: an epilogue may read out itself.
    pointers = ["ptr"] * (3 + len(kernel.epilogue.inputs))
    writer = module.function(kernel.name, parameter_kinds(kernel, pointers))
    if kernel.tile_count:
        GemmEmitter(writer, kernel).emit()


class GemmEmitter(BlockLoops):
    """Emits the loops over blocks, and a function for each shape of block that they meet."""

    def __init__(self, writer: FunctionWriter, kernel: GemmKernel) -> None:
        super().__init__(writer, kernel.walk)
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.element, kernel.schedule.lanes)
        self.stored, *self.inputs = stored_and_read(self.vectors, kernel.epilogue)
        self.left, self.right = (self.vectors.of(dtype) for dtype in kernel.operands)
        given = Parameters.of(writer, kernel)
        self.begin, self.end, self.given = given.begin, given.end, given.pointers
        self.pointers = list(self.given)
        self.ends, rows = given.ends, len(kernel.batch)
        self.rows_end = self.ends.get(rows)
        self.turns, self.left_over = _turns(writer, kernel, self.ends.get(rows + 2))
        if self.turns is not None and kernel.walk.parts.count > 1:
            self.cut = CutCount.of(writer, self.turns, kernel.most_turns)

    def is_needed(self, matrix: Register) -> Register | None:
        """Tell whether a matrix of the batch is within."""
        writer, batch = self.writer, self.kernel.batch
        ends = [(place, end) for place, end in self.ends.items() if place < len(batch)]
        if not ends:
            return None
        at = row_coordinates(writer, matrix, batch)
        return all_below(writer, ((at[place], end) for place, end in ends))

    def enter(self, matrix: Register) -> None:
        """Move all pointers to one matrix of the batch."""
        kernel = self.kernel
        strides = [kernel.out.batch, kernel.left.batch, kernel.right.batch]
        strides += [operand.batch for operand in kernel.epilogue.inputs]
        kinds = [self.stored, self.left, self.right, *self.inputs]
        operands = list(zip(self.given, strides, kinds, strict=True))
        self.pointers = matrix_pointers(self.writer, matrix, kernel.batch, operands)

    def block(self, shape: BlockShape, at: BlockPosition) -> None:
        """Call the function of a shape."""
        kernel, group = self.kernel, self.kernel.schedule.group
        out, left, right, *inputs = self.pointers
        depth = -(-kernel.inner // group) * group
        moved = [
            self.stored.moved(out, (at.row, kernel.out.row), (at.column, 1)),
            self.left.moved(left, (at.row, kernel.left.row), (at.first, kernel.left.column * group)),
            self.right.moved(right, (at.column, depth), (at.first, shape.vectors * self.vectors.lanes * group))
            if isinstance(kernel.right, PackedMatrix)
            else self.right.moved(right, (at.column, kernel.right.column), (at.first, kernel.right.row)),
        ]
        for own, pointer, operand in zip(self.inputs, inputs, kernel.epilogue.inputs, strict=True):
            moved.append(own.moved(pointer, (at.row, operand.row), (at.column, operand.column)))
        iterations = at.iterations if self.turns is None or self.cut is not None else self.turns
        more = [register for register in (self.left_over, at.rows) if register is not None]
        self.call_block(shape, [*moved, iterations, at.phase, *more])

    def block_function(self, shape: BlockShape) -> str:
        """Emit the function of a shape."""
        return GemmBlock(self.writer.module, self.kernel, shape).emit()


def _turns(writer: FunctionWriter, kernel: GemmKernel, end: Register | None) -> tuple[Register | None, Register | None]:
    """Give the turns of the loop over the sum, and the steps behind them, of a sum that ends where the caller says."""
    return (None, None) if end is None else writer.divide(end, kernel.schedule.unroll)


class GemmBlock:
    """Emits the function of one register block: void block(out*, left*, right*, inputs*..., iterations, phase).

    All pointers are at the block's first row and column and at the first number of the sum to add. Where the caller of
    the kernel says where the sum ends, the steps behind the last turn follow; and then, where the block is partial, how
    many of its rows exist. Of the others, the sums are those of the last that exists, and nothing is stored.
    """

    def __init__(self, module: Module, kernel: GemmKernel, shape: BlockShape) -> None:
        self.name = f"{kernel.name}.{shape.rows}x{shape.vectors}.{shape.tail}" + (".partial" if shape.partial else "")
        pointers = ["ptr"] * (3 + len(kernel.epilogue.inputs))
        self.sum_ends = len(kernel.batch) + 2 in kernel.ends
        more = self.sum_ends + shape.partial
        self.writer = module.inner_function(self.name, [*pointers, *["i64"] * (2 + more)])
        self.kernel = kernel
        self.shape = shape
        self.vectors = Vectors(self.writer, kernel.element, kernel.schedule.lanes)
        self.multiplier = Multiplier(self.vectors, *kernel.operands, kernel.schedule.group)
        self.block = RegisterBlock(self.vectors, shape, self.multiplier)
        given = list(self.writer.parameters)
        self.existing = given.pop() if shape.partial else None
        self.left_over = given.pop() if self.sum_ends else None
        self.out, self.left, self.right, *self.inputs, iterations, phase = given
        in_parts = kernel.walk.parts.count > 1
        self.phase = PartOfSum.of(phase, kernel.walk.parts.count, varies=self.sum_ends)
        self.iterations = iterations if in_parts or self.sum_ends else self.writer.integer(kernel.walk.parts.total)
        self.places: list[Register] | None = None  # of the rows of a partial block
        if self.existing is not None:
            last = self.writer.add(self.existing, -1)
            self.places = [self.writer.minimum(self.writer.integer(row), last) for row in range(shape.rows)]
        if isinstance(kernel.right, PackedMatrix):
            step = shape.vectors * kernel.schedule.lanes * kernel.schedule.group
            self.panel = PanelAddress(self.right, step, whole=True)
        else:
            self.panel = PanelAddress(self.right, kernel.right.row, whole=False)

    def emit(self) -> str:
        """Emit the sums and what follows them, and give the function's name."""
        kernel, schedule = self.kernel, self.kernel.schedule
        iterations = Iterations(self.iterations, schedule.unroll, schedule.chains)
        epilogue = EpilogueEmitter(self.vectors, kernel.epilogue, self.inputs, self.places)
        rows = self._each_row(epilogue.stored, self.out, kernel.out.row)
        ending = Ending(rows, epilogue, kernel.accumulate, self.existing)
        function = BlockFunction(self.block, self.writer, ending, self.phase)
        if schedule.along_sum:
            dots = DotSums(self.vectors, kernel, self.shape, (self.left, self.right))
            if self.phase is None:
                function.emit(lambda sums: dots.add(sums, self.iterations, dots.rest))
            else:
                function.emit(
                    lambda sums: dots.add(sums, self.iterations, 0),
                    lambda sums: dots.add(sums, self.writer.integer(0), dots.rest, self.iterations),
                )
        else:
            rest = self._rest if kernel.inner % (schedule.unroll * schedule.group) else None
            if self.sum_ends:
                rest = self._any_rest if schedule.unroll > 1 else None
            inside = schedule.parts_inside and kernel.parts.count > 1
            function.emit(
                self._parts if inside else lambda sums: self._run(sums, self.writer.integer(0), iterations), rest
            )
        return self.name

    def _each_row(self, vectors: Vectors, base: Register, stride: int) -> list[Register]:
        """Give an address in each row, those of rows that do not exist in the last one that does."""
        if self.places is None:
            return [vectors.address(base, row * stride) for row in range(self.shape.rows)]
        return [vectors.moved(base, (place, stride)) for place in self.places]

    def _parts(self, sums: list[Register]) -> list[Register]:
        """Add the parts of the sum, which are set aside one by one."""
        parts, schedule, writer = self.kernel.parts, self.kernel.schedule, self.writer
        cut = CutCount.of(writer, self.iterations, self.kernel.most_turns) if self.sum_ends else None
        with writer.loop(0, cut.count if cut else parts.count, carried=sums) as loop:
            first = cut.first(loop.index) if cut else first_of(writer, parts, loop.index)
            count = writer.integer(parts.size)
            if cut is not None:
                count = writer.binary("sub", cut.first(writer.add(loop.index, 1)), first)
            elif parts.small:
                count = writer.binary("sub", first_of(writer, parts, writer.add(loop.index, 1)), first)
            part = self._run(
                [self.vectors.zero] * len(sums), first, Iterations(count, schedule.unroll, schedule.chains)
            )
            totals = zip(loop.carried, part, strict=True)
            loop.carry(*(self.vectors.plus(total, value) for total, value in totals))
        return list(loop.carried)

    def _run(self, sums: list[Register], first: Register, iterations: Iterations) -> list[Register]:
        """Add the products of so many iterations from one on."""
        panel, unroll, multiplier = self.panel, self.kernel.schedule.unroll, self.multiplier
        panel = replace(panel, pointer=multiplier.right.moved(panel.pointer, (first, panel.step * unroll)))
        left = multiplier.left.moved(self.left, (first, self.kernel.left.column * unroll * multiplier.group))
        return self.block.loop(sums, iterations, panel, partial(self._rows, left))

    def _rows(self, left_base: Register, iteration: Register, step: int, numbers: int | None = None) -> list[Register]:
        left, unroll, multiplier = self.kernel.left, self.kernel.schedule.unroll, self.multiplier
        apart = left.column * multiplier.group
        base = multiplier.left.moved(left_base, (iteration, apart * unroll))
        if self.places is None:
            rows = [multiplier.left.address(base, step * apart + row * left.row) for row in range(self.shape.rows)]
        else:
            rows = [
                multiplier.left.address(row, step * apart) for row in self._each_row(multiplier.left, base, left.row)
            ]
        return [multiplier.row(row, numbers) for row in rows]

    def _rest(self, sums: list[Register]) -> list[Register]:
        """Add the steps that do not fill an iteration, and the numbers that do not fill a step."""
        kernel, schedule = self.kernel, self.kernel.schedule
        base = self.multiplier.right.moved(self.panel.pointer, (self.iterations, self.panel.step * schedule.unroll))
        whole, left_over = kernel.steps % schedule.unroll, kernel.inner % schedule.group
        for step in range(whole + bool(left_over)):
            rows = self._rows(self.left, self.iterations, step, left_over if step == whole else None)
            sums = self.block.step(sums, base, (self.panel, step), rows)
        return sums

    def _any_rest(self, sums: list[Register]) -> list[Register]:
        """Add the steps that do not fill an iteration, as many as the caller says."""
        assert self.left_over is not None
        unroll, left, right, panel = (
            self.kernel.schedule.unroll,
            self.multiplier.left,
            self.multiplier.right,
            self.panel,
        )
        base = right.moved(panel.pointer, (self.iterations, panel.step * unroll))
        row = left.moved(self.left, (self.iterations, self.kernel.left.column * unroll))
        with self.writer.loop(0, self.left_over, carried=sums) as loop:
            rows = self._rows(left.moved(row, (loop.index, self.kernel.left.column)), self.writer.integer(0), 0)
            moved = right.moved(base, (loop.index, panel.step))
            loop.carry(*self.block.step(list(loop.carried), moved, (panel, 0), rows))
        return list(loop.carried)


class DotSums:
    """Emits the sums of a block whose vectors run along the sum, for operands whose numbers along it lie side by side.

    A column has one vector of sums, and a block as many columns as a vector has lanes: at the end their lanes are added
    up into the one vector that the block's row stores. So a right operand that lies column by column is read where it
    is. Both pointers are at the block's first row and column, and at a part's first number.
    """

    def __init__(
        self, vectors: Vectors, kernel: GemmKernel, shape: BlockShape, pointers: tuple[Register, Register]
    ) -> None:
        right = kernel.right
        if not isinstance(right, Matrix) or right.row != 1 or kernel.left.column != 1 or shape.vectors != 1:
            fact = f"the kernel {kernel.name} has vectors along its sum, and operands that lie otherwise"
            raise InternalError(fact, why="a vector's numbers must be side by side, and a block one vector wide")
        self.vectors = vectors
        self.left, self.right = pointers
        self.left_row, self.column = kernel.left.row, right.column
        self.rows, self.columns = shape.rows, shape.tail
        self.rest = kernel.inner % vectors.lanes

    def add(
        self, sums: list[Register], iterations: Register, rest: int, first: Register | None = None
    ) -> list[Register]:
        """Add the products of so many whole vectors, from one on, and then those of so many more numbers."""
        vectors = self.vectors
        start = vectors.writer.multiply(first, vectors.lanes) if first else vectors.writer.integer(0)
        return [self._add_row(row, total, (iterations, rest, start)) for row, total in enumerate(sums)]

    def _add_row(self, row: int, total: Register, part: tuple[Register, int, Register]) -> Register:
        vectors, writer = self.vectors, self.vectors.writer
        iterations, rest, start = part
        left = vectors.moved(vectors.address(self.left, row * self.left_row), (start, 1))
        right = vectors.moved(self.right, (start, 1))
        begins = [vectors.zero] * self.columns
        # Places are carried along: LLVM does not find that by itself (compiler.py).
        with writer.loop(0, iterations, carried=[*begins, left, right]) as loop:
            *sums, left, right = loop.carried
            added = self._step(list(sums), left, right)
            loop.carry(*added, vectors.address(left, vectors.lanes), vectors.address(right, vectors.lanes))
        *sums, left, right = loop.carried
        if rest:
            sums = self._step(sums, left, right, rest)
        return writer.binary("fadd", total, all_lanes(writer, sums, vectors.lanes))

    def _step(self, sums: list[Register], left: Register, right: Register, count: int | None = None) -> list[Register]:
        vectors = self.vectors
        numbers = vectors.load(left, count)
        columns = (vectors.address(right, place * self.column) for place in range(self.columns))
        return [
            vectors.writer.fma(numbers, vectors.load(column, count), total)
            for column, total in zip(columns, sums, strict=True)
        ]
