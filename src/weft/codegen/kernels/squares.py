"""A square of numbers, as many rows and columns as a vector has lanes -> the same square turned, elsewhere in memory.

A vector consists of parts of 16 bytes, and exchanging numbers inside parts is what processors do at once and LLVM
translates soonest: any other exchange of lanes costs it ten times as long. So the parts of a column of squares are
loaded to where they belong, each from a row of its own, and only numbers inside parts change places.
"""

from collections.abc import Sequence

from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register, bits_of, lanes_of, vector

PART_BITS = 128
# Rows whose addresses are a power of two apart share so many places of the nearest cache. More of them than that would
# be fetched anew for each of their parts.
WAYS = 8

Rows = tuple[Register, Register]  # the address of the first, and how many elements they are apart


def turn_square(square: Vectors, source: Rows, target: Rows) -> None:
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
        for row, value in enumerate(turned_parts(writer, lines, size)):
            square.store(value, square.moved(place, (width, row)))


def _gathered(square: Vectors, of: Register, apart: Register) -> Rows:
    """Copy a square's rows side by side."""
    writer, lanes = square.writer, square.lanes
    memory = writer.scratch(square.element, lanes * lanes)
    for row in range(lanes):
        square.store(square.load(square.moved(of, (apart, row))), square.address(memory, row * lanes))
    return memory, writer.integer(lanes)


def turned_parts(writer: FunctionWriter, lines: Sequence[Register], size: int) -> list[Register]:
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
