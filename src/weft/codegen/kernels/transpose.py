"""Transpose squares of numbers in registers, so that both memories are read and written along their own rows.

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

from collections.abc import Sequence
from dataclasses import dataclass

from weft.codegen.kernels.vectors import Vectors
from weft.codegen.llvm.dtypes import HELD
from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register, bits_of, lanes_of, vector
from weft.plan.kernels.expression import View

PART_BITS = 128
# Rows whose addresses are a power of two apart share so many places of the nearest cache. More of them than that would
# be fetched anew for each of their parts.
WAYS = 8


@dataclass(frozen=True, slots=True)
class Patch:
    """A rectangle of rows and columns: where it begins and ends, and the end of the whole space on both sides."""

    rows: tuple[Register, Register]
    columns: tuple[Register, Register]
    whole: tuple[int, int]


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
    def make(cls, f: FunctionWriter, view: View, size: tuple[int, int], block: int) -> "TransposedPatch":
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

    def fill(self, f: FunctionWriter, source: Register, stride: int, patch: Patch, block: int) -> None:
        """Transpose a patch; `source` is where row 0 and column 0 are, and columns are so many elements apart."""
        kind = vector(self.element, block)
        with f.loop(*patch.rows, block) as rows, f.loop(*patch.columns, block) as columns:
            row = f.minimum(rows.index, f.integer(patch.whole[0] - block))
            column = f.minimum(columns.index, f.integer(patch.whole[1] - block))
            start = f.offset(source, self.element, f.add(row, f.multiply(column, stride)))
            loaded = [f.load(kind, f.offset(start, self.element, number * stride)) for number in range(block)]
            place = f.add(f.multiply(f.binary("sub", row, patch.rows[0]), self.pitch), column)
            target = f.offset(self.address, self.element, f.binary("sub", place, patch.columns[0]))
            for number, line in enumerate(transpose_block(f, loaded)):
                f.store(line, f.offset(target, self.element, number * self.pitch))


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
