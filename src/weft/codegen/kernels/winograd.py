"""Emit 3x3 convolutions Winograd's way: two outputs by two cost 16 multiplications instead of 36.

F(2x2, 3x3). A patch d of 4x4 numbers of the image gives a square of 2x2 outputs of one channel:

    y = A^T [ (G w G^T) * (B^T d B) ] A          * is element by element, summed over input channels

    B^T d: d0 - d2        G w: w0                          A^T m: m0 + m1 + m2
           d1 + d2             (w0 + w1 + w2) / 2                 m1 - m2 - m3
           d2 - d1             (w0 - w1 + w2) / 2
           d1 - d3             w2

The sum over channels makes of each of the 16 places a matmul: squares x input channels by input channels x output
channels. So a kernel has three parts: transform patches, 16 matmuls, transform their results to pixels. In one function
(`emit_winograd`), block by block on the stack, or each end a function of its own around matmuls that lanes share
(`emit_winograd_stage`). Weights are transformed once and packed (`emit_winograd_weights`), in double: every later
matmul has the better weights.

Contracts of the emitted functions, which compute tiles [begin, end): void name(out*, input*, weights*, inputs*...,
limits*..., begin, end, ends...), where out overlaps no input except where an epilogue operand is read at the very place
that is written; a call takes `stack_bytes` of stack. void name(packed*, weight*, [scale*,] begin, end), where a tile is
a vector of output channels at a few input channels in all 16 matrices; packed overlaps nothing else. Nothing outside
the tensors is read or written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from weft.codegen.kernels.ends import Parameters, all_below, image_limits, parameter_kinds
from weft.codegen.kernels.gemm import emit_gemm
from weft.codegen.kernels.pack import converted
from weft.codegen.kernels.register_block import EpilogueEmitter
from weft.codegen.kernels.tiles import first_of
from weft.codegen.kernels.vectors import Vectors
from weft.codegen.llvm.module import FunctionWriter, Module, Register, constant
from weft.plan.kernels.winograd import (
    PATCH,
    PRODUCTS,
    SQUARE,
    WEIGHT_TILE_CHANNELS,
    WinogradKernel,
    WinogradStage,
    WinogradWeightKernel,
)

Square = tuple[Register, Register, Register]  # image, row and column of a square
SIDE = 3
PLACES = SIDE * SIDE


def emit_winograd(module: Module, kernel: WinogradKernel) -> None:
    """Emit the functions of a convolution into a module; the one to call has the kernel's name."""
    # SAFETY: nothing is claimed of the pointers: an epilogue may read out itself.
    count = 3 + len(kernel.epilogue.inputs)
    writer = module.function(kernel.name, parameter_kinds(kernel, ["ptr"] * (count + sum(kernel.limited))))
    if not kernel.tile_count:
        return
    emit_gemm(module, kernel.product)
    transforms = emit_input_transform(module, kernel), emit_output_transform(module, kernel)
    given = Parameters.of(writer, kernel)
    (out, image, weights, *inputs), limits = given.pointers[:count], given.pointers[count:]
    begin, end, ends = given.begin, given.end, [*given.ends.values()]
    vectors = Vectors(writer, kernel.element, 1)
    rows = kernel.blocks.size
    # SAFETY: the stack of a lane's thread has room: the plan chose the size of a block so that a call takes little.
    patches = writer.emit("ptr", f"alloca [{PRODUCTS * rows * kernel.in_channels} x {vectors.element}], align 64")
    products = writer.emit("ptr", f"alloca [{PRODUCTS * rows * kernel.out_channels} x {vectors.element}], align 64")
    if not ends:
        # A smaller block leaves rows of patches as they are: they are multiplied too, and must be numbers.
        with writer.loop(0, PRODUCTS * rows * kernel.in_channels) as loop:
            writer.store(constant(vectors.element, 0.0), vectors.address(patches, loop.index))
    with writer.loop(begin, end) as loop:
        first = first_of(writer, kernel.blocks, loop.index)
        stop = first_of(writer, kernel.blocks, writer.add(loop.index, 1))
        inwards = ", ".join(map(str, (patches, image, *limits, first, stop, *ends)))
        writer.emit_void(f"call void @{transforms[0]}({inwards})")
        count_there = _count_squares(writer, kernel, (first, stop), ends)
        name, tiles = kernel.product.name, kernel.product.tile_count
        to_end = f", {count_there}" if ends else ""
        outwards = ", ".join(map(str, (out, products, *inputs, first, stop, *ends)))
        some = writer.compare("icmp sgt", count_there, writer.integer(0)) if ends else None
        with writer.only_if(some) if some else nullcontext():
            writer.emit_void(f"call void @{name}({products}, {patches}, {weights}, i64 0, i64 {tiles}{to_end})")
            writer.emit_void(f"call void @{transforms[1]}({outwards})")


def emit_winograd_stage(module: Module, stage: WinogradStage) -> None:
    """Emit the function of one end: void name(patches*, input*, ...) or name(out*, products*, inputs*..., ...)."""
    inputs = len(stage.of.epilogue.inputs) if stage.makes == "pixels" else 0
    writer = module.function(stage.name, [*["ptr"] * (2 + inputs), "i64", "i64"])
    if not stage.tile_count:
        return
    emit, between, channels = {
        "patches": (emit_input_transform, 0, stage.of.in_channels),
        "pixels": (emit_output_transform, 1, stage.of.out_channels),
    }[stage.makes]
    transform = emit(module, replace(stage.of, name=f"{stage.name}.of"))
    *pointers, begin, end = writer.parameters
    first, stop = first_of(writer, stage.tiles, begin), first_of(writer, stage.tiles, end)
    # A transform counts rows of patches or products from its first one.
    pointers[between] = Vectors(writer, stage.of.element, 1).moved(pointers[between], (first, channels))
    writer.emit_void(f"call void @{transform}({', '.join(map(str, (*pointers, first, stop)))})")


def emit_winograd_weights(module: Module, kernel: WinogradWeightKernel) -> None:
    """Emit the function that transforms and packs weights into a module."""
    # SAFETY: nothing is claimed of the pointers; the plan gives each buffer bytes of its own.
    writer = module.function(kernel.name, [*["ptr"] * (3 if kernel.scaled else 2), "i64", "i64"])
    if kernel.tile_count:
        _WeightTransform(writer, kernel).emit()


def patch_line(writer: FunctionWriter, x: Sequence[Register]) -> list[Register]:
    """Transform one line of a patch: four numbers to four."""
    operations = (("fsub", 0, 2), ("fadd", 1, 2), ("fsub", 2, 1), ("fsub", 1, 3))
    return [writer.binary(opcode, x[one], x[two]) for opcode, one, two in operations]


def pixel_line(writer: FunctionWriter, x: Sequence[Register]) -> list[Register]:
    """Transform one line of sums of products back: four numbers to two."""
    total, difference = writer.binary("fadd", x[1], x[2]), writer.binary("fsub", x[1], x[2])
    return [writer.binary("fadd", x[0], total), writer.binary("fsub", difference, x[3])]


def weight_columns(writer: FunctionWriter, x: Sequence[Register]) -> list[Register]:
    """Transform one line of a window: three numbers to four."""
    half = constant(x[0].kind, 0.5)
    outer = writer.binary("fadd", x[0], x[2])
    middle = [writer.binary(opcode, outer, x[1]) for opcode in ("fadd", "fsub")]
    return [x[0], *(writer.binary("fmul", value, half) for value in middle), x[2]]


def square_place(writer: FunctionWriter, kernel: WinogradKernel, index: Register) -> Square:
    """Find the image, row and column of a square of output pixels."""
    down, across = kernel.squares
    image, rest = writer.divide(index, down * across)
    return image, *writer.divide(rest, across)


def is_within(writer: FunctionWriter, kernel: WinogradKernel, square: Square, ends: Sequence[Register]) -> Register:
    """Tell whether pixels of a square are within."""
    corner = (square[0], *(writer.multiply(side, SQUARE) for side in square[1:]))
    needed = all_below(writer, ((corner[axis], end) for axis, end in zip(kernel.ends, ends, strict=True)))
    assert needed is not None
    return needed


@contextmanager
def each_square(
    writer: FunctionWriter, kernel: WinogradKernel, squares: tuple[Register, Register], ends: Sequence[Register]
) -> Iterator[tuple[Square, Register]]:
    """Write a loop over some squares: the place of each that is within, and how many of these come before it."""
    first, stop = squares
    with writer.loop(first, stop, carried=[writer.integer(0)] if ends else []) as loop:
        place = square_place(writer, kernel, loop.index)
        if not ends:
            yield place, writer.binary("sub", loop.index, first)
            return
        needed, [before] = is_within(writer, kernel, place, ends), loop.carried
        with writer.only_if(needed):
            yield place, before
        loop.carry(writer.binary("add", before, writer.convert("zext", needed, "i64")))


def _count_squares(
    writer: FunctionWriter, kernel: WinogradKernel, squares: tuple[Register, Register], ends: Sequence[Register]
) -> Register:
    """Count those of some squares that are within."""
    first, stop = squares
    if not ends:
        return writer.binary("sub", stop, first)
    with writer.loop(first, stop, carried=[writer.integer(0)]) as loop:
        needed = is_within(writer, kernel, square_place(writer, kernel, loop.index), ends)
        loop.carry(writer.binary("add", loop.carried[0], writer.convert("zext", needed, "i64")))
    return loop.carried[0]


def emit_input_transform(module: Module, kernel: WinogradKernel) -> str:
    """Emit void name(patches*, input*, limits*..., first, stop, ends...): the patches of some squares; and name it."""
    name = f"{kernel.name}.patches"
    kinds = ["ptr"] * (2 + sum(kernel.limited)) + ["i64"] * (2 + len(kernel.ends))
    writer = module.inner_function(name, kinds)
    _InputTransform(writer, kernel).emit()
    return name


def emit_output_transform(module: Module, kernel: WinogradKernel) -> str:
    """Emit void name(out*, products*, inputs*..., first, stop, ends...): the pixels of some squares; and name it."""
    name = f"{kernel.name}.pixels"
    inputs = ["ptr"] * len(kernel.epilogue.inputs)
    writer = module.inner_function(name, ["ptr", "ptr", *inputs, *["i64"] * (2 + len(kernel.ends))])
    _OutputTransform(writer, kernel).emit()
    return name


class _InputTransform:
    """Writes the transform of patches, channels in vectors; what is outside the image is zero."""

    def __init__(self, writer: FunctionWriter, kernel: WinogradKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.element, kernel.product.schedule.lanes)
        limited = 2 + sum(kernel.limited)
        self.patches, self.input, *limits = writer.parameters[:limited]
        first, stop, *self.ends = writer.parameters[limited:]
        self.squares, self.in_size = (first, stop), image_limits(writer, kernel, limits)

    def emit(self) -> None:
        """Write the loop over squares."""
        writer, kernel, layout = self.writer, self.kernel, self.kernel.input
        with each_square(writer, kernel, self.squares, self.ends) as ((image, row, column), before):
            top = writer.add(writer.multiply(row, SQUARE), -kernel.padding[0])
            left = writer.add(writer.multiply(column, SQUARE), -kernel.padding[1])
            corner = self.vectors.moved(self.input, (image, layout.image), (top, layout.row), (left, layout.column))
            to = self.vectors.moved(self.patches, (before, kernel.in_channels))
            inside, edge, after = (writer.label(stem) for stem in ("inside", "edge", "after"))
            writer.branch_if(self._is_inside(top, left), inside, edge)
            writer.begin_block(inside)
            places = [(row, column) for row in range(PATCH) for column in range(PATCH)]
            self._channels(to, [self.vectors.address(corner, r * layout.row + c * layout.column) for r, c in places])
            writer.branch(after)
            writer.begin_block(edge)
            self._channels(to, self._or_zeros(corner, top, left))
            writer.branch(after)
            writer.begin_block(after)

    def _is_inside(self, top: Register, left: Register) -> Register:
        """Tell whether a patch is wholly in the image; what starts before it is far behind without signs."""
        writer, none = self.writer, self.writer.integer(0)
        pairs = zip((top, left), self.in_size, strict=True)
        limits = [(start, writer.maximum(writer.add(size, 1 - PATCH), none)) for start, size in pairs]
        below = [writer.compare("icmp ult", start, limit) for start, limit in limits]
        return self.writer.binary("and", *below)

    def _or_zeros(self, corner: Register, top: Register, left: Register) -> list[Register]:
        """Give the addresses of a patch's pixels, those outside the image replaced by zeros."""
        writer, kernel = self.writer, self.kernel
        name, count = f"{kernel.name}.zeros", kernel.in_channels
        zeros = f"@{name} = internal unnamed_addr constant [{count} x {self.vectors.element}] zeroinitializer, align 64"
        writer.module.declarations.setdefault(name, zeros)

        def within(start: Register, limit: Register) -> list[Register]:
            return [writer.compare("icmp ult", writer.add(start, step), limit) for step in range(PATCH)]

        rows, columns = within(top, self.in_size[0]), within(left, self.in_size[1])
        addresses = []
        for row in range(PATCH):
            for column in range(PATCH):
                address = self.vectors.address(corner, row * kernel.input.row + column * kernel.input.column)
                both = writer.binary("and", rows[row], columns[column])
                addresses.append(writer.select(both, address, Register("ptr", f"@{name}")))
        return addresses

    def _channels(self, to: Register, addresses: list[Register]) -> None:
        """Transform all channels of a patch."""
        kernel, vectors, lanes = self.kernel, self.vectors, self.vectors.lanes
        whole, rest = divmod(kernel.in_channels, lanes)
        with self.writer.loop(0, whole) as loop:
            seen = [vectors.moved(address, (loop.index, lanes)) for address in addresses]
            self._vector(vectors.moved(to, (loop.index, lanes)), seen, lanes)
        if rest:
            seen = [vectors.address(address, whole * lanes) for address in addresses]
            self._vector(vectors.address(to, whole * lanes), seen, rest)

    def _vector(self, to: Register, seen: list[Register], count: int) -> None:
        vectors, stride = self.vectors, self.kernel.blocks.size * self.kernel.in_channels
        loaded = [vectors.load(address, count) for address in seen]
        columns = [patch_line(self.writer, loaded[column::PATCH]) for column in range(PATCH)]
        for row in range(PATCH):
            for column, value in enumerate(patch_line(self.writer, [column[row] for column in columns])):
                vectors.store(value, vectors.address(to, (row * PATCH + column) * stride), count)


class _OutputTransform:
    """Writes the transform of products to pixels, channels in vectors, with bias and epilogue."""

    def __init__(self, writer: FunctionWriter, kernel: WinogradKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.element, kernel.product.schedule.lanes)
        count = 2 + len(kernel.epilogue.inputs)
        self.out, self.products, *inputs = writer.parameters[:count]
        first, stop, *self.ends = writer.parameters[count:]
        self.squares = first, stop
        self.epilogue = EpilogueEmitter(self.vectors, kernel.epilogue, inputs)

    def emit(self) -> None:
        """Write the loops over squares and channels."""
        writer, kernel, vectors = self.writer, self.kernel, self.vectors
        whole, rest = divmod(kernel.out_channels, vectors.lanes)
        with each_square(writer, kernel, self.squares, self.ends) as (place, square):
            products = vectors.moved(self.products, (square, kernel.out_channels))
            with writer.loop(0, whole) as channels:
                self._vector(place, products, writer.multiply(channels.index, vectors.lanes), vectors.lanes)
            if rest:
                self._vector(place, products, writer.integer(whole * vectors.lanes), rest)

    def _vector(self, place: Square, products: Register, channel: Register, count: int) -> None:
        writer, vectors, kernel = self.writer, self.vectors, self.kernel
        base = vectors.moved(products, (channel, 1))
        stride = kernel.blocks.size * kernel.out_channels
        loaded = [vectors.load(vectors.address(base, number * stride), count) for number in range(PATCH * PATCH)]
        columns = [pixel_line(writer, loaded[column::PATCH]) for column in range(PATCH)]
        image, row, column = place
        for down in range(SQUARE):
            line = pixel_line(writer, [column_values[down] for column_values in columns])
            for across in range(SQUARE):
                y = writer.add(writer.multiply(row, SQUARE), down)
                x = writer.add(writer.multiply(column, SQUARE), across)
                self._pixel((image, y, x), channel, line[across], count)

    def _pixel(self, place: Square, channel: Register, value: Register, count: int) -> None:
        """Finish and store one pixel, if it is in the image."""
        writer, kernel, layout = self.writer, self.kernel, self.kernel.output
        image, y, x = place
        height, width = kernel.out_size
        below = writer.compare("icmp slt", y, writer.integer(height))
        with writer.only_if(writer.binary("and", below, writer.compare("icmp slt", x, writer.integer(width)))):
            line = writer.binary("add", writer.multiply(image, height), y)
            pixel = writer.binary("add", writer.multiply(line, width), x)
            epilogue = self.epilogue.at(pixel, channel)
            total = writer.binary("fadd", value, epilogue.bias(0, 0, count)) if kernel.epilogue.bias else value
            places = ((image, layout.image), (y, layout.row), (x, layout.column), (channel, 1))
            out = epilogue.stored.moved(self.out, *places)
            epilogue.stored.store(epilogue.apply(total, 0, 0, count), out, count)


class _WeightTransform:
    """Emits the loop over tiles: windows are put side by side by output channel, then transformed as vectors."""

    def __init__(self, writer: FunctionWriter, kernel: WinogradWeightKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.number = Vectors(writer, kernel.element, 1)
        self.read = self.number.of(kernel.casts[0] if kernel.casts else kernel.element)
        self.vectors = Vectors(writer, kernel.element, kernel.lanes)
        self.windows = writer.scratch(self.number.element, WEIGHT_TILE_CHANNELS * PLACES * kernel.lanes)

    def emit(self) -> None:
        """Emit the whole function."""
        writer, kernel = self.writer, self.kernel
        packed, weight, *scale, begin, end = writer.parameters
        weight = self.read.address(weight, kernel.offset)
        with writer.loop(begin, end) as tile:
            vector, part = writer.divide(tile.index, kernel.parts)
            column, row = writer.multiply(vector, kernel.lanes), writer.multiply(part, WEIGHT_TILE_CHANNELS)
            columns, rows = (
                self._count(column, kernel.out_channels, kernel.lanes),
                self._count(row, kernel.in_channels, WEIGHT_TILE_CHANNELS),
            )
            of = self.read.moved(weight, (column, kernel.weight[0]), (row, kernel.weight[1]))
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
            of = self.read.moved(weight, (slow.index, outer[1]), (fast.index, inner[1]))
            to = self.number.moved(self.windows, (slow.index, outer[2]), (fast.index, inner[2]))
            for place in range(PLACES):
                row, column = divmod(place, SIDE)
                value = self.read.load(self.read.address(of, row * kernel.weight[2] + column * kernel.weight[3]))
                value = converted(writer, value, kernel.casts)
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
            boundary = blocks.large * blocks.size
            is_large = writer.compare("icmp slt", vector, writer.integer(boundary))
            past = writer.add(vector, -boundary)
            # Before the boundary this is no place at all, and not taken.
            narrow = writer.add(writer.multiply(writer.divide(past, blocks.size - 1)[0], blocks.size - 1), boundary)
            start = writer.select(is_large, start, narrow)
            size = writer.select(is_large, size, writer.integer(blocks.size - 1))
        panel = self.number.moved(packed, (start, kernel.lanes * kernel.in_channels))
        within = writer.binary("sub", vector, start)
        return self.number.moved(panel, (within, kernel.lanes)), writer.multiply(size, kernel.lanes)

    def _transform(self, to: Register, window: Register, scale: Register | None) -> None:
        """Transform one window of each output channel."""
        writer, kernel = self.writer, self.kernel
        places = [self.vectors.load(self.number.address(window, place * kernel.lanes)) for place in range(PLACES)]
        # In double: every later matmul has the better weights.
        wide = [writer.convert("fpext", value, "double") for value in places]
        columns = [weight_columns(writer, wide[column::SIDE]) for column in range(SIDE)]
        rows = [weight_columns(writer, [column[row] for column in columns]) for row in range(len(columns[0]))]
        for place, value in enumerate(value for row in rows for value in row):
            narrow = writer.convert("fptrunc", value, self.number.element)
            scaled = narrow if scale is None else writer.binary("fmul", narrow, scale)
            self.vectors.store(scaled, self.number.address(to, place * kernel.packed_size))
