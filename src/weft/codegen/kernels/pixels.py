"""The output pixels of a register block -> the addresses they are written to and those that a window reads for them.

Pixels that are neighbours in a row, or the same pixel of several images, lie a constant apart.
"""

from weft.codegen.kernels.panel_vectors import ELEMENTS, Vectors
from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register
from weft.plan.kernels.conv import ConvKernel

Place = tuple[Register, Register, Register]  # image, row and column of an output pixel
Bounds = tuple[Register, Register]  # the first, and the one behind the last


class Pixels:
    """The output pixels of a block, from a first one counted through all images."""

    def __init__(self, vectors: Vectors, kernel: ConvKernel, first: Register, count: int) -> None:
        self.vectors = vectors
        self.kernel = kernel
        self.first = first
        self.writer: FunctionWriter = vectors.writer
        self.apart = kernel.schedule.pixels_of != "rows"
        self.places = self._apart(count) if self.apart else [self._place(number) for number in range(count)]

    def inputs(self, image: Register) -> list[Register]:
        """Give where the window of each pixel begins; with padding that may be outside the image."""
        kernel, layout = self.kernel, self.kernel.input
        (down, across), (top, left) = kernel.window.stride, kernel.window.padding
        corner = self.vectors.address(image, layout.offset - (top * layout.row + left * layout.column))
        return self._pointers(corner, (layout.image, layout.row * down, layout.column * across))

    def outputs(self, out: Register) -> list[Register]:
        """Give where each pixel is written."""
        layout, (height, width) = self.kernel.output, self.kernel.out_size
        one_after_the_other = layout.row == width * layout.column and layout.image == height * layout.row
        if one_after_the_other and not self.kernel.of_images:
            base = self.vectors.address(self.vectors.moved(out, (self.first, layout.column)), layout.offset)
            return [self.vectors.address(base, number * layout.column) for number in range(len(self.places))]
        return self._pointers(self.vectors.address(out, layout.offset), (layout.image, layout.row, layout.column))

    def all_inside(self) -> Register:
        """Tell whether all windows are wholly inside their images; pixels must be in one row."""
        writer, window = self.writer, self.kernel.window
        (_, row, first), (_, _, last) = self.places[0], self.places[-1]
        conditions = []
        for axis, low, high in ((0, row, row), (1, first, last)):
            corner = writer.add(writer.multiply(low, window.stride[axis]), -window.padding[axis])
            end = writer.multiply(high, window.stride[axis])
            reach = (window.size[axis] - 1) * window.dilation[axis] - window.padding[axis]
            conditions.append(writer.compare("icmp sge", corner, writer.integer(0)))
            limit = writer.integer(self.kernel.in_size[axis] - reach)
            conditions.append(writer.compare("icmp slt", end, limit))
        left, right = writer.binary("and", *conditions[:2]), writer.binary("and", *conditions[2:])
        return writer.binary("and", left, right)

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
        if not self.kernel.of_images or not self.kernel.sees_outside:
            return whole
        # From the corner of the window on, by so much the image begins, and ends.
        corner = writer.add(writer.multiply(self.places[0][axis + 1], -window.stride[axis]), window.padding[axis])
        reach = window.dilation[axis] - 1
        begins, ends = (
            writer.divide(writer.maximum(writer.add(corner, length + reach), whole[0]), window.dilation[axis])[0]
            for length in (0, self.kernel.in_size[axis])
        )
        return begins, writer.minimum(ends, whole[1])

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

    def _inside(self, place: Place, moved: list[Register]) -> Register:
        """Tell whether the image has what a window sees after a move from its corner."""
        writer, window = self.writer, self.kernel.window
        conditions = []
        for axis in (0, 1):
            corner = writer.add(writer.multiply(place[axis + 1], window.stride[axis]), -window.padding[axis])
            seen = writer.add(corner, moved[axis])
            # Compared without signs, what lies before the image is far behind it.
            conditions.append(writer.compare("icmp ult", seen, writer.integer(self.kernel.in_size[axis])))
        return writer.binary("and", *conditions)

    def _place(self, number: int) -> Place:
        """Find a pixel's image, row and column."""
        writer, (height, width) = self.writer, self.kernel.out_size
        image, rest = writer.divide(writer.add(self.first, number), height * width)
        row, column = writer.divide(rest, width)
        return image, row, column

    def _apart(self, count: int) -> list[Place]:
        """Find pixels that are all in the row of the first, or at its place in other images."""
        image, row, column = self._place(0)
        if self.kernel.of_images:
            return [(self.writer.add(image, number), row, column) for number in range(count)]
        return [(image, row, self.writer.add(column, number)) for number in range(count)]

    def _pointers(self, base: Register, strides: tuple[int, int, int]) -> list[Register]:
        """Move an address to each pixel."""
        if self.apart:
            first = self.vectors.moved(base, *zip(self.places[0], strides, strict=True))
            apart = strides[0] if self.kernel.of_images else strides[2]
            return [self.vectors.address(first, number * apart) for number in range(len(self.places))]
        return [self.vectors.moved(base, *zip(place, strides, strict=True)) for place in self.places]

    def _zeros(self) -> Register:
        """Give the address of zeros, as many as a loop over channels reads."""
        module, kernel = self.writer.module, self.kernel
        name = f"{kernel.name}.zeros"
        width = kernel.schedule.lanes * kernel.schedule.block_vectors
        count = width if kernel.depthwise else kernel.in_channels
        kind = f"[{count} x {ELEMENTS[kernel.element]}]"
        zeros = f"@{name} = internal unnamed_addr constant {kind} zeroinitializer, align 64"
        module.declarations.setdefault(name, zeros)
        return Register("ptr", f"@{name}")
