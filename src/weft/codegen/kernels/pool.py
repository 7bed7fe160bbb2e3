"""A PoolKernel -> one LLVM function.

Contract of the emitted function: void name(out*, [indices*], input*, begin, end). It computes tiles [begin, end); out
and indices overlap nothing. Nothing outside the tensors is read or written. Sizes are constants and may be 0.
"""

from dataclasses import dataclass

from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.kernels.pool_window import Axis, Point, WindowEmitter, seen_along
from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register
from weft.plan.kernels.pool import PoolKernel


def emit_pool(module: Module, kernel: PoolKernel) -> None:
    """Emit the function of a pooling."""
    pointers = ["ptr"] * (3 if kernel.indices else 2)
    writer = module.function(kernel.name, [*pointers, "i64", "i64"])
    if kernel.tile_count:
        PoolEmitter(writer, kernel).emit()


@dataclass(frozen=True)
class Line:
    """A line: where it is written, the plane it sees, and what of the plane's rows."""

    out: Register
    indices: Register | None
    plane: Register
    rows: Axis


class PoolEmitter:
    """Emits the loops over lines and, in them, over points."""

    def __init__(self, writer: FunctionWriter, kernel: PoolKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.wide = Vectors(writer, kernel.element, kernel.schedule.lanes)
        self.single = Vectors(writer, kernel.element, 1)
        self.index = Vectors(writer, "i64", 1)

    def emit(self) -> None:
        """Emit the loop over the lines of all tiles."""
        writer, kernel = self.writer, self.kernel
        begin, end = (writer.multiply(tile, kernel.schedule.tile_lines) for tile in writer.parameters[-2:])
        with writer.loop(begin, writer.minimum(end, writer.integer(kernel.lines))) as loop:
            rest, row = writer.divide(loop.index, kernel.out_size[0])
            if kernel.schedule.along == "channels":
                self._channels(self._line(row, rest, writer.integer(0)))
            else:
                self._columns(self._line(row, *writer.divide(rest, kernel.channels)))

    def _line(self, row: Register, image: Register, channel: Register) -> Line:
        kernel, output = self.kernel, self.kernel.output
        out, *indices, plane = self.writer.parameters[:-2]
        moves = ((image, output.image), (row, output.row), (channel, output.channel))
        return Line(
            self.wide.moved(out, *moves),
            self.index.moved(indices[0], *moves) if indices else None,
            self.wide.moved(plane, (image, kernel.input.image), (channel, kernel.input.channel)),
            seen_along(self.writer, kernel, 0, row),
        )

    def _channels(self, line: Line) -> None:
        """Emit a line whose vectors run along the channels."""
        kernel, lanes = self.kernel, self.kernel.schedule.lanes
        group = lanes * kernel.schedule.vectors
        emitter = WindowEmitter(self.wide, kernel)
        with self.writer.loop(0, kernel.out_size[1]) as columns:
            axis = seen_along(self.writer, kernel, 1, columns.index)
            place = self._moved(line, (columns.index, kernel.output.column))
            with self.writer.loop(0, kernel.channels // group) as groups:
                channel = self.writer.multiply(groups.index, group)
                self._point(emitter, self._along(place, channel), axis, (lanes,) * kernel.schedule.vectors)
            if rest := kernel.channels % group:
                counts = (*[lanes] * (rest // lanes), *([rest % lanes] if rest % lanes else []))
                channel = self.writer.integer(kernel.channels - rest)
                self._point(emitter, self._along(place, channel), axis, counts)

    def _columns(self, line: Line) -> None:
        """Emit a line whose vectors run along columns: one by one at the edges, where windows see less."""
        kernel, lanes = self.kernel, self.kernel.schedule.lanes
        first, stop = inner_columns(kernel)
        vectors, rest = divmod(stop - first, lanes)
        for begin, end in ((0, first), (stop, kernel.out_size[1])):
            with self.writer.loop(begin, end) as columns:
                self._column(WindowEmitter(self.single, kernel), line, columns.index, 1)
        with self.writer.loop(0, vectors) as columns:
            column = self.writer.add(self.writer.multiply(columns.index, lanes), first)
            self._column(WindowEmitter(self.wide, kernel), line, column, lanes)
        if rest:
            self._column(WindowEmitter(self.wide, kernel), line, self.writer.integer(stop - rest), rest)

    def _column(self, emitter: WindowEmitter, line: Line, column: Register, count: int) -> None:
        axis = seen_along(self.writer, self.kernel, 1, column)
        self._point(emitter, self._moved(line, (column, self.kernel.output.column)), axis, (count,))

    def _moved(self, line: Line, move: tuple[Register, int]) -> Line:
        """Move where a line is written."""
        indices = self.index.moved(line.indices, move) if line.indices is not None else None
        return Line(self.wide.moved(line.out, move), indices, line.plane, line.rows)

    def _along(self, line: Line, channel: Register) -> Line:
        """Move a line to a channel."""
        moved = self._moved(line, (channel, self.kernel.output.channel))
        plane = self.wide.moved(line.plane, (channel, self.kernel.input.channel))
        return Line(moved.out, moved.indices, plane, line.rows)

    def _point(self, emitter: WindowEmitter, line: Line, columns: Axis, counts: tuple[int, ...]) -> None:
        emitter.emit(Point(line.out, line.indices, line.plane, (line.rows, columns), counts))


def inner_columns(kernel: PoolKernel) -> tuple[int, int]:
    """Give the first output column whose window is wholly inside the image, and the one after the last."""
    window, width = kernel.window, kernel.in_size[1]
    if kernel.adaptive:
        return 0, 0
    stride, padding = window.stride[1], window.padding[1]
    reach = (window.size[1] - 1) * window.dilation[1] + 1
    first = min(-(-padding // stride), kernel.out_size[1])
    last = (width + padding - reach) // stride if width + padding >= reach else -1
    return first, max(first, min(last + 1, kernel.out_size[1]))
