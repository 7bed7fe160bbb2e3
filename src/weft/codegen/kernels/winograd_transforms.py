"""Patches of an image -> transformed patches, and sums of products -> output pixels: the two ends of Winograd's way."""

from collections.abc import Sequence

from weft.codegen.kernels.epilogue import EpilogueEmitter
from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.kernels.register_block import BlockWriter, begin_block_function
from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register
from weft.plan.kernels.winograd import PATCH, SQUARE, WinogradKernel

Place = tuple[Register, Register, Register]  # image, row and column of a square


def patch_line(writer: FunctionWriter, x: Sequence[Register]) -> list[Register]:
    """Transform one line of a patch: four numbers to four."""
    operations = (("fsub", 0, 2), ("fadd", 1, 2), ("fsub", 2, 1), ("fsub", 1, 3))
    return [writer.binary(opcode, x[one], x[two]) for opcode, one, two in operations]


def pixel_line(writer: FunctionWriter, x: Sequence[Register]) -> list[Register]:
    """Transform one line of sums of products back: four numbers to two."""
    total, difference = writer.binary("fadd", x[1], x[2]), writer.binary("fsub", x[1], x[2])
    return [writer.binary("fadd", x[0], total), writer.binary("fsub", difference, x[3])]


def square_place(writer: FunctionWriter, kernel: WinogradKernel, index: Register) -> Place:
    """Find the image, row and column of a square of output pixels."""
    down, across = kernel.squares
    image, rest = writer.divide(index, down * across)
    return image, *writer.divide(rest, across)


def emit_input_transform(module: Module, kernel: WinogradKernel) -> str:
    """Emit void name(patches*, input*, first, stop), which transforms the patches of some squares, and name it."""
    name = f"{kernel.name}.patches"
    writer = begin_block_function(module, name, ["ptr", "ptr", "i64", "i64"])
    _InputTransform(writer, kernel).emit()
    return name


def emit_output_transform(module: Module, kernel: WinogradKernel) -> str:
    """Emit void name(out*, products*, inputs*..., first, stop), which makes the pixels of some squares, and name it."""
    name = f"{kernel.name}.pixels"
    inputs = ["ptr"] * len(kernel.epilogue.inputs)
    writer = begin_block_function(module, name, ["ptr", "ptr", *inputs, "i64", "i64"])
    _OutputTransform(writer, kernel).emit()
    return name


class _InputTransform:
    """Writes the transform of patches, channels in vectors; what is outside the image is zero."""

    def __init__(self, writer: BlockWriter, kernel: WinogradKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.element, kernel.product.schedule.lanes)
        self.patches, self.input, self.first, self.stop = writer.parameters

    def emit(self) -> None:
        """Write the loop over squares."""
        writer, kernel, layout = self.writer, self.kernel, self.kernel.input
        with writer.loop(self.first, self.stop) as loop:
            image, row, column = square_place(writer, kernel, loop.index)
            top = writer.add(writer.multiply(row, SQUARE), -kernel.padding[0])
            left = writer.add(writer.multiply(column, SQUARE), -kernel.padding[1])
            corner = self.vectors.moved(self.input, (image, layout.image), (top, layout.row), (left, layout.column))
            to = self.vectors.moved(self.patches, (writer.binary("sub", loop.index, self.first), kernel.in_channels))
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
        height, width = self.kernel.in_size
        limits = ((top, max(height - PATCH + 1, 0)), (left, max(width - PATCH + 1, 0)))
        below = [self.writer.compare("icmp ult", start, self.writer.integer(limit)) for start, limit in limits]
        return self.writer.binary("and", *below)

    def _or_zeros(self, corner: Register, top: Register, left: Register) -> list[Register]:
        """Give the addresses of a patch's pixels, those outside the image replaced by zeros."""
        writer, kernel = self.writer, self.kernel
        name, count = f"{kernel.name}.zeros", kernel.in_channels
        zeros = f"@{name} = internal unnamed_addr constant [{count} x {self.vectors.element}] zeroinitializer, align 64"
        writer.module.declarations.setdefault(name, zeros)

        def within(start: Register, size: int) -> list[Register]:
            limit = writer.integer(size)
            return [writer.compare("icmp ult", writer.add(start, step), limit) for step in range(PATCH)]

        rows, columns = within(top, kernel.in_size[0]), within(left, kernel.in_size[1])
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

    def __init__(self, writer: BlockWriter, kernel: WinogradKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.element, kernel.product.schedule.lanes)
        self.out, self.products, *inputs, self.first, self.stop = writer.parameters
        self.epilogue = EpilogueEmitter(self.vectors, kernel.epilogue, inputs)

    def emit(self) -> None:
        """Write the loops over squares and channels."""
        writer, kernel, vectors = self.writer, self.kernel, self.vectors
        whole, rest = divmod(kernel.out_channels, vectors.lanes)
        with writer.loop(self.first, self.stop) as loop:
            place = square_place(writer, kernel, loop.index)
            square = writer.binary("sub", loop.index, self.first)
            products = vectors.moved(self.products, (square, kernel.out_channels))
            with writer.loop(0, whole) as channels:
                self._vector(place, products, writer.multiply(channels.index, vectors.lanes), vectors.lanes)
            if rest:
                self._vector(place, products, writer.integer(whole * vectors.lanes), rest)

    def _vector(self, place: Place, products: Register, channel: Register, count: int) -> None:
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

    def _pixel(self, place: Place, channel: Register, value: Register, count: int) -> None:
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
            out = self.vectors.moved(self.out, *places)
            self.vectors.store(epilogue.apply(total, 0, 0, count), out, count)
