"""A DotKernel -> one LLVM function.

Contract of the emitted function: void name(out*, left*, right*, inputs*..., begin, end). It computes tiles
[begin, end); out overlaps no input except where an epilogue operand is read at the very place that is written.
Nothing outside the matrices is read or written. Sizes are constants and may be 0.
"""

from weft.codegen.epilogue import EpilogueEmitter
from weft.codegen.module import FunctionWriter, Module
from weft.codegen.panel_vectors import Vectors
from weft.codegen.register import Register
from weft.codegen.tiles import choose, matrix_pointers, tile_range
from weft.plan.kernel_dot import DotKernel


def emit_dot(module: Module, kernel: DotKernel) -> None:
    """Emit the function of a product of few rows."""
    pointers = ["ptr"] * (3 + len(kernel.epilogue.inputs))
    writer = module.function(kernel.name, [*pointers, "i64", "i64"])
    if kernel.tile_count:
        DotEmitter(writer, kernel).emit()


def summed_up(writer: FunctionWriter, vectors: list[Register], lanes: int) -> Register:
    """Add up the lanes of vectors, as many as a power of two; gives a vector with the sum of each.

    Halves of two vectors are added into one, again and again, so all lanes work to the end.
    """
    group = lanes
    while len(vectors) > 1:
        half = group // 2
        starts = range(0, 2 * lanes, group)
        low = [start + lane for start in starts for lane in range(half)]
        high = [place + half for place in low]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [writer.binary("fadd", writer.shuffle(x, y, low), writer.shuffle(x, y, high)) for x, y in pairs]
        group = half
    total, width = vectors[0], lanes
    while group > 1:
        half = group // 2
        low = [start + lane for start in range(0, width, group) for lane in range(half)]
        high = [place + half for place in low]
        total = writer.binary("fadd", writer.shuffle(total, total, low), writer.shuffle(total, total, high))
        group, width = half, width // 2
    return total


class DotEmitter:
    """Emits the loop over tiles and blocks of columns."""

    def __init__(self, writer: FunctionWriter, kernel: DotKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.element, kernel.schedule.lanes)
        self.sums = Vectors(writer, kernel.element, kernel.schedule.block_columns)

    def emit(self) -> None:
        """Emit the loops."""
        writer, kernel, size = self.writer, self.kernel, self.kernel.schedule.block_columns
        *pointers, begin, end = writer.parameters
        strides = [matrix.batch for matrix in (kernel.out, kernel.left, kernel.right)]
        strides += [operand.batch for operand in kernel.epilogue.inputs]
        whole = kernel.columns // size
        with writer.loop(begin, end) as tiles:
            matrix, tile = writer.divide(tiles.index, kernel.tiles_across)
            operands = list(zip(pointers, strides, strict=True))
            moved = matrix_pointers(self.vectors, matrix, kernel.batch, operands)
            first, stop = tile_range(writer, tile, kernel.schedule.tile_blocks, kernel.blocks)
            with writer.loop(first, stop) as blocks:
                kinds = [(whole, size), (kernel.blocks, kernel.columns % size)]
                shapes = [(stop, count) for stop, count in kinds if stop and count]
                column = writer.multiply(blocks.index, size)
                stops = [stop for stop, _ in shapes]
                choose(writer, blocks.index, stops, lambda place: self._block(moved, column, shapes[place][1]))

    def _block(self, pointers: list[Register], column: Register, count: int) -> None:
        """Compute all rows of some columns."""
        kernel, vectors = self.kernel, self.vectors
        out, left, right, *inputs = pointers
        rights = vectors.moved(right, (column, kernel.right.column))
        # Columns past the last are computed as the last once more, and not stored.
        places = [min(number, count - 1) * kernel.right.column for number in range(kernel.schedule.block_columns)]
        columns = [vectors.address(rights, place) for place in places]
        rows = [vectors.address(left, row * kernel.left.row) for row in range(kernel.rows)]
        sums = self._sums(rows, columns)
        moved = [
            vectors.moved(pointer, (column, operand.column))
            for pointer, operand in zip(inputs, kernel.epilogue.inputs, strict=True)
        ]
        epilogue = EpilogueEmitter(self.sums, kernel.epilogue, moved)
        to = vectors.moved(out, (column, kernel.out.column))
        width = kernel.schedule.block_columns
        for row in range(kernel.rows):
            total = summed_up(self.writer, sums[row * width : (row + 1) * width], vectors.lanes)
            if kernel.epilogue.bias:
                total = self.writer.binary("fadd", total, epilogue.bias(row, 0, count))
            result = epilogue.apply(total, row, 0, count)
            self.sums.store_apart(result, vectors.address(to, row * kernel.out.row), kernel.out.column, count)

    def _sums(self, rows: list[Register], columns: list[Register]) -> list[Register]:
        """Give vectors whose lanes add up to the dot products, row by row."""
        vectors, lanes = self.vectors, self.vectors.lanes
        whole, rest = divmod(self.kernel.inner, lanes)
        with self.writer.loop(0, whole, carried=[vectors.zero] * (len(rows) * len(columns))) as loop:
            lefts, rights = ([vectors.moved(x, (loop.index, lanes)) for x in bases] for bases in (rows, columns))
            loop.carry(*self._step(list(loop.carried), lefts, rights, lanes))
        if not rest:
            return list(loop.carried)
        lefts, rights = ([vectors.address(x, whole * lanes) for x in bases] for bases in (rows, columns))
        return self._step(list(loop.carried), lefts, rights, rest)

    def _step(self, sums: list[Register], rows: list[Register], columns: list[Register], count: int) -> list[Register]:
        loaded = [self.vectors.load(address, count) for address in rows]
        others = [self.vectors.load(address, count) for address in columns]
        pairs = [(row, column) for row in loaded for column in others]
        return [self.writer.fma(*pair, total) for pair, total in zip(pairs, sums, strict=True)]
