"""Emit gradients of convolutions' weights: out[window place] += image^T x gradient, over all output pixels.

Contract of the emitted functions: void name(out*, input*, of_output*, begin, end, ends...). They compute tiles
[begin, end); out overlaps no input. Nothing outside the tensors is read or written. Sizes are constants and may be 0.
Images, rows and columns of the output beyond an end are not added.

For each place of the window a block has input channels as rows and output channels as columns; the sum goes over the
output pixels whose window has that place inside the image (`seen_pixels`), image by image. Of depthwise convolutions
each channel is by itself, and vectors run along the channels.
"""

from functools import partial

from weft.codegen.kernels.ends import Parameters, parameter_kinds
from weft.codegen.kernels.register_block import (
    BlockFunction,
    BlockShape,
    Ending,
    EpilogueEmitter,
    Iterations,
    PanelAddress,
    PartOfSum,
    RegisterBlock,
)
from weft.codegen.kernels.tiles import BlockLoops, BlockPosition, CutCount
from weft.codegen.kernels.vectors import Vectors
from weft.codegen.llvm.module import FunctionWriter, Module, Register
from weft.plan.kernels.conv import ConvSizes
from weft.plan.kernels.conv_weight import DepthwiseWeightKernel, WeightGradientKernel
from weft.plan.kernels.gemm import Epilogue

POINTERS = ("ptr", "ptr", "ptr")


def emit_weight_gradient(module: Module, kernel: WeightGradientKernel) -> None:
    """Emit the functions of a gradient into a module; the one to call has the kernel's name."""
    # SAFETY: nothing is claimed of the pointers; the plan gives each buffer bytes of its own.
    writer = module.function(kernel.name, parameter_kinds(kernel, POINTERS))
    if kernel.tile_count:
        WeightGradientEmitter(writer, kernel).emit()


class WeightGradientEmitter(BlockLoops):
    """Emits the loops over images and blocks, and for each block those over the window."""

    def __init__(self, writer: FunctionWriter, kernel: WeightGradientKernel) -> None:
        super().__init__(writer, kernel.walk)
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.conv.element, kernel.schedule.lanes)
        given = Parameters.of(writer, kernel)
        self.begin, self.end, self.given = given.begin, given.end, given.pointers
        self.pointers = self.given
        self.images, self.ends = given.ends.get(0), [end for axis, end in given.ends.items() if axis]
        if self.images is not None and kernel.walk.parts.count > 1:
            self.cut = CutCount.of(writer, self.images, kernel.schedule.images)

    def enter(self, matrix: Register) -> None:
        """Move all pointers to one group."""
        kernel, moved = self.kernel, self.vectors.moved
        out, image, gradient = self.given
        image = self.vectors.address(image, kernel.input.offset)
        gradient = self.vectors.address(gradient, kernel.of_output.offset)
        self.pointers = [
            moved(out, (matrix, kernel.group_size)),
            moved(image, (matrix, kernel.conv.in_channels * kernel.input.channel)),
            moved(gradient, (matrix, kernel.conv.out_channels)),
        ]

    def block(self, shape: BlockShape, at: BlockPosition) -> None:
        """Call the function of a shape for every place of the window."""
        writer, kernel, moved = self.writer, self.kernel, self.vectors.moved
        out, image, gradient = self.pointers
        (down, across), (channel, line, column) = kernel.places, kernel.steps
        images = at.iterations if self.images is None or self.cut is not None else self.images
        # Rows of a merged run go on through columns of the image; its numbers are side by side.
        apart = 1 if kernel.schedule.merge_columns else kernel.input.channel
        image = moved(image, (at.first, kernel.input.image), (at.row, apart))
        gradient = moved(gradient, (at.first, kernel.of_output.image), (at.column, 1))
        with writer.loop(0, down) as rows, writer.loop(0, across) as along:
            to = moved(out, (at.row, channel), (rows.index, line), (along.index, column), (at.column, 1))
            self.call_block(shape, [to, image, gradient, rows.index, along.index, images, at.phase, *self.ends])

    def block_function(self, shape: BlockShape) -> str:
        """Emit the function of a shape."""
        return WeightGradientBlock(self.writer.module, self.kernel, shape).emit()


class WeightGradientBlock:
    """Emits the function of one register block.

    void block(out*, input*, of_output*, row, column, images, phase, ends...) adds up what some images give for a place
    of the window. Pointers are at the first image and at the block's channels.
    """

    def __init__(self, module: Module, kernel: WeightGradientKernel, shape: BlockShape) -> None:
        self.name = f"{kernel.name}.{shape.rows}x{shape.vectors}.{shape.tail}"
        sides = [axis for axis in kernel.ends if axis]
        self.writer = module.inner_function(self.name, [*POINTERS, *["i64"] * (4 + len(sides))])
        self.kernel = kernel
        self.shape = shape
        self.vectors = Vectors(self.writer, kernel.conv.element, kernel.schedule.lanes)
        self.block = RegisterBlock(self.vectors, shape)
        given, ends = self.writer.parameters[:7], self.writer.parameters[7:]
        self.out, self.image, self.gradient, self.row, self.column, self.images, phase = given
        self.ends = dict(zip(sides, ends, strict=True))
        self.phase = PartOfSum.of(phase, kernel.walk.parts.count, varies=0 in kernel.ends)

    def emit(self) -> str:
        """Emit the sums and what follows them, and give the function's name."""
        apart, _, _ = self.kernel.steps
        rows = [self.vectors.address(self.out, row * apart) for row in range(self.shape.rows)]
        ending = Ending(rows, EpilogueEmitter(self.vectors, Epilogue(), []))
        BlockFunction(self.block, self.writer, ending, self.phase).emit(self._pixels)
        return self.name

    def _pixels(self, sums: list[Register]) -> list[Register]:
        """Add the products of all output pixels whose window has the place inside the image."""
        writer, moved, kernel = self.writer, self.vectors.moved, self.kernel
        window, image = kernel.conv.window, kernel.input
        (top, bottom), (left, right) = self._seen(0, self.row), self._seen(1, self.column)
        count = writer.binary("sub", right, left)
        corner = self.vectors.address(self.image, -(window.padding[0] * image.row + window.padding[1] * image.column))
        seen = moved(
            corner,
            (self.row, window.dilation[0] * image.row),
            (self.column, window.dilation[1] * image.column),
            (left, window.stride[1] * image.column),
        )
        gradient = moved(self.gradient, (left, kernel.of_output.column))
        with writer.loop(0, self.images, carried=sums) as each:
            first, last = moved(seen, (each.index, image.image)), moved(gradient, (each.index, kernel.of_output.image))
            with writer.loop(top, bottom, carried=list(each.carried)) as loop:
                line = moved(first, (loop.index, window.stride[0] * image.row))
                pixels = moved(last, (loop.index, kernel.of_output.row))
                panel = PanelAddress(pixels, kernel.of_output.column, whole=False)
                numbers = partial(self._numbers, line)
                added = self.block.loop(list(loop.carried), Iterations(count), panel, numbers)
                loop.carry(*added)
            each.carry(*loop.carried)
        return list(each.carried)

    def _seen(self, axis: int, tap: Register) -> tuple[Register, Register]:
        """Give the first output row or column whose window has a place inside the image, and the one after the last."""
        conv, end = self.kernel.conv, self.ends.get(axis + 1)
        if self.kernel.schedule.merge_columns and axis == 1:
            whole = self.writer.integer(conv.out_size[1] if conv.images else 0)
            return self.writer.integer(0), whole if end is None else self.writer.minimum(whole, end)
        return seen_pixels(self.writer, conv, axis, tap, end)

    def _numbers(self, line: Register, iteration: Register, _: int) -> list[Register]:
        """Load what the rows of the block see at a pixel."""
        kernel, vectors = self.kernel, self.vectors
        apart = 1 if kernel.schedule.merge_columns else kernel.input.channel
        base = vectors.moved(line, (iteration, kernel.conv.window.stride[1] * kernel.input.column))
        return [vectors.load_splat(vectors.address(base, row * apart)) for row in range(self.shape.rows)]


def seen_pixels(
    writer: FunctionWriter, conv: ConvSizes, axis: int, tap: Register, end: Register | None = None
) -> tuple[Register, Register]:
    """Give the first output row or column whose window has a place inside the image, and the one after the last.

    None is beyond an end.
    """
    stride, padding, dilation = (
        field[axis] for field in (conv.window.stride, conv.window.padding, conv.window.dilation)
    )
    zero, out_length = writer.integer(0), conv.out_size[axis] if conv.images else 0
    behind = writer.add(writer.multiply(tap, -dilation), padding)
    hidden = writer.select(writer.compare("icmp sgt", behind, zero), behind, zero)
    first, _ = writer.divide(writer.add(hidden, stride - 1), stride)
    reach = writer.add(behind, conv.in_size[axis] - 1 + stride)
    reach = writer.select(writer.compare("icmp sgt", reach, zero), reach, zero)
    last, _ = writer.divide(reach, stride)
    stop = writer.minimum(last, writer.integer(out_length))
    stop = stop if end is None else writer.minimum(stop, end)
    return writer.minimum(first, stop), stop


def emit_depthwise_weight(module: Module, kernel: DepthwiseWeightKernel) -> None:
    """Emit the functions of a gradient into a module; the one to call has the kernel's name."""
    # SAFETY: nothing is claimed of the pointers; the plan gives each buffer bytes of its own.
    writer = module.function(kernel.name, parameter_kinds(kernel, POINTERS))
    if kernel.tile_count:
        _DepthwiseWeightEmitter(writer, kernel).emit()


class _DepthwiseWeightEmitter(BlockLoops):
    """Emits the loops over blocks, each of some vectors of channels."""

    def __init__(self, writer: FunctionWriter, kernel: DepthwiseWeightKernel) -> None:
        super().__init__(writer, kernel.walk)
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.conv.element, kernel.schedule.lanes)
        given = Parameters.of(writer, kernel)
        self.begin, self.end, self.ends = given.begin, given.end, [*given.ends.values()]
        pairs = zip(given.pointers, (0, kernel.input.offset, kernel.of_output.offset), strict=True)
        self.starts = [self.vectors.address(pointer, offset) for pointer, offset in pairs]

    def enter(self, matrix: Register) -> None:
        """Stay where all pointers are: there is one matrix."""

    def block(self, shape: BlockShape, at: BlockPosition) -> None:
        """Call the function of a shape at its first channel."""
        self.call_block(shape, [*(self.vectors.moved(start, (at.column, 1)) for start in self.starts), *self.ends])

    def block_function(self, shape: BlockShape) -> str:
        """Emit the function of a shape."""
        return _Block(self.writer.module, self.kernel, shape).emit()


class _Block:
    """Emits the function of one block: void block(out*, input*, of_output*, ends...), pointers at its first channel."""

    def __init__(self, module: Module, kernel: DepthwiseWeightKernel, shape: BlockShape) -> None:
        self.name = f"{kernel.name}.{shape.vectors}.{shape.tail}"
        self.writer: FunctionWriter = module.inner_function(self.name, [*POINTERS, *["i64"] * len(kernel.ends)])
        self.kernel = kernel
        self.vectors = Vectors(self.writer, kernel.conv.element, kernel.schedule.lanes)
        self.counts = [shape.count(number, self.vectors.lanes) for number in range(shape.vectors)]
        (self.out, self.image, self.gradient), ends = self.writer.parameters[:3], self.writer.parameters[3:]
        self.ends = dict(zip(kernel.ends, ends, strict=True))
        numbers = kernel.places * shape.vectors * self.vectors.lanes
        # Sums of an image and of all images, place by place: long chains of additions would round worse.
        self.of_image, self.total = (self.writer.scratch(self.vectors.element, numbers) for _ in range(2))

    def emit(self) -> str:
        """Emit the sums, image by image, and give the function's name."""
        writer, vectors, kernel = self.writer, self.vectors, self.kernel
        with writer.loop(0, kernel.places) as places:
            self._set(self.total, places.index, [vectors.zero] * len(self.counts))
        with writer.loop(0, self.ends.get(0, kernel.conv.images)) as each:
            with writer.loop(0, kernel.places) as places:
                self._set(self.of_image, places.index, [vectors.zero] * len(self.counts))
            image = vectors.moved(self.image, (each.index, kernel.input.image))
            gradient = vectors.moved(self.gradient, (each.index, kernel.of_output.image))
            with writer.loop(0, self.ends.get(1, kernel.conv.out_size[0])) as row:
                line = vectors.moved(gradient, (row.index, kernel.of_output.row))
                self._line(row.index, image, line)
            with writer.loop(0, kernel.places) as places:
                self._add(self.total, places.index, self._get(self.of_image, places.index))
        with writer.loop(0, kernel.places) as places:
            to = vectors.moved(self.out, (places.index, kernel.conv.out_channels))
            for number, value in enumerate(self._get(self.total, places.index)):
                vectors.store(value, vectors.address(to, number * vectors.lanes), self.counts[number])
        return self.name

    def _line(self, row: Register, image: Register, gradient: Register) -> None:
        """Add what a row of output pixels gives to the sums of all places that see the image there."""
        writer, vectors, kernel = self.writer, self.vectors, self.kernel
        conv, window = kernel.conv, kernel.conv.window
        with writer.loop(0, window.size[0]) as down:
            seen = writer.add(writer.multiply(row, window.stride[0]), -window.padding[0])
            seen = writer.add(seen, writer.multiply(down.index, window.dilation[0]))
            # As unsigned numbers those above the image are large.
            with writer.only_if(writer.compare("icmp ult", seen, writer.integer(conv.in_size[0]))):
                line = vectors.moved(image, (seen, kernel.input.row))
                line = vectors.address(line, -window.padding[1] * kernel.input.column)
                with writer.loop(0, window.size[1]) as across:
                    left, right = seen_pixels(writer, conv, 1, across.index, self.ends.get(2))
                    first = vectors.moved(
                        line,
                        (across.index, window.dilation[1] * kernel.input.column),
                        (left, window.stride[1] * kernel.input.column),
                    )
                    start = vectors.moved(gradient, (left, kernel.of_output.column))
                    place = writer.add(writer.multiply(down.index, window.size[1]), across.index)
                    sums = self._pixels(first, start, writer.binary("sub", right, left))
                    self._add(self.of_image, place, sums)

    def _pixels(self, image: Register, gradient: Register, count: Register) -> list[Register]:
        """Add up the products of so many pixels of a row."""
        writer, chains = self.writer, self.kernel.schedule.chains
        rounds, _ = writer.divide(count, chains)
        zeros = [self.vectors.zero] * len(self.counts)
        with writer.loop(0, rounds, carried=zeros * chains) as loop:
            first = writer.multiply(loop.index, chains)
            sums = [loop.carried[place::chains] for place in range(chains)]
            pixels = [writer.add(first, step) for step in range(chains)]
            added = [self._pixel(list(each), image, gradient, at) for each, at in zip(sums, pixels, strict=True)]
            loop.carry(*(value for values in zip(*added, strict=True) for value in values))
        sums = [loop.carried[place::chains] for place in range(chains)]
        whole = sums[0]
        for other in sums[1:]:
            whole = tuple(writer.binary("fadd", x, y) for x, y in zip(whole, other, strict=True))
        if chains == 1:
            return list(whole)
        with writer.loop(writer.multiply(rounds, chains), count, carried=whole) as rest:
            rest.carry(*self._pixel(list(rest.carried), image, gradient, rest.index))
        return list(rest.carried)

    def _pixel(self, sums: list[Register], image: Register, gradient: Register, at: Register) -> list[Register]:
        """Add the products of one pixel."""
        vectors, kernel = self.vectors, self.kernel
        seen = vectors.moved(image, (at, kernel.conv.window.stride[1] * kernel.input.column))
        given = vectors.moved(gradient, (at, kernel.of_output.column))
        return [
            vectors.writer.fma(
                vectors.load(vectors.address(seen, number * vectors.lanes), count),
                vectors.load(vectors.address(given, number * vectors.lanes), count),
                total,
            )
            for number, (count, total) in enumerate(zip(self.counts, sums, strict=True))
        ]

    def _at(self, sums: Register, place: Register) -> list[Register]:
        start = self.vectors.moved(sums, (place, len(self.counts) * self.vectors.lanes))
        return [self.vectors.address(start, number * self.vectors.lanes) for number in range(len(self.counts))]

    def _get(self, sums: Register, place: Register) -> list[Register]:
        return [self.vectors.load(address) for address in self._at(sums, place)]

    def _set(self, sums: Register, place: Register, values: list[Register]) -> None:
        for address, value in zip(self._at(sums, place), values, strict=True):
            self.vectors.store(value, address)

    def _add(self, sums: Register, place: Register, values: list[Register]) -> None:
        pairs = zip(self._get(sums, place), values, strict=True)
        self._set(sums, place, [self.writer.binary("fadd", x, y) for x, y in pairs])
