"""A right operand anywhere in memory -> panels that a register block reads from beginning to end.

Contract of the emitted function: void name(packed*, source*, begin, end), one tile per panel of each matrix.
"""

from weft.codegen.module import FunctionWriter, Module
from weft.codegen.panel_vectors import Vectors
from weft.codegen.register import Register
from weft.codegen.tiles import choose, first_of, matrix_pointers, panel_kinds
from weft.plan.kernel_gemm import PackKernel


def emit_pack(module: Module, kernel: PackKernel) -> None:
    """Emit the function that packs a kernel's right operand."""
    writer = module.function(kernel.name, ["ptr", "ptr", "i64", "i64"])
    if kernel.tile_count:
        PackEmitter(writer, kernel).emit()


def transposed(writer: FunctionWriter, rows: list[Register]) -> list[Register]:
    """Transpose a square of as many vectors as each has lanes, by exchanging ever larger blocks."""
    size, width = len(rows), 1
    while width < size:
        low = [lane if not lane & width else lane - width + size for lane in range(size)]
        high = [lane + width if not lane & width else lane + size for lane in range(size)]
        for place in range(size):
            if not place & width:
                x, y = rows[place], rows[place + width]
                rows[place], rows[place + width] = writer.shuffle(x, y, low), writer.shuffle(x, y, high)
        width *= 2
    return rows


class PackEmitter:
    """Emits the packing of one panel at a time."""

    def __init__(self, writer: FunctionWriter, kernel: PackKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.element, kernel.lanes)

    def emit(self) -> None:
        """Emit the loop over panels."""
        writer, kernel, vectors = self.writer, self.kernel, self.vectors
        packed, source, begin, end = writer.parameters
        kinds = panel_kinds(kernel.panels, kernel.columns, kernel.lanes)
        with writer.loop(begin, end) as loop:
            index, panel = writer.divide(loop.index, kernel.panels.count)
            column = writer.multiply(first_of(writer, kernel.panels, panel), kernel.lanes)
            operands = [(packed, kernel.packed_batch), (source, kernel.source.batch)]
            to, of = matrix_pointers(vectors, index, kernel.batch, operands)
            to = vectors.moved(to, (column, kernel.inner))
            of = vectors.moved(of, (column, kernel.source.column))
            stops = [kind.stop for kind in kinds]
            choose(writer, panel, stops, lambda i: self._panel(to, of, kinds[i].vectors, kinds[i].tail))

    def _panel(self, packed: Register, source: Register, vectors: int, tail: int) -> None:
        kernel, writer = self.kernel, self.writer
        if kernel.source.column == 1 or kernel.source.row != 1:
            with writer.loop(0, kernel.inner) as loop:
                to = self.vectors.moved(packed, (loop.index, vectors * kernel.lanes))
                of = self.vectors.moved(source, (loop.index, kernel.source.row))
                self._row(to, of, vectors, tail)
            return
        whole = kernel.inner // kernel.lanes
        with writer.loop(0, whole) as loop:
            to = self.vectors.moved(packed, (loop.index, vectors * kernel.lanes * kernel.lanes))
            of = self.vectors.moved(source, (loop.index, kernel.lanes))
            self._squares(to, of, (vectors, tail, kernel.lanes))
        if rest := kernel.inner % kernel.lanes:
            to = self.vectors.address(packed, whole * kernel.lanes * vectors * kernel.lanes)
            self._squares(to, self.vectors.address(source, whole * kernel.lanes), (vectors, tail, rest))

    def _row(self, packed: Register, source: Register, vectors: int, tail: int) -> None:
        """Copy one row of a panel, its columns side by side or apart."""
        lanes, stride = self.kernel.lanes, self.kernel.source.column
        for vector in range(vectors):
            count = tail if vector == vectors - 1 else lanes
            value = self.vectors.load_apart(self.vectors.address(source, vector * lanes * stride), stride, count)
            self.vectors.store(value, self.vectors.address(packed, vector * lanes))

    def _squares(self, packed: Register, source: Register, shape: tuple[int, int, int]) -> None:
        """Copy some rows of a panel whose columns each lie side by side: transpose square after square."""
        vectors, tail, rows = shape
        lanes, stride = self.kernel.lanes, self.kernel.source.column
        for vector in range(vectors):
            count = tail if vector == vectors - 1 else lanes
            places = [self.vectors.address(source, (vector * lanes + lane) * stride) for lane in range(count)]
            square = [self.vectors.load(place, rows) for place in places]
            square += [self.vectors.zero] * (lanes - count)
            for place, value in enumerate(transposed(self.writer, square)[:rows]):
                self.vectors.store(value, self.vectors.address(packed, (place * vectors + vector) * lanes))
