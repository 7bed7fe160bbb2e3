"""Load and store runs of numbers along rows of memory, as vectors; transpose squares of them in registers.

Two kinds of run. `Vectors` are of one element type, in panels and register blocks: how many numbers a vector has is
known when the code is written. `ColumnSpan`s are of any dtype, in loops over the columns of views: how many lanes exist
is a mask that is known when the kernel runs.

Two ways, with log2(lanes) rounds of shuffles each. `transpose_block` exchanges whole registers, bit by bit of the
numbers of rows and lanes (here 4x4):

    a0 a1 a2 a3      a0 b0 a2 b2      a0 b0 c0 d0
    b0 b1 b2 b3  ->  a1 b1 a3 b3  ->  a1 b1 c1 d1
    c0 c1 c2 c3      c0 d0 c2 d2      a2 b2 c2 d2
    d0 d1 d2 d3      c1 d1 c3 d3      a3 b3 c3 d3

`transpose_square` knows that a register consists of parts of 16 bytes, and that exchanging numbers inside parts is what
processors do at once and LLVM translates soonest: any other exchange of lanes costs it ten times as long. So the parts
of a column of squares are loaded to where they belong, each from a row of its own, and only numbers inside parts change
places.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from weft.codegen.kernels.elementwise import BodyContext, Typed
from weft.codegen.kernels.ends import all_below
from weft.codegen.llvm.dtypes import HELD, cast, from_memory, to_memory
from weft.codegen.llvm.module import FunctionWriter, Register, bits_of, constant, constants, lanes_of, vector
from weft.plan.kernels.expression import Instruction, View

PART_BITS = 128
Stride = int | Register  # one that is the same at all sizes, or one of this call
Strides = Sequence[Stride]
# Rows whose addresses are a power of two apart share so many places of the nearest cache. More of them than that would
# be fetched anew for each of their parts.
WAYS = 8


@dataclass(frozen=True, slots=True)
class Patch:
    """A rectangle of rows and columns: where it begins and ends, and the end of the whole space on both sides.

    Sides that end where this call does are registers.
    """

    rows: tuple[Register, Register]
    columns: tuple[Register, Register]
    whole: tuple[Register | int, Register | int]


@dataclass(frozen=True, slots=True)
class TransposedPatch:
    """Scratch memory for the transpose of a patch of an input that runs across the output, from `address` on.

    At the edges a block begins earlier instead of being smaller: it writes again what a block before it wrote, the same
    numbers.
    """

    address: Register
    element: str
    pitch: int

    @classmethod
    def make(cls, f: FunctionWriter, view: View, size: tuple[int, int], block: int) -> TransposedPatch:
        """Make room for a patch, and for a block before it on both sides."""
        element = HELD[view.dtype].stored
        pitch = size[1] + block
        # SAFETY: a block that begins earlier starts at most a block's rows and columns before the patch.
        memory = f.scratch(element, (size[0] + block) * pitch)
        return cls(f.offset(memory, element, block * pitch + block), element, pitch)

    def row(self, f: FunctionWriter, patch: Patch, row: Register) -> Register:
        """Give the address where column 0 of the whole space would be, in a row of the patch."""
        place = f.multiply(f.binary("sub", row, patch.rows[0]), self.pitch)
        return f.offset(self.address, self.element, f.binary("sub", place, patch.columns[0]))

    def fill(self, f: FunctionWriter, source: Register, stride: Stride, patch: Patch, block: int) -> None:
        """Transpose a patch; `source` is where row 0 and column 0 are, and columns are so many elements apart."""
        rows, columns = patch.whole
        if isinstance(rows, int) and isinstance(columns, int):
            self._in_blocks(f, source, stride, patch, block)
            return
        sides = [side if isinstance(side, Register) else f.integer(side) for side in patch.whole]
        are_blocks = all_below(f, ((f.integer(block - 1), side) for side in sides))
        assert are_blocks is not None

        def in_blocks() -> Sequence[Register]:
            self._in_blocks(f, source, stride, patch, block)
            return ()

        def one_by_one() -> Sequence[Register]:
            self._one_by_one(f, source, stride, patch)
            return ()

        f.either(are_blocks, in_blocks, one_by_one)

    def _in_blocks(self, f: FunctionWriter, source: Register, stride: Stride, patch: Patch, block: int) -> None:
        kind = vector(self.element, block)
        last_row, last_column = (
            f.add(side, -block) if isinstance(side, Register) else f.integer(side - block) for side in patch.whole
        )
        with f.loop(*patch.rows, block) as rows, f.loop(*patch.columns, block) as columns:
            row, column = f.minimum(rows.index, last_row), f.minimum(columns.index, last_column)
            start = f.offset(source, self.element, f.add(row, f.multiply(column, stride)))
            loaded = [f.load(kind, f.offset(start, self.element, times(f, stride, number))) for number in range(block)]
            target = self._place(f, patch, row, column)
            for number, line in enumerate(transpose_block(f, loaded)):
                f.store(line, f.offset(target, self.element, number * self.pitch))

    def _one_by_one(self, f: FunctionWriter, source: Register, stride: Stride, patch: Patch) -> None:
        with f.loop(*patch.rows) as rows, f.loop(*patch.columns) as columns:
            place = f.offset(source, self.element, f.binary("add", rows.index, f.multiply(columns.index, stride)))
            f.store(f.load(self.element, place), self._place(f, patch, rows.index, columns.index))

    def _place(self, f: FunctionWriter, patch: Patch, row: Register, column: Register) -> Register:
        place = f.binary("add", f.multiply(f.binary("sub", row, patch.rows[0]), self.pitch), column)
        return f.offset(self.address, self.element, f.binary("sub", place, patch.columns[0]))


def transpose_block(f: FunctionWriter, lines: Sequence[Register]) -> list[Register]:
    """Exchange rows and lanes of as many vectors as each has lanes, a power of two: bit by bit of their numbers."""
    count = len(lines)
    found = list(lines)
    distance = 1
    while distance < count:
        for number in range(count):
            if number & distance:
                continue
            low, high = found[number], found[number | distance]
            first = [count + lane - distance if lane & distance else lane for lane in range(count)]
            second = [count + lane if lane & distance else lane + distance for lane in range(count)]
            found[number], found[number | distance] = f.shuffle(low, high, first), f.shuffle(low, high, second)
        distance *= 2
    return found


def interleaved(f: FunctionWriter, columns: Sequence[Register]) -> list[Register]:
    """Give the numbers of two to four vectors in turn, a0 b0 c0 a1 b1 c1 ...: as many vectors."""
    count, lanes = len(columns), lanes_of(columns[0].kind)

    def joined(start: int, given: Sequence[int]) -> Register:
        """Put the numbers of one or two columns where they belong in the vector that begins at a place."""
        order = [0] * lanes
        for lane in range(lanes):
            row, column = divmod(start + lane, count)
            if column in given:
                order[lane] = row + lanes * given.index(column)
        return f.shuffle(columns[given[0]], columns[given[-1]], order)

    found = []
    for start in range(0, count * lanes, lanes):
        value = joined(start, (0, 1))
        if count > 2:
            own = [(start + lane) % count < 2 for lane in range(lanes)]
            order = [lane if first else lane + lanes for lane, first in enumerate(own)]
            value = f.shuffle(value, joined(start, tuple(range(2, count))), order)
        found.append(value)
    return found


Rows = tuple[Register, Register]  # the address of the first, and how many elements they are apart


def transpose_square(square: Vectors, source: Rows, target: Rows) -> None:
    """Write the square at `source` to `target`, its rows as columns."""
    writer = square.writer
    (of, apart), (to, width) = source, target
    size = min(square.lanes, PART_BITS // bits_of(square.element))
    part = vector(square.element, size)
    if square.lanes > WAYS:
        of, apart = _gathered(square, of, apart)
    steps = [writer.multiply(apart, row) for row in range(size)]
    with writer.loop(0, square.lanes // size) as loop:
        start = square.moved(of, (loop.index, size))
        starts = [square.moved(start, (apart, row)) for row in range(0, square.lanes, size)]
        lines = [_joined(writer, [writer.load(part, square.address(one, step)) for one in starts]) for step in steps]
        place = square.moved(to, (writer.binary("mul", loop.index, width), size))
        for row, value in enumerate(transpose_parts(writer, lines, size)):
            square.store(value, square.moved(place, (width, row)))


def _gathered(square: Vectors, of: Register, apart: Register) -> Rows:
    """Copy a square's rows side by side."""
    writer, lanes = square.writer, square.lanes
    memory = writer.scratch(square.element, lanes * lanes)
    for row in range(lanes):
        square.store(square.load(square.moved(of, (apart, row))), square.address(memory, row * lanes))
    return memory, writer.integer(lanes)


def transpose_parts(writer: FunctionWriter, lines: Sequence[Register], size: int) -> list[Register]:
    """Exchange rows and columns in every part of so many vectors as a part has numbers."""
    found, half = list(lines), size // 2
    lanes = lanes_of(found[0].kind)
    low = [lane + side for part in range(0, lanes, size) for lane in range(part, part + half) for side in (0, lanes)]
    high = [lane + half for lane in low]
    for _ in range(half.bit_length()):
        pairs = list(zip(found[:half], found[half:], strict=True))
        found = [writer.shuffle(x, y, order) for x, y in pairs for order in (low, high)]
    return found


def _joined(writer: FunctionWriter, parts: list[Register]) -> Register:
    """Give one vector of several, which follow one another."""
    while len(parts) > 1:
        order = range(2 * lanes_of(parts[0].kind))
        parts = [writer.shuffle(x, y, order) for x, y in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


class Vectors:
    """Loads, stores and arithmetic on vectors of `lanes` numbers; `count` says how many of them exist, if not all."""

    def __init__(self, writer: FunctionWriter, element: str, lanes: int) -> None:
        self.writer = writer
        self.dtype = element
        self.element = HELD[element].stored
        self.lanes = lanes
        self.kind = vector(self.element, lanes)
        self.zero = constant(self.kind, 0.0)

    def of(self, dtype: str) -> Vectors:
        """Give vectors of as many numbers of another dtype."""
        return self if dtype == self.dtype else Vectors(self.writer, dtype, self.lanes)

    def address(self, base: Register, index: Register | int) -> Register:
        """Give the address so many elements after a base."""
        return self.writer.offset(base, self.element, index)

    def moved(self, base: Register, *moves: tuple[Register, Stride]) -> Register:
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

    def load_apart(self, address: Register, stride: Stride, count: int | None = None) -> Register:
        """Load numbers a stride apart, or the first `count` and zeros; those past the count are not touched."""
        if stride == 0:
            return self.load_splat(address)
        if stride == 1:
            return self.load(address, count)
        value = self.zero
        for lane in range(self.lanes if count is None else count):
            number = self.writer.load(self.element, self.address(address, times(self.writer, stride, lane)))
            value = self.writer.insert(value, number, lane)
        return value

    def store(self, value: Register, address: Register, count: int | None = None) -> None:
        """Store a vector, or its first `count` numbers only."""
        if count is None or count == self.lanes:
            self.writer.store(value, address)
        else:
            self.writer.masked_store(value, address, self._mask(count))

    def store_apart(self, value: Register, address: Register, stride: Stride, count: int | None = None) -> None:
        """Store a vector, or its first `count` numbers, a stride apart."""
        if stride == 1:
            self.store(value, address, count)
            return
        for lane in range(self.lanes if count is None else count):
            place = self.address(address, times(self.writer, stride, lane))
            self.writer.store(self.writer.extract(value, lane), place)

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


def linear(f: FunctionWriter, coordinates: Sequence[Register], strides: Strides, start: int) -> Register:
    """Sum up coordinates times strides and a start."""
    total = f.integer(start)
    for coordinate, stride in zip(coordinates, strides, strict=True):
        if stride:
            total = f.add(total, f.multiply(coordinate, stride))
    return total


def times(f: FunctionWriter, stride: Stride, number: int) -> Stride:
    """Give a stride so many times."""
    return f.multiply(stride, number) if isinstance(stride, Register) else stride * number


@dataclass(frozen=True, slots=True)
class ColumnSpan:
    """Lanes from a column on; with a mask, only the lanes it names exist."""

    f: FunctionWriter
    column: Register
    lanes: int
    mask: Register | None = None

    def within(self, count: Register | None) -> ColumnSpan:
        """Give the same span of which no more exists than columns below a count."""
        if count is None:
            return self
        mask = mask_up_to(self.f, self.column, count, self.lanes)
        return replace(self, mask=mask if self.mask is None else self.f.binary("and", mask, self.mask))

    def load(self, view: View, base: Register, stride: Stride) -> Register:
        """Load the span's elements of a view whose first column is at an address."""
        f, element = self.f, HELD[view.dtype].stored
        kind = vector(element, self.lanes)
        address = f.offset(base, element, f.multiply(self.column, stride))
        if self.lanes == 1 and self.mask is not None:
            (loaded,) = f.either(self.mask, lambda: (f.load(kind, address),), lambda: (constant(kind, 0),))
        elif stride not in (0, 1) and self.lanes > 1:
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

    def store(self, view: View, base: Register, stride: Stride, x: Register) -> None:
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

    def _addresses(self, first: Register, element: str, stride: Stride) -> Register:
        if isinstance(stride, Register):
            steps = self.f.binary("mul", self.f.splat(stride, self.lanes), constants("i64", range(self.lanes)))
        else:
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
