"""Emit convolutions: a function per register block, of pixels by output channels, and the loops over blocks.

Contract of the emitted function: void name(out*, input*, weights*, inputs*..., limits*..., begin, end, ends...). It
computes tiles [begin, end); out overlaps no input except where an epilogue operand is read at the very place that is
written. Nothing outside the tensors is read or written. Sizes are constants and may be 0.

    out[pixel, o] = sum over window rows r, columns c, channels i of  input[pixel at (r, c), i] * weights[r, c, i, o]

Three ways to make a block's sums (`EMITTERS`): every output channel sees all input channels, output channels in vectors
(`ChannelsBlock`); each channel by itself (`DepthwiseBlock`); or, where output channels are few and would leave lanes
empty, vectors along what is summed (`DotBlock`).

Two choices of a block's pixels. Neighbours in a row; what a window sees beside the image is an address of zeros, chosen
by a select. Or, of many small images, one pixel of several images: all see the same places, so the loops over the
window run from the first place inside to the last, and nothing is chosen. (Of a 5x5 window, padded by 4 over 9x9
images, 52 of 100 places are outside.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from weft.codegen.kernels.ends import Parameters, all_below, image_limits, parameter_kinds
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
    SetAside,
    stored_and_read,
)
from weft.codegen.kernels.tiles import BlockLoops, BlockPosition, blocks_before
from weft.codegen.kernels.vectors import Vectors, all_lanes, mask_up_to
from weft.codegen.llvm.dtypes import HELD
from weft.codegen.llvm.module import FunctionWriter, Module, Register
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.gemm import Epilogue

Pixel = tuple[Register, Register, Register]  # image, row and column of an output pixel
Bounds = tuple[Register, Register]  # the first, and the one behind the last


def emit_conv(module: Module, kernel: ConvKernel) -> None:
    """Emit the functions of a convolution into a module; the one to call has the kernel's name."""
    # SAFETY: nothing is claimed of the pointers: an epilogue may read out itself.
    pointers = ["ptr"] * (3 + len(kernel.epilogue.inputs) + sum(kernel.limited))
    writer = module.function(kernel.name, parameter_kinds(kernel, pointers))
    if kernel.tile_count:
        ConvEmitter(writer, kernel).emit()


class ConvEmitter(BlockLoops):
    """Emits the loops over blocks, and a function for each shape of block that they meet."""

    def __init__(self, writer: FunctionWriter, kernel: ConvKernel) -> None:
        super().__init__(writer, kernel.walk)
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.element, kernel.schedule.lanes)
        self.stored, *self.inputs = stored_and_read(self.vectors, kernel.epilogue)
        given = Parameters.of(writer, kernel)
        self.begin, self.end, self.ends = given.begin, given.end, given.ends
        inputs = 3 + len(kernel.epilogue.inputs)
        self.given, self.limits = given.pointers[:inputs], given.pointers[inputs:]
        self.pointers = list(self.given)
        if 2 in self.ends and kernel.schedule.pixels_of == "row":
            self.blocks = blocks_before(writer, kernel.walk.row_blocks, self.ends[2])

    def is_line_needed(self, line: Register) -> Register | None:
        """Tell whether a row of pixels is within, of images that are."""
        image, row = self.writer.divide(line, self.kernel.out_size[0])
        place = (image, row)
        return all_below(self.writer, ((place[axis], end) for axis, end in self.ends.items() if axis < 2))

    def is_block_needed(self, at: BlockPosition) -> Register | None:
        """Tell whether some pixel of a block is within."""
        if not self.ends:
            return None
        place = self._first_pixel(at)
        return all_below(self.writer, ((place[axis], end) for axis, end in self.ends.items()))

    def rows_left(self, at: BlockPosition) -> Register | None:
        """Tell how many pixels are needed from a block's first on, where all of it lies along a dimension that ends."""
        axis = {"row": 2, "images": 0}.get(self.kernel.schedule.pixels_of)
        if axis not in self.ends:
            return None
        return self.writer.binary("sub", self.ends[axis], self._first_pixel(at)[axis])

    def _first_pixel(self, at: BlockPosition) -> Pixel:
        writer, (height, width) = self.writer, self.kernel.out_size
        if self.kernel.of_images:
            return (at.row, *writer.divide(at.visit, width))
        rest, column = writer.divide(at.row, width)
        return (*writer.divide(rest, height), column)

    def enter(self, matrix: Register) -> None:
        """Move all pointers to the channels of one group."""
        kernel, moved = self.kernel, self.vectors.moved
        out, image, weights, *inputs = self.given
        self.pointers = [
            self.stored.moved(out, (matrix, kernel.out_channels)),
            moved(image, (matrix, kernel.in_channels * kernel.input.channel)),
            moved(weights, (matrix, kernel.packed_group)),
        ]
        for own, pointer, operand in zip(self.inputs, inputs, kernel.epilogue.inputs, strict=True):
            self.pointers.append(own.moved(pointer, (matrix, kernel.out_channels * operand.column)))

    def block(self, shape: BlockShape, at: BlockPosition) -> None:
        """Call the function of a shape."""
        kernel, moved = self.kernel, self.vectors.moved
        out, image, weights, *inputs = self.pointers
        arguments = [
            self.stored.moved(out, (at.column, 1)),
            moved(image, (at.column if kernel.depthwise else at.first, kernel.input.channel)),
            moved(weights, (at.column, kernel.depth), (at.first, shape.vectors * self.vectors.lanes)),
        ]
        pixel = at.row
        if kernel.of_images:
            pixel = self.writer.add(self.writer.multiply(at.row, prod(kernel.out_size)), at.visit)
        for own, pointer, operand in zip(self.inputs, inputs, kernel.epilogue.inputs, strict=True):
            arguments.append(own.moved(pointer, (pixel, operand.row), (at.column, operand.column)))
        self.call_block(shape, [*arguments, *self.limits, pixel, at.iterations, at.phase])

    def block_function(self, shape: BlockShape) -> str:
        """Emit the function of a shape, in the kernel's way."""
        return EMITTERS[self.kernel.way](BlockParts.begin(self.writer.module, self.kernel, shape))


@dataclass(frozen=True)
class BlockParts:
    """A block's function while it is written.

    void block(out*, input*, weights*, inputs*..., limits*..., pixel, iterations, phase)

    out and input are at the first pixel of the first image, all pointers at the block's first channels.
    """

    name: str
    kernel: ConvKernel
    writer: FunctionWriter
    block: RegisterBlock
    pixels: Pixels
    inputs: list[Register]
    weights: Register
    iterations: Register
    phase: PartOfSum | None
    ending: Ending

    @classmethod
    def begin(cls, module: Module, kernel: ConvKernel, shape: BlockShape) -> BlockParts:
        """Begin the function of a block."""
        name = f"{kernel.name}.{shape.rows}x{shape.vectors}.{shape.tail}"
        count = 3 + len(kernel.epilogue.inputs)
        pointers = ["ptr"] * (count + sum(kernel.limited))
        writer = module.inner_function(name, [*pointers, "i64", "i64", "i64"])
        vectors = Vectors(writer, kernel.element, kernel.schedule.lanes)
        out, image, weights, *inputs = writer.parameters[:count]
        *limits, pixel, iterations, phase = writer.parameters[count:]
        in_parts = kernel.walk.parts.count > 1
        pixels = Pixels(vectors, kernel, (pixel, shape.rows), image_limits(writer, kernel, limits))
        epilogue = EpilogueEmitter(vectors, _block_epilogue(kernel), inputs)
        return cls(
            name=name,
            kernel=kernel,
            writer=writer,
            block=RegisterBlock(vectors, shape, Multiplier(vectors, *2 * (kernel.element,), in_words=kernel.of_bytes)),
            pixels=pixels,
            inputs=pixels.inputs(image),
            weights=weights,
            iterations=iterations if in_parts else writer.integer(kernel.walk.parts.total),
            phase=PartOfSum.of(phase, kernel.walk.parts.count),
            ending=Ending(pixels.outputs(out, epilogue.stored), epilogue),
        )

    @property
    def vectors(self) -> Vectors:
        """Give the vectors of the block."""
        return self.block.vectors

    @property
    def function(self) -> BlockFunction:
        """Give what emits the start and end of the sums."""
        return BlockFunction(self.block, self.writer, self.ending, self.phase)


def _block_epilogue(kernel: ConvKernel) -> Epilogue:
    """Give the epilogue as a block sees it: from one row of the block to the next may be a whole image."""
    if not kernel.of_images:
        return kernel.epilogue
    pixels, bias = prod(kernel.out_size), kernel.epilogue.bias
    operands = tuple(replace(operand, row=operand.row * pixels) for operand in kernel.epilogue.operands)
    return replace(kernel.epilogue, bias=bias and replace(bias, row=bias.row * pixels), operands=operands)


class ChannelsBlock:
    """Emits the sums of a block in which every output channel sees all input channels."""

    def __init__(self, parts: BlockParts) -> None:
        self.parts = parts

    def emit(self) -> str:
        """Emit the sums and what follows them, and give the function's name."""
        self.parts.function.emit(self._rows)
        return self.parts.name

    def _rows(self, sums: list[Register]) -> list[Register]:
        """Add what the rows of the window give."""
        writer, rows = self.parts.writer, self.parts.kernel.window.size[0]
        if self.parts.kernel.schedule.unroll_rows:
            for row in range(rows):
                sums = self._columns(writer.integer(row), sums)
            return sums
        return self._repeat("rows", self.parts.pixels.bounds(0), sums, self._columns)

    def _columns(self, row: Register, sums: list[Register]) -> list[Register]:
        """Add what the columns of one row of the window give."""
        kernel, writer, iterations = self.parts.kernel, self.parts.writer, self.parts.iterations
        first, behind = self.parts.pixels.bounds(1)
        if kernel.schedule.merge_columns:
            if kernel.of_images:
                iterations = writer.multiply(writer.binary("sub", behind, first), kernel.in_channels)
            return self._run((row, first), iterations, sums)
        add = partial(self._column, row, iterations)
        return self._repeat("columns", (first, behind), sums, add)

    def _column(self, row: Register, iterations: Register, column: Register, sums: list[Register]) -> list[Register]:
        """Add what one place of the window gives."""
        if self.parts.kernel.reads_zeros:
            # Where all pixels see zeros there is nothing to add.
            seen = self.parts.pixels.any_seen(row, column)
            iterations = self.parts.writer.select(seen, iterations, self.parts.writer.integer(0))
        return self._run((row, column), iterations, sums)

    def _repeat(
        self, name: str, bounds: Bounds, sums: list[Register], add: Callable[[Register, list[Register]], list[Register]]
    ) -> list[Register]:
        """Add to the sums again and again: in registers, or in memory what each time gives alone."""
        if self.parts.kernel.schedule.set_aside != name:
            with self.parts.writer.loop(*bounds, carried=sums) as loop:
                loop.carry(*add(loop.index, list(loop.carried)))
            return list(loop.carried)
        aside = SetAside(self.parts.writer, self.parts.vectors, sums)
        with self.parts.writer.loop(*bounds) as loop:
            aside.add(add(loop.index, [self.parts.vectors.zero] * len(sums)))
        return aside.totals()

    def _run(self, tap: tuple[Register, Register], iterations: Register, sums: list[Register]) -> list[Register]:
        """Add the products of the numbers that lie in a row from a place of the window on."""
        kernel, vectors = self.parts.kernel, self.parts.vectors
        row, column = tap
        width = self.parts.block.shape.vectors * vectors.lanes
        per_column = kernel.in_channels * width
        weights = vectors.moved(self.parts.weights, (row, per_column * kernel.window.size[1]), (column, per_column))
        pointers = self.parts.pixels.seen(self.parts.inputs, row, column)
        # A merged run goes on through columns; its numbers are side by side.
        step = 1 if kernel.schedule.merge_columns else kernel.input.channel
        unroll = kernel.schedule.unroll

        def numbers(iteration: Register, place: int) -> list[Register]:
            bases = [vectors.moved(pointer, (iteration, unroll * step)) for pointer in pointers]
            return [vectors.load_splat(vectors.address(base, place * step)) for base in bases]

        panel = PanelAddress(weights, width, whole=True)
        return self.parts.block.loop(sums, Iterations(iterations, unroll), panel, numbers)


class DotBlock:
    """Emits the sums of a block; all pixels see the same places of the window."""

    def __init__(self, parts: BlockParts) -> None:
        self.parts = parts
        self.vectors = parts.vectors

    def emit(self) -> str:
        """Emit the sums and what follows them, and give the function's name."""
        self.parts.function.emit(self._sums)
        return self.parts.name

    def _sums(self, starts: list[Register]) -> list[Register]:
        """Add what the rows of the window give."""
        writer, channels = self.parts.writer, self.parts.kernel.out_channels
        begins = [self.vectors.zero] * (len(starts) * channels)
        with writer.loop(*self.parts.pixels.bounds(0), carried=begins) as loop:
            loop.carry(*self._row(loop.index, list(loop.carried)))
        sums = list(loop.carried)
        totals = [
            all_lanes(writer, sums[place : place + channels], self.vectors.lanes)
            for place in range(0, len(sums), channels)
        ]
        return [writer.binary("fadd", start, total) for start, total in zip(starts, totals, strict=True)]

    def _row(self, row: Register, sums: list[Register]) -> list[Register]:
        """Add what one row of the window gives."""
        parts, writer, vectors, kernel = self.parts, self.parts.writer, self.vectors, self.parts.kernel
        first, behind = parts.pixels.bounds(1)
        channels = kernel.in_channels
        weights = vectors.moved(parts.weights, (row, channels * kernel.window.size[1]), (first, channels))
        pixels = parts.pixels.seen(parts.inputs, row, first)
        # Only pixels of several images may see a part of the window.
        numbers = writer.multiply(writer.binary("sub", behind, first), channels)
        whole, _ = writer.divide(numbers, vectors.lanes)
        start = writer.multiply(whole, vectors.lanes)
        with writer.loop(0, start, vectors.lanes, carried=sums) as loop:
            loop.carry(*self._step(list(loop.carried), pixels, weights, (loop.index, None)))
        if not kernel.of_images and kernel.run % vectors.lanes == 0:
            return list(loop.carried)
        mask = mask_up_to(writer, start, numbers, vectors.lanes)
        return self._step(list(loop.carried), pixels, weights, (start, mask))

    def _step(
        self,
        sums: list[Register],
        pixels: list[Register],
        weights: Register,
        place: tuple[Register, Register | None],
    ) -> list[Register]:
        """Add the products of one vector of numbers, or of those that a mask keeps."""
        vectors, writer, depth = self.vectors, self.parts.writer, self.parts.kernel.depth
        start, mask = place

        def load(address: Register) -> Register:
            at = vectors.moved(address, (start, 1))
            return vectors.load(at) if mask is None else writer.masked_load(vectors.kind, at, mask)

        seen = [load(pixel) for pixel in pixels]
        panel = [load(vectors.address(weights, out * depth)) for out in range(self.parts.kernel.out_channels)]
        pairs = [(number, weight) for number in seen for weight in panel]
        return [writer.fma(*pair, total) for pair, total in zip(pairs, sums, strict=True)]


class DepthwiseBlock:
    """Emits the sums of a block of pixels in one row, each channel by itself.

    Windows that lie beside each other share most of what they see. So a number of the image is loaded once for a row of
    the window, and multiplied by each weight of the row that some pixel has there; the row's weights are in registers:

        pixels       0   1   2   3               column 2 of the image:  sum 0 += seen * w2
        columns    0   1   2   3   4   5                                 sum 1 += seen * w1
                                                                         sum 2 += seen * w0

    Rows outside the image are left out. A column that is outside for every block is too; one that is outside for some
    is asked for, and zeros stand for it.
    """

    def __init__(self, parts: BlockParts) -> None:
        self.parts = parts
        self.vectors = parts.vectors
        kernel, blocks = parts.kernel, parts.kernel.walk.row_blocks
        bounds = [(blocks.start(number), blocks.start(number + 1)) for number in range(blocks.count)]
        starts = {first for first, behind in bounds if behind - first >= parts.block.shape.rows}
        (_, stride), (_, padding), (_, dilation) = kernel.window.stride, kernel.window.padding, kernel.window.dilation
        turns = range(0, max(kernel.window.size[1], 1), kernel.schedule.taps)
        self.lefts = {start * stride - padding + turn * dilation for start in starts for turn in turns}

    def emit(self) -> str:
        """Emit the sums and what follows them, and give the function's name."""
        self.parts.function.emit(self._window)
        return self.parts.name

    def _window(self, sums: list[Register]) -> list[Register]:
        """Add what all rows of the window that are inside the image give."""
        writer, columns, taps = self.parts.writer, self.parts.kernel.window.size[1], self.parts.kernel.schedule.taps
        turns, rest = divmod(columns, taps)
        with writer.loop(*self.parts.pixels.bounds(0), carried=sums) as down:
            found = list(down.carried)
            if turns > 1:
                with writer.loop(0, turns, carried=found) as across:
                    first = writer.multiply(across.index, taps)
                    across.carry(*self._taps((down.index, first), taps, list(across.carried)))
                found = list(across.carried)
            elif turns:
                found = self._taps((down.index, writer.integer(0)), taps, found)
            if rest:
                found = self._taps((down.index, writer.integer(turns * taps)), rest, found)
            down.carry(*found)
        return list(down.carried)

    def _taps(self, place: tuple[Register, Register], taps: int, sums: list[Register]) -> list[Register]:
        """Add what some columns of a row of the window give, from a place on."""
        vectors, shape, window = self.vectors, self.parts.block.shape, self.parts.kernel.window
        width = shape.vectors * vectors.lanes
        base = vectors.moved(self.parts.weights, (place[0], window.size[1] * width), (place[1], width))
        weights = [
            [
                vectors.load(vectors.address(base, tap * width + number * vectors.lanes))
                for number in range(shape.vectors)
            ]
            for tap in range(taps)
        ]
        pixels: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(shape.rows):
            for tap in range(taps):
                pixels.setdefault(pixel * window.stride[1] + tap * window.dilation[1], []).append((pixel, tap))
        sums, address = list(sums), self.parts.pixels.inside(self.parts.inputs, *place)[0]
        for column, pairs in sorted(pixels.items()):
            if not self._may_be_inside(column):
                continue
            seen = self._seen(address, place[1], column)
            for pixel, tap in pairs:
                for number, one in enumerate(seen):
                    total = pixel * shape.vectors + number
                    sums[total] = vectors.writer.fma(one, weights[tap][number], sums[total])
        return sums

    def _seen(self, address: Register, first: Register, column: int) -> list[Register]:
        """Load what the image has at a column, counted from the first that the first pixel sees from a place on."""
        vectors, shape, kernel = self.vectors, self.parts.block.shape, self.parts.kernel
        at = vectors.address(address, column * kernel.input.column)
        if self._may_be_outside(column):
            at = self.parts.pixels.or_zeros(at, first, column)
        counts = [shape.count(number, vectors.lanes) for number in range(shape.vectors)]
        return [vectors.load(vectors.address(at, number * vectors.lanes), count) for number, count in enumerate(counts)]

    def _may_be_inside(self, column: int) -> bool:
        return any(0 <= left + column < self.parts.kernel.in_size[1] for left in self.lefts)

    def _may_be_outside(self, column: int) -> bool:
        kernel = self.parts.kernel
        return kernel.limited[1] or any(not 0 <= left + column < kernel.in_size[1] for left in self.lefts)


EMITTERS: dict[str, Callable[[BlockParts], str]] = {
    "channels": lambda parts: ChannelsBlock(parts).emit(),
    "depthwise": lambda parts: DepthwiseBlock(parts).emit(),
    "dot": lambda parts: DotBlock(parts).emit(),
}


class Pixels:
    """The output pixels of a block, from a first one counted through all images."""

    def __init__(
        self,
        vectors: Vectors,
        kernel: ConvKernel,
        pixels: tuple[Register, int],
        in_size: tuple[Register, Register],
    ) -> None:
        self.vectors = vectors
        self.kernel = kernel
        self.in_size = in_size
        self.first, count = pixels
        self.writer: FunctionWriter = vectors.writer
        self.apart = kernel.schedule.pixels_of != "rows"
        self.places = self._apart(count) if self.apart else [self._place(number) for number in range(count)]

    def inputs(self, image: Register) -> list[Register]:
        """Give where the window of each pixel begins; with padding that may be outside the image."""
        kernel, layout = self.kernel, self.kernel.input
        (down, across), (top, left) = kernel.window.stride, kernel.window.padding
        corner = self.vectors.address(image, layout.offset - (top * layout.row + left * layout.column))
        return self._pointers(self.vectors, corner, (layout.image, layout.row * down, layout.column * across))

    def outputs(self, out: Register, stored: Vectors) -> list[Register]:
        """Give where each pixel is written, in a dtype."""
        layout, (height, width) = self.kernel.output, self.kernel.out_size
        one_after_the_other = layout.row == width * layout.column and layout.image == height * layout.row
        if one_after_the_other and not self.kernel.of_images:
            base = stored.address(stored.moved(out, (self.first, layout.column)), layout.offset)
            return [stored.address(base, number * layout.column) for number in range(len(self.places))]
        steps = (layout.image, layout.row, layout.column)
        return self._pointers(stored, stored.address(out, layout.offset), steps)

    def seen(self, inputs: list[Register], row: Register, column: Register) -> list[Register]:
        """Give what each pixel's window has at a row and column: an address in the image, or one of zeros."""
        addresses = self.inside(inputs, row, column)
        if not self.kernel.reads_zeros:
            return addresses
        writer, zeros, window = self.writer, self._zeros(), self.kernel.window
        moved = [writer.multiply(tap, dilation) for tap, dilation in zip((row, column), window.dilation, strict=True)]
        return [
            writer.select(self._inside(place, moved), address, zeros)
            for place, address in zip(self.places, addresses, strict=True)
        ]

    def bounds(self, axis: int) -> Bounds:
        """Give the places of the window, along its rows or columns, that all pixels are to look at."""
        writer, window = self.writer, self.kernel.window
        whole = writer.integer(0), writer.integer(window.size[axis])
        alike = self.kernel.of_images or (self.kernel.depthwise and axis == 0)
        if not alike or not self.kernel.sees_outside:
            return whole
        # From the corner of the window on, by so much the image begins, and ends.
        corner = writer.add(writer.multiply(self.places[0][axis + 1], -window.stride[axis]), window.padding[axis])
        reach = window.dilation[axis] - 1
        begins, ends = (
            writer.divide(
                writer.maximum(writer.add(writer.binary("add", corner, length), reach), whole[0]), window.dilation[axis]
            )[0]
            for length in (writer.integer(0), self.in_size[axis])
        )
        return begins, writer.minimum(ends, whole[1])

    def or_zeros(self, address: Register, first: Register, column: int) -> Register:
        """Give an address of a column, counted from what the first pixel's window has first, or where outside zeros."""
        writer, window = self.writer, self.kernel.window
        corner = writer.add(writer.multiply(self.places[0][2], window.stride[1]), column - window.padding[1])
        at = writer.add(corner, writer.multiply(first, window.dilation[1]))
        return writer.select(writer.compare("icmp ult", at, self.in_size[1]), address, self._zeros())

    def any_seen(self, row: Register, column: Register) -> Register:
        """Tell whether some pixel's window has its row and column inside the image."""
        writer, window = self.writer, self.kernel.window
        moved = [writer.multiply(tap, dilation) for tap, dilation in zip((row, column), window.dilation, strict=True)]
        seen = self._inside(self.places[0], moved)
        for place in self.places[1:]:
            seen = writer.binary("or", seen, self._inside(place, moved))
        return seen

    def inside(self, inputs: list[Register], row: Register, column: Register) -> list[Register]:
        """Give what each pixel's window has at a row and column where the image has it."""
        window, layout = self.kernel.window, self.kernel.input
        down, across = window.dilation[0] * layout.row, window.dilation[1] * layout.column
        if not self.apart:
            # One distance for all pixels: it changes with every place of the window.
            move = self.writer.add(self.writer.multiply(row, down), self.writer.multiply(column, across))
            return [self.vectors.address(pointer, move) for pointer in inputs]
        # Instructions can hold a constant distance.
        first = self.vectors.moved(inputs[0], (row, down), (column, across))
        of_images = self.kernel.of_images
        apart = layout.image if of_images else window.stride[1] * layout.column
        return [self.vectors.address(first, number * apart) for number in range(len(inputs))]

    def _inside(self, place: Pixel, moved: list[Register]) -> Register:
        """Tell whether the image has what a window sees after a move from its corner."""
        writer, window = self.writer, self.kernel.window
        conditions = []
        for axis in (0, 1):
            corner = writer.add(writer.multiply(place[axis + 1], window.stride[axis]), -window.padding[axis])
            seen = writer.add(corner, moved[axis])
            # Compared without signs, what lies before the image is far behind it.
            conditions.append(writer.compare("icmp ult", seen, self.in_size[axis]))
        return writer.binary("and", *conditions)

    def _place(self, number: int) -> Pixel:
        """Find a pixel's image, row and column."""
        writer, (height, width) = self.writer, self.kernel.out_size
        image, rest = writer.divide(writer.add(self.first, number), height * width)
        row, column = writer.divide(rest, width)
        return image, row, column

    def _apart(self, count: int) -> list[Pixel]:
        """Find pixels that are all in the row of the first, or at its place in other images."""
        image, row, column = self._place(0)
        if self.kernel.of_images:
            return [(self.writer.add(image, number), row, column) for number in range(count)]
        return [(image, row, self.writer.add(column, number)) for number in range(count)]

    def _pointers(self, vectors: Vectors, base: Register, strides: tuple[int, int, int]) -> list[Register]:
        """Move an address to each pixel."""
        if self.apart:
            first = vectors.moved(base, *zip(self.places[0], strides, strict=True))
            apart = strides[0] if self.kernel.of_images else strides[2]
            return [vectors.address(first, number * apart) for number in range(len(self.places))]
        return [vectors.moved(base, *zip(place, strides, strict=True)) for place in self.places]

    def _zeros(self) -> Register:
        """Give the address of zeros, as many as a loop over channels reads."""
        module, kernel = self.writer.module, self.kernel
        name = f"{kernel.name}.zeros"
        width = kernel.schedule.lanes * kernel.schedule.block_vectors
        count = width if kernel.depthwise else kernel.in_channels
        kind = f"[{count} x {HELD[kernel.element].stored}]"
        zeros = f"@{name} = internal unnamed_addr constant {kind} zeroinitializer, align 64"
        module.declarations.setdefault(name, zeros)
        return Register("ptr", f"@{name}")
