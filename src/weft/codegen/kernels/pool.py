"""Emit poolings: the maximum or mean of what each window sees of an image.

Contract of the emitted function: void name(out*, [indices*], input*, begin, end). It computes tiles [begin, end); out
and indices overlap nothing. Nothing outside the tensors is read or written. Sizes are constants and may be 0.

Vectors run along channels, where all lanes have the same window, or along columns, where each lane's begins a stride
further right: then columns whose windows see less than others, at the edges, are computed one by one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from weft.codegen.kernels.vectors import Vectors
from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register, constant, constants
from weft.plan.kernels.pool import PoolGradientKernel, PoolKernel

INFINITY = float("inf")


class Axis(NamedTuple):
    """What a window sees along one axis: from `first` to before `stop`, and the count that a mean divides by."""

    first: Register
    stop: Register
    weight: Register


@dataclass(frozen=True)
class PoolOutputs:
    """Outputs computed at once: where they go, the plane they see and what of it, and how many are in each vector."""

    out: Register
    indices: Register | None
    plane: Register
    axes: tuple[Axis, Axis]
    counts: tuple[int, ...]


def seen_along(writer: FunctionWriter, kernel: PoolKernel, axis: int, position: Register) -> Axis:
    """Give what the window of an output position sees along an axis."""
    length, out_length = kernel.in_size[axis], kernel.out_size[axis]
    if kernel.adaptive:
        first, _ = writer.divide(writer.multiply(position, length), out_length)
        end = writer.add(writer.multiply(writer.add(position, 1), length), out_length - 1)
        stop, _ = writer.divide(end, out_length)
        return Axis(first, stop, writer.binary("sub", stop, first))
    window = kernel.window
    size, stride, padding, dilation = (
        field[axis] for field in (window.size, window.stride, window.padding, window.dilation)
    )
    start = writer.add(writer.multiply(position, stride), -padding)
    end = writer.minimum(writer.add(start, (size - 1) * dilation + 1), writer.integer(length + padding))
    stop = writer.minimum(end, writer.integer(length))
    # What the padding hides is a whole number of steps of the window.
    hidden, _ = writer.divide(writer.add(writer.binary("sub", writer.integer(0), start), dilation - 1), dilation)
    later = writer.add(start, 0) if not padding else writer.binary("add", start, writer.multiply(hidden, dilation))
    before = writer.compare("icmp slt", start, writer.integer(0))
    first = writer.select(before, later, start)
    return Axis(first, stop, writer.binary("sub", *((end, start) if kernel.count_padding else (stop, first))))


class WindowEmitter:
    """Emits the maximum or mean of windows, for outputs in vectors along channels or columns."""

    def __init__(self, vectors: Vectors, kernel: PoolKernel) -> None:
        self.vectors = vectors
        self.writer = vectors.writer
        self.kernel = kernel
        along_channels = kernel.schedule.along == "channels"
        self.in_stride = kernel.input.channel if along_channels else kernel.window.stride[1] * kernel.input.column
        self.out_stride = kernel.output.channel if along_channels else kernel.output.column
        # Along columns the window of each next lane begins a stride further right.
        apart = 0 if along_channels else kernel.window.stride[1]
        self.index_steps = constants("i32", [lane * apart for lane in range(vectors.lanes)])

    def emit(self, outputs: PoolOutputs) -> None:
        """Compute and store some outputs."""
        rows, columns = outputs.axes
        starts = self._starts(outputs)
        with self.writer.loop(rows.first, rows.stop, self.kernel.window.dilation[0], carried=starts) as down:
            line = self.vectors.moved(outputs.plane, (down.index, self.kernel.input.row))
            carried = down.carried
            with self.writer.loop(columns.first, columns.stop, self.kernel.window.dilation[1], carried) as across:
                seen = self.vectors.moved(line, (across.index, self.kernel.input.column))
                index = self.writer.add(self.writer.multiply(down.index, self.kernel.in_size[1]), across.index)
                across.carry(*self._taken_in(across.carried, seen, index, outputs.counts))
            down.carry(*across.carried)
        self._store(outputs, down.carried)

    def _starts(self, outputs: PoolOutputs) -> list[Register]:
        rows, columns = outputs.axes
        lowest = constant(self.vectors.kind, -INFINITY if self.kernel.kind == "max" else 0.0)
        starts = [lowest] * len(outputs.counts)
        if self.kernel.indices:
            index = self.writer.add(self.writer.multiply(rows.first, self.kernel.in_size[1]), columns.first)
            starts += [self._index(index)] * len(outputs.counts)
        return starts

    def _index(self, scalar: Register) -> Register:
        """Give the indices of a vector whose first lane sees a place of the plane."""
        writer = self.writer
        places = writer.splat(writer.convert("trunc", scalar, "i32"), self.vectors.lanes)
        return writer.binary("add", places, self.index_steps)

    def _taken_in(
        self, carried: Sequence[Register], seen: Register, index: Register, counts: tuple[int, ...]
    ) -> list[Register]:
        """Take one place of the window into what is carried: values, and then indices if wanted."""
        writer, vectors, width = self.writer, self.vectors, len(counts)
        values, indices = list(carried[:width]), list(carried[width:])
        places = self._index(index) if indices else None
        for number, count in enumerate(counts):
            address = vectors.address(seen, number * vectors.lanes * self.in_stride)
            value, so_far = self._load(address, count), values[number]
            if self.kernel.kind == "mean":
                values[number] = writer.binary("fadd", so_far, value)
                continue
            # What is no number wins over what is, and the first over what is equal.
            no_number = writer.compare("fcmp uno", value, value)
            wins = writer.binary("or", writer.compare("fcmp ogt", value, so_far), no_number)
            values[number] = writer.select(wins, value, so_far)
            if places is not None:
                indices[number] = writer.select(wins, places, indices[number])
        return [*values, *indices]

    def _load(self, address: Register, count: int) -> Register:
        """Load what the lanes of a vector see; every second number by way of all of them."""
        vectors, lanes = self.vectors, self.vectors.lanes
        if self.in_stride != 2 or lanes == 1:
            return vectors.load_apart(address, self.in_stride, count)
        seen = 2 * count - 1
        first = vectors.load(address, min(seen, lanes))
        second = vectors.load(vectors.address(address, lanes), seen - lanes) if seen > lanes else vectors.zero
        return self.writer.shuffle(first, second, range(0, 2 * lanes, 2))

    def _store(self, outputs: PoolOutputs, carried: Sequence[Register]) -> None:
        writer, vectors = self.writer, self.vectors
        if self.kernel.kind == "mean":
            divisor = self._divisor(outputs)
            carried = [writer.binary("fdiv", total, divisor) for total in carried]
        for number, count in enumerate(outputs.counts):
            offset = number * vectors.lanes * self.out_stride
            vectors.store_apart(carried[number], vectors.address(outputs.out, offset), self.out_stride, count)
            if outputs.indices is not None:
                whole = Vectors(writer, "i64", vectors.lanes)
                index = writer.convert("sext", carried[len(outputs.counts) + number], "i64")
                whole.store_apart(index, whole.address(outputs.indices, offset), self.out_stride, count)

    def _divisor(self, outputs: PoolOutputs) -> Register:
        writer, (rows, columns) = self.writer, outputs.axes
        if self.kernel.divisor is not None:
            return constant(self.vectors.kind, self.kernel.divisor)
        count = writer.binary("mul", rows.weight, columns.weight)
        return writer.splat(writer.convert("sitofp", count, self.vectors.element), self.vectors.lanes)


def emit_pool(module: Module, kernel: PoolKernel) -> None:
    """Emit the function of a pooling."""
    # SAFETY: nothing is claimed of the pointers; the plan gives each buffer bytes of its own.
    pointers = ["ptr"] * (3 if kernel.indices else 2)
    writer = module.function(kernel.name, [*pointers, "i64", "i64"])
    if kernel.tile_count:
        PoolEmitter(writer, kernel).emit()


@dataclass(frozen=True)
class PoolLine:
    """A line: where it is written, the plane it sees, and what of the plane's rows."""

    out: Register
    indices: Register | None
    plane: Register
    rows: Axis


class PoolEmitter:
    """Emits the loops over lines and, in them, over outputs."""

    def __init__(self, writer: FunctionWriter, kernel: PoolKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.wide = Vectors(writer, kernel.element, kernel.schedule.lanes)
        self.single = Vectors(writer, kernel.element, 1)
        self.index = Vectors(writer, "i64", 1)

    def emit(self) -> None:
        """Emit the loop over the lines of all tiles."""
        each_line(self.writer, self.kernel, self.kernel.out_size[0], self._emit_line)

    def _emit_line(self, row: Register, image: Register, channel: Register) -> None:
        line = self._line(row, image, channel)
        if self.kernel.schedule.along == "channels":
            self._channels(line)
        else:
            self._columns(line)

    def _line(self, row: Register, image: Register, channel: Register) -> PoolLine:
        kernel, output = self.kernel, self.kernel.output
        out, *indices, plane = self.writer.parameters[:-2]
        moves = ((image, output.image), (row, output.row), (channel, output.channel))
        return PoolLine(
            self.wide.moved(out, *moves),
            self.index.moved(indices[0], *moves) if indices else None,
            self.wide.moved(plane, (image, kernel.input.image), (channel, kernel.input.channel)),
            seen_along(self.writer, kernel, 0, row),
        )

    def _channels(self, line: PoolLine) -> None:
        """Emit a line whose vectors run along the channels."""
        emitter = WindowEmitter(self.wide, self.kernel)
        with self.writer.loop(0, self.kernel.out_size[1]) as columns:
            axis = seen_along(self.writer, self.kernel, 1, columns.index)
            place = self._moved(line, (columns.index, self.kernel.output.column))

            def group(channel: Register, counts: Sequence[int]) -> None:
                self._outputs(emitter, self._along(place, channel), axis, tuple(counts))

            each_channel_group(self.writer, self.kernel, group)

    def _columns(self, line: PoolLine) -> None:
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

    def _column(self, emitter: WindowEmitter, line: PoolLine, column: Register, count: int) -> None:
        axis = seen_along(self.writer, self.kernel, 1, column)
        self._outputs(emitter, self._moved(line, (column, self.kernel.output.column)), axis, (count,))

    def _moved(self, line: PoolLine, move: tuple[Register, int]) -> PoolLine:
        """Move where a line is written."""
        indices = self.index.moved(line.indices, move) if line.indices is not None else None
        return PoolLine(self.wide.moved(line.out, move), indices, line.plane, line.rows)

    def _along(self, line: PoolLine, channel: Register) -> PoolLine:
        """Move a line to a channel."""
        moved = self._moved(line, (channel, self.kernel.output.channel))
        plane = self.wide.moved(line.plane, (channel, self.kernel.input.channel))
        return PoolLine(moved.out, moved.indices, plane, line.rows)

    def _outputs(self, emitter: WindowEmitter, line: PoolLine, columns: Axis, counts: tuple[int, ...]) -> None:
        emitter.emit(PoolOutputs(line.out, line.indices, line.plane, (line.rows, columns), counts))


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


def each_line(
    writer: FunctionWriter,
    kernel: PoolKernel | PoolGradientKernel,
    height: int,
    emit: Callable[[Register, Register, Register], None],
) -> None:
    """Emit what is done for each line of the tiles: its row, image and channel, which is 0 where lines have all."""
    begin, end = (writer.multiply(tile, kernel.schedule.tile_lines) for tile in writer.parameters[-2:])
    with writer.loop(begin, writer.minimum(end, writer.integer(kernel.lines))) as loop:
        rest, row = writer.divide(loop.index, height)
        if kernel.schedule.along == "channels":
            emit(row, rest, writer.integer(0))
        else:
            emit(row, *writer.divide(rest, kernel.channels))


def each_channel_group(
    writer: FunctionWriter,
    kernel: PoolKernel | PoolGradientKernel,
    emit: Callable[[Register, Sequence[int]], None],
) -> None:
    """Emit what is done for some vectors of channels at once: the first channel, and how many each vector has."""
    lanes = kernel.schedule.lanes
    group = lanes * kernel.schedule.vectors
    with writer.loop(0, kernel.channels // group) as groups:
        emit(writer.multiply(groups.index, group), (lanes,) * kernel.schedule.vectors)
    if rest := kernel.channels % group:
        counts = (*[lanes] * (rest // lanes), *([rest % lanes] if rest % lanes else []))
        emit(writer.integer(kernel.channels - rest), counts)
