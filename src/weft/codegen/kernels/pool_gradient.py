"""Emit gradients of poolings: each place of the image adds up what the windows that see it give back.

Contract of the emitted function: void name(out*, gradient*, [indices*], begin, end). It computes tiles [begin, end);
out overlaps nothing. Nothing outside the tensors is read or written, whatever the indices are. Sizes are constants and
may be 0.

Gathered from the windows, and not scattered by them: places are written once, in order, by whichever lane has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.codegen.kernels.pool import each_channel_group, each_line
from weft.codegen.kernels.vectors import Vectors, mask_up_to
from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register, constant, constants, vector
from weft.plan.kernels.pool import PoolGradientKernel


def emit_pool_gradient(module: Module, kernel: PoolGradientKernel) -> None:
    """Emit the function of a pooling's gradient."""
    # SAFETY: nothing is claimed of the pointers; the plan gives each buffer bytes of its own.
    pointers = ["ptr"] * (3 if kernel.indices else 2)
    writer = module.function(kernel.name, [*pointers, "i64", "i64"])
    if kernel.tile_count:
        PoolGradientEmitter(writer, kernel).emit()


@dataclass(frozen=True)
class Sources:
    """Where the windows of an image are read: what comes back from them, and the indices if there are any."""

    gradient: Register
    indices: Register | None


@dataclass(frozen=True)
class GradientLine:
    """A line: where it is written, its row in the plane, the windows of its image, and those that see the row."""

    out: Register
    row: Register
    sources: Sources
    windows: tuple[Register, Register]


class PoolGradientEmitter:
    """Emits the loops over lines and, for each place, over the windows that may see it."""

    def __init__(self, writer: FunctionWriter, kernel: PoolGradientKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.element, kernel.schedule.lanes)
        self.whole = Vectors(writer, "i64", kernel.schedule.lanes)

    def emit(self) -> None:
        """Emit the loop over the lines of all tiles."""
        each_line(self.writer, self.kernel, self.kernel.in_size[0], self._emit_line)

    def _emit_line(self, row: Register, image: Register, channel: Register) -> None:
        line = self._line(row, image, channel)
        if self.kernel.schedule.along == "channels":
            self._channels(line)
        else:
            self._columns(line)

    def _line(self, row: Register, image: Register, channel: Register) -> GradientLine:
        kernel, output = self.kernel, self.kernel.output
        out, gradient, *indices = self.writer.parameters[:-2]
        moves = ((image, output.image), (row, output.row), (channel, output.channel))
        given = kernel.of_output
        sources = Sources(
            self.vectors.moved(gradient, (image, given.image), (channel, given.channel)),
            self.whole.moved(indices[0], (image, kernel.indices.image), (channel, kernel.indices.channel))
            if kernel.indices
            else None,
        )
        return GradientLine(self.vectors.moved(out, *moves), row, sources, self._seeing(0, row))

    def _seeing(self, axis: int, position: Register) -> tuple[Register, Register]:
        """Give the first window along an axis that may see a position, and the one after the last."""
        writer, stride = self.writer, self.kernel.window.stride[axis]
        padded = writer.add(position, self.kernel.window.padding[axis])
        missed = writer.maximum(writer.add(padded, 1 - self.kernel.reach(axis)), writer.integer(0))
        first, _ = writer.divide(writer.add(missed, stride - 1), stride)
        last, _ = writer.divide(padded, stride)
        return first, writer.minimum(writer.add(last, 1), writer.integer(self.kernel.out_size[axis]))

    def _moved(self, sources: Sources, index: Register, dimension: str) -> Sources:
        """Move along a dimension of the windows."""
        kernel = self.kernel
        step = getattr(kernel.of_output, dimension)
        gradient = self.vectors.moved(sources.gradient, (index, step))
        if sources.indices is None or kernel.indices is None:
            return Sources(gradient, None)
        return Sources(gradient, self.whole.moved(sources.indices, (index, getattr(kernel.indices, dimension))))

    # Vectors along channels: all lanes see the same windows.

    def _channels(self, line: GradientLine) -> None:
        kernel, lanes, writer = self.kernel, self.kernel.schedule.lanes, self.writer
        with writer.loop(0, kernel.in_size[1]) as columns:
            column = columns.index
            windows = self._seeing(1, column)
            out = self.vectors.moved(line.out, (column, kernel.output.column))
            place = writer.add(writer.multiply(line.row, kernel.in_size[1]), column)
            places = writer.splat(writer.convert("trunc", place, "i32"), lanes)

            def outputs(channel: Register, counts: Sequence[int]) -> None:
                sources = self._moved(line.sources, channel, "channel")
                totals = self._taken_back(sources, (line.windows, windows), places, counts)
                begin = self.vectors.moved(out, (channel, kernel.output.channel))
                for number, (total, count) in enumerate(zip(totals, counts, strict=True)):
                    self.vectors.store(total, self.vectors.address(begin, number * lanes), count)

            each_channel_group(writer, kernel, outputs)

    def _taken_back(
        self,
        sources: Sources,
        windows: tuple[tuple[Register, Register], tuple[Register, Register]],
        places: Register,
        counts: Sequence[int],
    ) -> tuple[Register, ...]:
        """Add up what the windows give to some vectors of channels."""
        writer, rows, columns = self.writer, *windows
        with writer.loop(*rows, carried=[self.vectors.zero] * len(counts)) as down:
            line = self._moved(sources, down.index, "row")
            with writer.loop(*columns, carried=down.carried) as across:
                seen = self._moved(line, across.index, "column")
                pairs = enumerate(zip(across.carried, counts, strict=True))
                across.carry(*(self._added(total, seen, places, (number, count)) for number, (total, count) in pairs))
            down.carry(*across.carried)
        return down.carried

    def _added(self, total: Register, seen: Sources, places: Register, part: tuple[int, int]) -> Register:
        """Add what one window gives to a vector of channels: the vector's number, and how many channels it has."""
        writer, kernel, vectors, (number, count) = self.writer, self.kernel, self.vectors, part
        offset = number * vectors.lanes
        step = kernel.of_output.channel
        value = vectors.load_apart(vectors.address(seen.gradient, offset * step), step, count)
        more = writer.binary("fadd", total, value)
        if seen.indices is None or kernel.indices is None:
            return more
        step = kernel.indices.channel
        index = self.whole.load_apart(self.whole.address(seen.indices, offset * step), step, count)
        took = writer.compare("icmp eq", writer.convert("trunc", index, "i32"), places)
        return writer.select(took, more, total)

    # Vectors along columns: each lane has windows of its own, so they are gathered.

    def _columns(self, line: GradientLine) -> None:
        kernel, writer, lanes = self.kernel, self.writer, self.kernel.schedule.lanes
        width = writer.integer(kernel.in_size[1])
        with writer.loop(0, kernel.in_size[1], lanes) as columns:
            real = mask_up_to(writer, columns.index, width, lanes)
            number = writer.convert("trunc", columns.index, "i32")
            column = writer.binary("add", writer.splat(number, lanes), constants("i32", range(lanes)))
            with writer.loop(*line.windows, carried=[self.vectors.zero]) as down:
                seen = self._moved(line.sources, down.index, "row")
                with writer.loop(0, kernel.most_windows(1), carried=down.carried) as offsets:
                    back = writer.binary("sub", writer.integer(kernel.most_windows(1) - 1), offsets.index)
                    windows, exist = self._windows(column, back)
                    exist = writer.binary("and", exist, real)
                    offsets.carry(self._gathered(offsets.carried[0], seen, (line.row, column), (windows, exist)))
                down.carry(*offsets.carried)
            self._store(down.carried[0], line.out, columns.index, real)

    def _windows(self, column: Register, back: Register) -> tuple[Register, Register]:
        """Give for each column the window so many before the last that sees it, and whether it exists."""
        kernel, writer = self.kernel, self.writer
        stride, kind = kernel.window.stride[1], column.kind
        padded = writer.binary("add", column, constant(kind, kernel.window.padding[1]))
        last = writer.binary("udiv", padded, constant(kind, stride))
        window = writer.binary("sub", last, writer.splat(writer.convert("trunc", back, "i32"), self.vectors.lanes))
        # As unsigned numbers those before the first are large.
        exists = writer.compare("icmp ult", window, constant(kind, kernel.out_size[1]))
        first = writer.binary("mul", window, constant(kind, stride))
        sees = writer.compare("icmp slt", writer.binary("sub", padded, first), constant(kind, kernel.reach(1)))
        return window, writer.binary("and", exists, sees)

    def _gathered(
        self, total: Register, seen: Sources, at: tuple[Register, Register], windows: tuple[Register, Register]
    ) -> Register:
        """Add what each column's window of a row gives it."""
        writer, kernel, (row, column), (window, exists) = self.writer, self.kernel, at, windows
        value = self._gather(self.vectors, seen.gradient, window, kernel.of_output.column, exists)
        if seen.indices is not None and kernel.indices is not None:
            index = self._gather(self.whole, seen.indices, window, kernel.indices.column, exists)
            line = writer.convert("trunc", writer.multiply(row, kernel.in_size[1]), "i32")
            place = writer.binary("add", writer.splat(line, self.vectors.lanes), column)
            took = writer.compare("icmp eq", writer.convert("trunc", index, "i32"), place)
            exists = writer.binary("and", exists, took)
        return writer.select(exists, writer.binary("fadd", total, value), total)

    def _gather(self, of: Vectors, base: Register, index: Register, stride: int, mask: Register) -> Register:
        writer = self.writer
        places = writer.binary("mul", writer.convert("sext", index, "i64"), constant(of_lanes("i64", of), stride))
        # SAFETY: lanes whose window does not exist are masked: they form an address and touch nothing.
        pointers = writer.emit(of_lanes("ptr", of), f"getelementptr {of.element}, {base}, {places}")
        return writer.gather(of.kind, pointers, mask)

    def _store(self, total: Register, out: Register, column: Register, real: Register) -> None:
        writer, vectors, step = self.writer, self.vectors, self.kernel.output.column
        address = vectors.moved(out, (column, step))
        if step == 1:
            writer.masked_store(total, address, real)
            return
        steps = constants("i64", [lane * step for lane in range(vectors.lanes)])
        pointers = writer.emit(of_lanes("ptr", vectors), f"getelementptr {vectors.element}, {address}, {steps}")
        writer.scatter(total, pointers, real)


def of_lanes(element: str, like: Vectors) -> str:
    """Give the type of a vector with as many lanes as another kind of vectors has."""
    return vector(element, like.lanes)
