"""A part of an input that runs across the output -> the same part turned, in scratch memory beside the loop.

Square blocks are loaded along the input's own direction, turned in registers, and stored along the output's. At the
edges a block begins earlier instead of being smaller: it writes again what a block before it wrote, the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from weft.codegen.llvm.dtypes import HELD
from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register, vector
from weft.plan.kernels.expression import View


@dataclass(frozen=True, slots=True)
class Patch:
    """A rectangle of rows and columns: where it begins and ends, and the end of the whole space on both sides."""

    rows: tuple[Register, Register]
    columns: tuple[Register, Register]
    whole: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Turned:
    """Scratch memory for one turned patch; the address is that of the patch's first element."""

    address: Register
    element: str
    pitch: int

    @classmethod
    def make(cls, f: FunctionWriter, view: View, size: tuple[int, int], block: int) -> "Turned":
        """Make room for a patch, and for a block before it on both sides."""
        element = HELD[view.dtype].stored
        pitch = size[1] + block
        memory = f.scratch(element, (size[0] + block) * pitch)
        return cls(f.offset(memory, element, block * pitch + block), element, pitch)

    def row(self, f: FunctionWriter, patch: Patch, row: Register) -> Register:
        """Give the address where column 0 of the whole space would be, in a row of the patch."""
        place = f.multiply(f.binary("sub", row, patch.rows[0]), self.pitch)
        return f.offset(self.address, self.element, f.binary("sub", place, patch.columns[0]))

    def fill(self, f: FunctionWriter, source: Register, stride: int, patch: Patch, block: int) -> None:
        """Turn a patch; `source` is the address of row 0 and column 0, and columns are so many elements apart."""
        kind = vector(self.element, block)
        with f.loop(*patch.rows, block) as rows, f.loop(*patch.columns, block) as columns:
            row = f.minimum(rows.index, f.integer(patch.whole[0] - block))
            column = f.minimum(columns.index, f.integer(patch.whole[1] - block))
            start = f.offset(source, self.element, f.add(row, f.multiply(column, stride)))
            loaded = [f.load(kind, f.offset(start, self.element, number * stride)) for number in range(block)]
            place = f.add(f.multiply(f.binary("sub", row, patch.rows[0]), self.pitch), column)
            target = f.offset(self.address, self.element, f.binary("sub", place, patch.columns[0]))
            for number, line in enumerate(turned_block(f, loaded)):
                f.store(line, f.offset(target, self.element, number * self.pitch))


def turned_block(f: FunctionWriter, lines: Sequence[Register]) -> list[Register]:
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
