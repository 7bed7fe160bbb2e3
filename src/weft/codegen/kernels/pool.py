"""Emit poolings, the maximum or mean of what each window sees of an image, and their gradients.

Contracts of the emitted functions, which compute tiles [begin, end):
void name(out*, [indices*], input*, limits*..., begin, end, ends...)
and void name(out*, gradient*, [indices*], begin, end). What they write overlaps nothing. Nothing outside the tensors is
read or written, whatever the indices are. Sizes are constants and may be 0.

Vectors run along channels, where all lanes have the same window, or along columns, where each lane's begins a stride
further right: then columns whose windows see less than others, at the edges, are computed one by one.

A gradient is gathered from the windows that see a place, and not scattered by them: places are written once, in order,
by whichever lane has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

from weft.codegen.kernels.ends import Parameters, all_below, image_limits, parameter_kinds
from weft.codegen.kernels.vectors import Stride, Vectors, mask_up_to, times
from weft.codegen.llvm.module import FunctionWriter, Module, Register, constant, constants, vector
from weft.plan.kernels.images import Images
from weft.plan.kernels.pool import PoolGradientKernel, PoolKernel

INFINITY = float("inf")


def emit_pool(module: Module, kernel: PoolKernel) -> None:
    """Emit the function of a pooling."""
    # SAFETY: nothing is claimed of the pointers; the plan gives each buffer bytes of its own.
    pointers = ["ptr"] * ((3 if kernel.indices else 2) + sum(kernel.limited))
    writer = module.function(kernel.name, parameter_kinds(kernel, pointers))
    if kernel.tile_count:
        PoolEmitter(writer, kernel).emit()


def emit_pool_gradient(module: Module, kernel: PoolGradientKernel) -> None:
    """Emit the function of a pooling's gradient."""
    # SAFETY: nothing is claimed of the pointers; the plan gives each buffer bytes of its own.
    pointers = ["ptr"] * (3 if kernel.indices else 2)
    writer = module.function(kernel.name, [*pointers, "i64", "i64"])
    if kernel.tile_count:
        PoolGradientEmitter(writer, kernel).emit()


def each_line(
    writer: FunctionWriter,
    kernel: PoolKernel | PoolGradientKernel,
    tiles: tuple[Register, Register],
    rows: tuple[int, Register | None],
    emit: Callable[[Register, Register, Register], None],
) -> None:
    """Emit what is done for each line of the tiles: its row, image and channel, which is 0 where lines have all.

    Planes have so many rows, or fewer where there is an end: those beyond are not visited.
    """
    height, last = rows
    begin, end = (writer.multiply(tile, kernel.schedule.tile_lines) for tile in tiles)
    end = writer.minimum(end, writer.integer(kernel.lines))

    def line(row: Register, plane: Register) -> None:
        if kernel.schedule.along == "channels":
            emit(row, plane, writer.integer(0))
        else:
            emit(row, *writer.divide(plane, kernel.channels))

    if last is None:
        with writer.loop(begin, end) as loop:
            plane, row = writer.divide(loop.index, height)
            line(row, plane)
        return
    first, stop = writer.divide(begin, height)[0], writer.divide(writer.add(end, height - 1), height)[0]
    with writer.loop(first, stop) as planes:
        start = writer.multiply(planes.index, height)
        low = writer.maximum(writer.binary("sub", begin, start), writer.integer(0))
        with writer.loop(low, writer.minimum(writer.binary("sub", end, start), last)) as lines:
            line(lines.index, planes.index)


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


IMAGE, ROW, COLUMN, CHANNEL = range(4)


@dataclass(frozen=True)
class PoolStrides:
    """How far apart images, rows, columns and channels are in the arguments of a pooling, in elements."""

    out: tuple[Stride, ...]
    indices: tuple[Stride, ...]
    input: tuple[Stride, ...]

    @classmethod
    def of(cls, kernel: PoolKernel, given: Parameters) -> PoolStrides:
        """Give those of a kernel: constants, or what its function is given."""
        last = 2 if kernel.indices else 1

        def strides(number: int, images: Images) -> tuple[Stride, ...]:
            constant = (images.image, images.row, images.column, images.channel)
            return tuple(given.pitches.get((number, axis), stride) for axis, stride in enumerate(constant))

        return cls(strides(0, kernel.output), strides(last - 1, kernel.output), strides(last, kernel.input))


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
        given = Parameters.of(writer, kernel)
        count = len(given.pointers) - sum(kernel.limited)
        self.given, self.tiles, self.ends = given.pointers[:count], (given.begin, given.end), given.ends
        self.in_size = image_limits(writer, kernel, given.pointers[count:])
        self.strides = PoolStrides.of(kernel, given)
        columns = writer.integer(kernel.out_size[1])
        self.columns = writer.minimum(self.ends[2], columns) if 2 in self.ends else columns

    def emit(self) -> None:
        """Emit the loop over the lines of all tiles."""
        height = self.kernel.out_size[0]
        last = self.writer.minimum(self.ends[1], self.writer.integer(height)) if 1 in self.ends else None
        each_line(self.writer, self.kernel, self.tiles, (height, last), self._emit_line)

    def _emit_line(self, row: Register, image: Register, channel: Register) -> None:
        needed = self.writer.compare("icmp slt", image, self.ends[0]) if 0 in self.ends else None
        with self.writer.only_if(needed) if needed else nullcontext():
            self._needed_line(row, image, channel)

    def _needed_line(self, row: Register, image: Register, channel: Register) -> None:
        line = self._line(row, image, channel)
        emit = self._channels if self.kernel.schedule.along == "channels" else self._columns
        if not self.varies:
            emit(line)
            return
        self._inside_or_not(0, row, line.rows, lambda rows: emit(replace(line, rows=rows)))

    def _inside_or_not(self, axis: int, position: Register, seen: Axis, emit: Callable[[Axis], None]) -> None:
        """Emit code for windows that are wholly inside the image along an axis, which see a constant count, and others.

        Where sizes are constants too, LLVM finds that by itself.
        """
        inside = self._wholly_seen(axis, position)
        is_inside = all_below(
            self.writer,
            (
                (self.writer.integer(-1), inside.first),
                (inside.stop, self.writer.add(self.in_size[axis], 1)),
            ),
        )
        assert is_inside is not None

        def of(found: Axis) -> Callable[[], Sequence[Register]]:
            def write() -> Sequence[Register]:
                emit(found)
                return ()

            return write

        self.writer.either(is_inside, of(inside), of(seen))

    def _wholly_seen(self, axis: int, position: Register) -> Axis:
        """Give what a window sees that is wholly inside the image."""
        window = self.kernel.window
        first = self.writer.add(self.writer.multiply(position, window.stride[axis]), -window.padding[axis])
        reach = (window.size[axis] - 1) * window.dilation[axis] + 1
        return Axis(first, self.writer.add(first, reach), self.writer.integer(reach))

    @property
    def varies(self) -> bool:
        """Whether how much there is of images is known only at each call, and windows are of one size."""
        return (bool(self.ends) or any(self.kernel.limited)) and not self.kernel.adaptive

    def _line(self, row: Register, image: Register, channel: Register) -> PoolLine:
        out, *indices, plane = self.given
        places = ((image, IMAGE), (row, ROW), (channel, CHANNEL))
        of_out, of_indices, of_input = (
            [(at, strides[axis]) for at, axis in places]
            for strides in (self.strides.out, self.strides.indices, self.strides.input)
        )
        return PoolLine(
            self.wide.moved(out, *of_out),
            self.index.moved(indices[0], *of_indices) if indices else None,
            self.wide.moved(plane, of_input[0], of_input[2]),
            self._seen(0, row),
        )

    def _channels(self, line: PoolLine) -> None:
        """Emit a line whose vectors run along the channels."""
        emitter = WindowEmitter(self.wide, self.kernel, self.strides)
        with self.writer.loop(0, self.columns) as columns:
            axis = self._seen(1, columns.index)
            place = self._moved(line, columns.index, COLUMN)

            def groups(seen: Axis) -> None:
                def group(channel: Register, counts: Sequence[int]) -> None:
                    self._outputs(emitter, self._along(place, channel), seen, tuple(counts))

                each_channel_group(self.writer, self.kernel, group)

            if self.varies:
                self._inside_or_not(1, columns.index, axis, groups)
            else:
                groups(axis)

    def _columns(self, line: PoolLine) -> None:
        """Emit a line whose vectors run along columns: one by one at the edges, where windows see less."""
        if 2 in self.ends or self.kernel.limited[1]:
            self._columns_to_an_end(line)
            return
        kernel, lanes = self.kernel, self.kernel.schedule.lanes
        first, stop = inner_columns(kernel)
        vectors, rest = divmod(stop - first, lanes)
        for begin, end in ((0, first), (stop, kernel.out_size[1])):
            self._one_by_one(line, begin, end)
        with self.writer.loop(0, vectors) as columns:
            column = self.writer.add(self.writer.multiply(columns.index, lanes), first)
            self._column(WindowEmitter(self.wide, kernel, self.strides), line, column, lanes)
        if rest:
            last = self.writer.integer(stop - rest)
            self._column(WindowEmitter(self.wide, kernel, self.strides), line, last, rest)

    def _columns_to_an_end(self, line: PoolLine) -> None:
        """Emit a line of which not all columns are there: whole vectors, and the rest one by one."""
        writer, kernel, lanes = self.writer, self.kernel, self.kernel.schedule.lanes
        window, length = kernel.window, self.in_size[1]
        reach = (window.size[1] - 1) * window.dilation[1] + 1 - window.padding[1]
        first = writer.minimum(writer.integer(inner_columns(kernel)[0]), self.columns)
        inside = writer.maximum(writer.add(length, window.stride[1] - reach), writer.integer(0))
        stop = writer.integer(0) if kernel.adaptive else writer.divide(inside, window.stride[1])[0]
        stop = writer.maximum(first, writer.minimum(stop, self.columns))
        last = writer.binary("sub", stop, writer.integer(lanes))
        # The last vector begins early enough to end with the line: some columns are computed twice, alike.
        with_vectors = writer.compare("icmp sge", last, first)
        vectors, _ = writer.divide(writer.add(writer.binary("sub", stop, first), lanes - 1), lanes)
        vectors = writer.select(with_vectors, vectors, writer.integer(0))
        self._one_by_one(line, 0, first)
        with writer.loop(0, vectors) as columns:
            column = writer.binary("add", writer.multiply(columns.index, lanes), first)
            self._inner_column(line, writer.minimum(column, last), lanes)
        self._one_by_one(line, writer.select(with_vectors, stop, first), self.columns)

    def _inner_column(self, line: PoolLine, column: Register, count: int) -> None:
        """Emit columns whose windows are wholly inside the image, so that how much they see is a number."""
        place, emitter = self._moved(line, column, COLUMN), WindowEmitter(self.wide, self.kernel, self.strides)
        self._outputs(emitter, place, self._wholly_seen(1, column), (count,))

    def _one_by_one(self, line: PoolLine, begin: Register | int, end: Register | int) -> None:
        with self.writer.loop(begin, end) as columns:
            self._column(WindowEmitter(self.single, self.kernel, self.strides), line, columns.index, 1)

    def _seen(self, axis: int, position: Register) -> Axis:
        return seen_along(self.writer, self.kernel, (axis, self.in_size[axis]), position)

    def _column(self, emitter: WindowEmitter, line: PoolLine, column: Register, count: int) -> None:
        axis = self._seen(1, column)
        self._outputs(emitter, self._moved(line, column, COLUMN), axis, (count,))

    def _moved(self, line: PoolLine, place: Register, axis: int) -> PoolLine:
        """Move where a line is written."""
        of_indices = (place, self.strides.indices[axis])
        indices = self.index.moved(line.indices, of_indices) if line.indices is not None else None
        return PoolLine(self.wide.moved(line.out, (place, self.strides.out[axis])), indices, line.plane, line.rows)

    def _along(self, line: PoolLine, channel: Register) -> PoolLine:
        """Move a line to a channel."""
        moved = self._moved(line, channel, CHANNEL)
        plane = self.wide.moved(line.plane, (channel, self.strides.input[CHANNEL]))
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


class Axis(NamedTuple):
    """What a window sees along one axis: from `first` to before `stop`, and the count that a mean divides by."""

    first: Register
    stop: Register
    weight: Register


def seen_along(writer: FunctionWriter, kernel: PoolKernel, side: tuple[int, Register], position: Register) -> Axis:
    """Give what the window of an output position sees along an axis, of which there is so much."""
    axis, there = side
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
    stop = writer.minimum(end, there)
    # What the padding hides is a whole number of steps of the window.
    hidden, _ = writer.divide(writer.add(writer.binary("sub", writer.integer(0), start), dilation - 1), dilation)
    later = writer.add(start, 0) if not padding else writer.binary("add", start, writer.multiply(hidden, dilation))
    before = writer.compare("icmp slt", start, writer.integer(0))
    first = writer.select(before, later, start)
    return Axis(first, stop, writer.binary("sub", *((end, start) if kernel.count_padding else (stop, first))))


@dataclass(frozen=True)
class PoolOutputs:
    """Outputs computed at once: where they go, the plane they see and what of it, and how many are in each vector."""

    out: Register
    indices: Register | None
    plane: Register
    axes: tuple[Axis, Axis]
    counts: tuple[int, ...]


class WindowEmitter:
    """Emits the maximum or mean of windows, for outputs in vectors along channels or columns."""

    def __init__(self, vectors: Vectors, kernel: PoolKernel, strides: PoolStrides) -> None:
        self.vectors = vectors
        self.writer = vectors.writer
        self.kernel = kernel
        self.strides = strides
        along_channels, (across, step) = kernel.schedule.along == "channels", (strides.input, kernel.window.stride[1])
        self.in_stride = across[CHANNEL] if along_channels else times(self.writer, across[COLUMN], step)
        along = CHANNEL if along_channels else COLUMN
        self.out_stride, self.indices_stride = strides.out[along], strides.indices[along]
        # Along columns the window of each next lane begins a stride further right.
        apart = 0 if along_channels else kernel.window.stride[1]
        self.index_steps = constants("i32", [lane * apart for lane in range(vectors.lanes)])

    def emit(self, outputs: PoolOutputs) -> None:
        """Compute and store some outputs."""
        rows, columns = outputs.axes
        starts = self._starts(outputs)
        with self.writer.loop(rows.first, rows.stop, self.kernel.window.dilation[0], carried=starts) as down:
            line = self.vectors.moved(outputs.plane, (down.index, self.strides.input[ROW]))
            carried = down.carried
            with self.writer.loop(columns.first, columns.stop, self.kernel.window.dilation[1], carried) as across:
                seen = self.vectors.moved(line, (across.index, self.strides.input[COLUMN]))
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
            address = vectors.address(seen, times(writer, self.in_stride, number * vectors.lanes))
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
            lanes = number * vectors.lanes
            place = vectors.address(outputs.out, times(writer, self.out_stride, lanes))
            vectors.store_apart(carried[number], place, self.out_stride, count)
            if outputs.indices is not None:
                whole = Vectors(writer, "i64", vectors.lanes)
                index = writer.convert("sext", carried[len(outputs.counts) + number], "i64")
                place = whole.address(outputs.indices, times(writer, self.indices_stride, lanes))
                whole.store_apart(index, place, self.indices_stride, count)

    def _divisor(self, outputs: PoolOutputs) -> Register:
        writer, (rows, columns) = self.writer, outputs.axes
        if self.kernel.divisor is not None:
            return constant(self.vectors.kind, self.kernel.divisor)
        count = writer.binary("mul", rows.weight, columns.weight)
        return writer.splat(writer.convert("sitofp", count, self.vectors.element), self.vectors.lanes)


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
        self.tiles = writer.parameters[-2], writer.parameters[-1]

    def emit(self) -> None:
        """Emit the loop over the lines of all tiles."""
        each_line(self.writer, self.kernel, self.tiles, (self.kernel.in_size[0], None), self._emit_line)

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
