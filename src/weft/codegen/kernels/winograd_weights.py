"""Weights of 3x3 windows -> their transforms, packed as the products of Winograd's way read them.

Contract of the emitted function: void name(packed*, weight*, [scale*,] begin, end). It writes tiles [begin, end), each
a vector of output channels at a few input channels in all 16 matrices; packed overlaps nothing else.
"""

from collections.abc import Sequence

from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register, constant
from weft.plan.kernels.winograd import WEIGHT_TILE_CHANNELS, WinogradWeightKernel

SIDE = 3
PLACES = SIDE * SIDE


def emit_winograd_weights(module: Module, kernel: WinogradWeightKernel) -> None:
    """Emit the function into a module."""
    writer = module.function(kernel.name, [*["ptr"] * (3 if kernel.scaled else 2), "i64", "i64"])
    if kernel.tile_count:
        _Emitter(writer, kernel).emit()


def weight_columns(writer: FunctionWriter, x: Sequence[Register]) -> list[Register]:
    """Transform one line of a window: three numbers to four."""
    half = constant(x[0].kind, 0.5)
    outer = writer.binary("fadd", x[0], x[2])
    middle = [writer.binary(opcode, outer, x[1]) for opcode in ("fadd", "fsub")]
    return [x[0], *(writer.binary("fmul", value, half) for value in middle), x[2]]


class _Emitter:
    """Emits the loop over tiles: windows are put side by side by output channel, then transformed as vectors."""

    def __init__(self, writer: FunctionWriter, kernel: WinogradWeightKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.number = Vectors(writer, kernel.element, 1)
        self.vectors = Vectors(writer, kernel.element, kernel.lanes)
        self.windows = writer.scratch(self.number.element, WEIGHT_TILE_CHANNELS * PLACES * kernel.lanes)

    def emit(self) -> None:
        """Emit the whole function."""
        writer, kernel = self.writer, self.kernel
        packed, weight, *scale, begin, end = writer.parameters
        weight = self.number.address(weight, kernel.offset)
        with writer.loop(begin, end) as tile:
            vector, part = writer.divide(tile.index, kernel.parts)
            column, row = writer.multiply(vector, kernel.lanes), writer.multiply(part, WEIGHT_TILE_CHANNELS)
            columns, rows = (
                self._count(column, kernel.out_channels, kernel.lanes),
                self._count(row, kernel.in_channels, WEIGHT_TILE_CHANNELS),
            )
            of = self.number.moved(weight, (column, kernel.weight[0]), (row, kernel.weight[1]))
            self._gather(of, columns, rows)
            by = self._scale(scale[0], vector, column) if scale else None
            to, step = self._panel(packed, vector)
            to = self.number.address(to, writer.binary("mul", row, step))
            with writer.loop(0, rows) as loop:
                window = self.number.moved(self.windows, (loop.index, PLACES * kernel.lanes))
                at = self.number.address(to, writer.binary("mul", loop.index, step))
                self._transform(at, window, by)

    def _count(self, start: Register, total: int, most: int) -> Register:
        """Count what a tile has of something from where it starts."""
        if total % most == 0:
            return self.writer.integer(most)
        left = self.writer.binary("sub", self.writer.integer(total), start)
        return self.writer.minimum(left, self.writer.integer(most))

    def _gather(self, weight: Register, columns: Register, rows: Register) -> None:
        """Copy the windows of a tile: what lies side by side is read in order."""
        writer, kernel = self.writer, self.kernel
        out_stride, in_stride, *_ = kernel.weight
        if kernel.out_channels % kernel.lanes:
            with writer.loop(0, WEIGHT_TILE_CHANNELS * PLACES) as loop:
                self.vectors.store(self.vectors.zero, self.number.moved(self.windows, (loop.index, kernel.lanes)))
        by_column, by_row = (columns, out_stride, 1), (rows, in_stride, PLACES * kernel.lanes)
        outer, inner = (by_column, by_row) if abs(out_stride) > abs(in_stride) else (by_row, by_column)
        with writer.loop(0, outer[0]) as slow, writer.loop(0, inner[0]) as fast:
            of = self.number.moved(weight, (slow.index, outer[1]), (fast.index, inner[1]))
            to = self.number.moved(self.windows, (slow.index, outer[2]), (fast.index, inner[2]))
            for place in range(PLACES):
                row, column = divmod(place, SIDE)
                value = self.number.load(self.number.address(of, row * kernel.weight[2] + column * kernel.weight[3]))
                self.number.store(value, self.number.address(to, place * kernel.lanes))

    def _scale(self, scale: Register, vector: Register, column: Register) -> Register:
        """Load what the output channels of a vector are multiplied with."""
        kernel, at = self.kernel, self.number.address(scale, column)
        tail = kernel.out_channels % kernel.lanes
        if not tail:
            return self.vectors.load(at)
        is_whole = self.writer.compare("icmp slt", vector, self.writer.integer(kernel.panels.total - 1))
        [value] = self.writer.either(is_whole, lambda: [self.vectors.load(at)], lambda: [self.vectors.load(at, tail)])
        return value

    def _panel(self, packed: Register, vector: Register) -> tuple[Register, Register]:
        """Find where a vector of output channels lies in the first matrix, and how far its rows are apart."""
        writer, kernel, blocks = self.writer, self.kernel, self.kernel.panels
        size = writer.integer(blocks.size)
        start = writer.multiply(writer.divide(vector, blocks.size)[0], blocks.size)
        if blocks.small:
            border = blocks.large * blocks.size
            is_large = writer.compare("icmp slt", vector, writer.integer(border))
            past = writer.add(vector, -border)
            # Before the border this is no place at all, and not taken.
            narrow = writer.add(writer.multiply(writer.divide(past, blocks.size - 1)[0], blocks.size - 1), border)
            start = writer.select(is_large, start, narrow)
            size = writer.select(is_large, size, writer.integer(blocks.size - 1))
        panel = self.number.moved(packed, (start, kernel.lanes * kernel.in_channels))
        within = writer.binary("sub", vector, start)
        return self.number.moved(panel, (within, kernel.lanes)), writer.multiply(size, kernel.lanes)

    def _transform(self, to: Register, window: Register, scale: Register | None) -> None:
        """Transform one window of each output channel."""
        writer, kernel = self.writer, self.kernel
        places = [self.vectors.load(self.number.address(window, place * kernel.lanes)) for place in range(PLACES)]
        # In f64: every later product has the better weights.
        wide = [writer.convert("fpext", value, "double") for value in places]
        columns = [weight_columns(writer, wide[column::SIDE]) for column in range(SIDE)]
        rows = [weight_columns(writer, [column[row] for column in columns]) for row in range(len(columns[0]))]
        for place, value in enumerate(value for row in rows for value in row):
            narrow = writer.convert("fptrunc", value, self.number.element)
            scaled = narrow if scale is None else writer.binary("fmul", narrow, scale)
            self.vectors.store(scaled, self.number.address(to, place * kernel.packed_size))
