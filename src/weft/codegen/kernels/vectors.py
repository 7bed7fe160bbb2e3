"""Load and store runs of numbers along rows of memory, as vectors.

Two kinds of run. `Vectors` are of one element type, in panels and register blocks: how many numbers a vector has is
known when the code is written. `ColumnSpan`s are of any dtype, in loops over the columns of views: how many lanes exist
is a mask that is known when the kernel runs.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from weft.codegen.kernels.elementwise import BodyContext, Typed
from weft.codegen.llvm.dtypes import HELD, cast, from_memory, to_memory
from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register, constant, constants, vector
from weft.plan.kernels.expression import Instruction, View


class Vectors:
    """Loads, stores and arithmetic on vectors of `lanes` numbers; `count` says how many of them exist, if not all."""

    def __init__(self, writer: FunctionWriter, element: str, lanes: int) -> None:
        self.writer = writer
        self.dtype = element
        self.element = HELD[element].stored
        self.lanes = lanes
        self.kind = vector(self.element, lanes)
        self.zero = constant(self.kind, 0.0)

    def of(self, dtype: str) -> "Vectors":
        """Give vectors of as many numbers of another dtype."""
        return self if dtype == self.dtype else Vectors(self.writer, dtype, self.lanes)

    def address(self, base: Register, index: Register | int) -> Register:
        """Give the address so many elements after a base."""
        return self.writer.offset(base, self.element, index)

    def moved(self, base: Register, *moves: tuple[Register, int]) -> Register:
        """Give the address after moves, each an index and its stride in elements."""
        for index, stride in moves:
            if stride:
                base = self.address(base, self.writer.multiply(index, stride))
        return base

    def plus(self, x: Register, y: Register) -> Register:
        """Add two vectors."""
        return self.writer.binary("fadd" if HELD[self.dtype].kind == "float" else "add", x, y)

    def load_splat(self, address: Register) -> Register:
        """Load one number into all lanes."""
        return self.writer.splat(self.writer.load(self.element, address), self.lanes)

    def load(self, address: Register, count: int | None = None) -> Register:
        """Load a vector, or its first `count` numbers and zeros."""
        if count is None or count == self.lanes:
            return self.writer.load(self.kind, address)
        return self.writer.masked_load(self.kind, address, self._mask(count))

    def load_apart(self, address: Register, stride: int, count: int | None = None) -> Register:
        """Load numbers a stride apart, or the first `count` and zeros; those past the count are not touched."""
        if stride == 0:
            return self.load_splat(address)
        if stride == 1:
            return self.load(address, count)
        value = self.zero
        for lane in range(self.lanes if count is None else count):
            number = self.writer.load(self.element, self.address(address, lane * stride))
            value = self.writer.insert(value, number, lane)
        return value

    def store(self, value: Register, address: Register, count: int | None = None) -> None:
        """Store a vector, or its first `count` numbers only."""
        if count is None or count == self.lanes:
            self.writer.store(value, address)
        else:
            self.writer.masked_store(value, address, self._mask(count))

    def store_apart(self, value: Register, address: Register, stride: int, count: int | None = None) -> None:
        """Store a vector, or its first `count` numbers, a stride apart."""
        if stride == 1:
            self.store(value, address, count)
            return
        for lane in range(self.lanes if count is None else count):
            self.writer.store(self.writer.extract(value, lane), self.address(address, lane * stride))

    def _mask(self, count: int) -> Register:
        return constants("i1", [lane < count for lane in range(self.lanes)])


def all_lanes(writer: FunctionWriter, vectors: list[Register], lanes: int) -> Register:
    """Add up the lanes of each of at most as many vectors as lanes; gives a vector whose first lanes are these sums.

    Halves of two vectors are added into one, again and again, so all lanes work to the end.
    """
    given, group = len(vectors), lanes
    vectors = vectors + [vectors[0]] * ((1 << (given - 1).bit_length()) - given)
    while len(vectors) > 1:
        half = group // 2
        low = [start + lane for start in range(0, 2 * lanes, group) for lane in range(half)]
        high = [place + half for place in low]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [writer.binary("fadd", writer.shuffle(x, y, low), writer.shuffle(x, y, high)) for x, y in pairs]
        group = half
    total, width = vectors[0], lanes
    while group > 1:
        half = group // 2
        low = [start + lane for start in range(0, width, group) for lane in range(half)]
        high = [place + half for place in low]
        total = writer.binary("fadd", writer.shuffle(total, total, low), writer.shuffle(total, total, high))
        group, width = half, width // 2
    if width == 1:
        return writer.splat(total, lanes)
    return writer.shuffle(total, total, [min(lane, width - 1) for lane in range(lanes)])


def row_coordinates(f: FunctionWriter, row: Register, sizes: Sequence[int]) -> tuple[Register, ...]:
    """Split the number of a row into coordinates, the last dimension's fastest."""
    coordinates: list[Register] = []
    for size in reversed(sizes[1:]):
        row, coordinate = f.divide(row, size)
        coordinates.append(coordinate)
    return (*([row] if sizes else []), *reversed(coordinates))


def linear(f: FunctionWriter, coordinates: Sequence[Register], strides: Sequence[int], start: int) -> Register:
    """Sum up coordinates times strides and a start."""
    total = f.integer(start)
    for coordinate, stride in zip(coordinates, strides, strict=True):
        if stride:
            total = f.add(total, f.multiply(coordinate, stride))
    return total


def load_scalar(f: FunctionWriter, view: View, base: Register) -> Register:
    """Load the element at an address."""
    return from_memory(f, f.load(HELD[view.dtype].stored, base), view.dtype)


@dataclass(frozen=True, slots=True)
class ColumnSpan:
    """Lanes from a column on; with a mask, only the lanes it names exist."""

    f: FunctionWriter
    column: Register
    lanes: int
    mask: Register | None = None

    def load(self, view: View, base: Register, stride: int) -> Register:
        """Load the span's elements of a view whose first column is at an address."""
        f, element = self.f, HELD[view.dtype].stored
        kind = vector(element, self.lanes)
        address = f.offset(base, element, f.multiply(self.column, stride))
        if stride not in (0, 1) and self.lanes > 1:
            loaded = f.gather(kind, self._addresses(address, element, stride), self.mask)
        elif stride == 0:
            loaded = f.splat(f.load(element, base), self.lanes)
        else:
            loaded = f.load(kind, address) if self.mask is None else f.masked_load(kind, address, self.mask)
        return from_memory(f, loaded, view.dtype)

    def take(
        self,
        line: Instruction,
        where: tuple[Sequence[Register], Sequence[Register]],
        index: Register,
        *,
        steady: bool,
    ) -> Register:
        """Write a `take`: `where` are the tables and the row's coordinates; a steady index is one for the whole row."""
        f, (tables, coordinates) = self.f, where
        table, *strides, start = (int(value) for value in line.attributes)
        first = linear(f, coordinates, strides[:-1], start)
        view = View(line.dtype, (strides[-1],))
        if steady:
            base = f.offset(tables[table], HELD[view.dtype].stored, f.add(first, f.extract(index, 0)))
            return self.load(view, base, strides[-1])
        columns = self.position("i64", first, strides[-1])
        return self.load_each(view, tables[table], f.binary("add", index, columns))

    def load_each(self, view: View, table: Register, places: Register) -> Register:
        """Load an element of a table for every lane, at places counted in elements."""
        f, element = self.f, HELD[view.dtype].stored
        # SAFETY: places are inside: a call whose indices are out of range is marked by its checks and not run.
        addresses = f.emit(vector("ptr", self.lanes), f"getelementptr {element}, {table}, {places}")
        mask = self.mask if self.lanes > 1 else None
        return from_memory(f, f.gather(vector(element, self.lanes), addresses, mask), view.dtype)

    def store(self, view: View, base: Register, stride: int, x: Register) -> None:
        """Store the span's elements."""
        f, element = self.f, HELD[view.dtype].stored
        stored = to_memory(f, x, view.dtype)
        address = f.offset(base, element, f.multiply(self.column, stride))
        if stride != 1 and self.lanes > 1:
            f.scatter(stored, self._addresses(address, element, stride), self.mask)
        elif self.mask is None:
            f.store(stored, address)
        else:
            f.masked_store(stored, address, self.mask)

    def position(self, dtype: str, first: Register, stride: int) -> Register:
        """Make the register of an `iota`: what it is at column 0, and its stride along the columns."""
        f = self.f
        start = f.add(first, f.multiply(self.column, stride)) if stride else first
        steps = constants("i64", [lane * stride for lane in range(self.lanes)])
        return cast(f, f.binary("add", f.splat(start, self.lanes), steps), "i64", dtype)

    def _addresses(self, first: Register, element: str, stride: int) -> Register:
        steps = constants("i64", [lane * stride for lane in range(self.lanes)])
        return self.f.emit(vector("ptr", self.lanes), f"getelementptr {element}, {first}, {steps}")


def mask_up_to(f: FunctionWriter, column: Register, last: Register, lanes: int) -> Register:
    """Make the mask of the lanes from a column on that are before the last."""
    left = f.splat(f.binary("sub", last, column), lanes)
    return f.compare("icmp slt", constants("i64", range(lanes)), left)


def load_inputs(
    span: ColumnSpan, pointers: Sequence[Register], views: Sequence[View], coordinates: Sequence[Register]
) -> list[Typed]:
    """Load a span of each input in the row at some coordinates."""
    f, inputs = span.f, []
    for pointer, view in zip(pointers, views, strict=True):
        start = linear(f, coordinates, view.strides[:-1], view.offset)
        base = f.offset(pointer, HELD[view.dtype].stored, start)
        inputs.append(Typed(span.load(view, base, view.strides[-1]), view.dtype))
    return inputs


def row_context(
    span: ColumnSpan, coordinates: Sequence[Register], tables: Sequence[Register] = (), steady: Collection[int] = ()
) -> BodyContext:
    """Say what `iota` and `take` are at a span of a row, by its coordinates; `steady` values are alike all along it."""
    f = span.f

    def position(line: Instruction) -> Register:
        *strides, along, start = (int(value) for value in line.attributes)
        return span.position(line.dtype, linear(f, coordinates, strides, start), along)

    def take(line: Instruction, index: Register) -> Register:
        return span.take(line, (tables, coordinates), index, steady=line.operands[0] in steady)

    return BodyContext(span.lanes, position, take if tables else None)
