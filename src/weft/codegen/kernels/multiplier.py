"""Load numbers of both operands of a product, of shorter types than its sums too, and add their products to sums.

Numbers are multiplied one by one, converted when they are loaded; or, where the panel has them so, in groups that lie
side by side along the sum and fill the bits of one sum: two of bf16, four of 8 bits.

    left row:     l0 l1 | l2 l3 | ...          panel row (bf16, 4 columns):   a0 a1  b0 b1  c0 c1  d0 d1
    sum of column a  +=  l0 * a0 + l1 * a1

Processors have instructions for this (VDPBF16PS, VPDPBUSD); where one lacks them, numbers are taken apart in registers.
"""

from collections.abc import Callable
from typing import NamedTuple

from weft.codegen.kernels.vectors import Vectors
from weft.codegen.llvm.dtypes import HELD, cast
from weft.codegen.llvm.register import Register, bits_of, constant, vector
from weft.errors import InternalError

WHOLE_VECTOR = 64  # bytes
BYTES = 4  # of a group of u8 and i8


class GroupRule(NamedTuple):
    """How groups of numbers are multiplied: an instruction with the feature that has it, and what stands for it."""

    feature: str
    instruction: str
    element: str  # of the instruction's operands, as LLVM spells it
    apart: Callable[["Multiplier", Register, Register, Register], Register]


class Multiplier:
    """Loads numbers of a row and vectors of columns, and adds products; sums are in `vectors`."""

    def __init__(self, vectors: Vectors, left: str, right: str, group: int = 1, *, in_words: bool = False) -> None:
        """With `in_words`, numbers are loaded as words of four integers of 8 bits, whatever these are."""
        self.vectors = vectors
        self.writer = vectors.writer
        self.left, self.right = vectors.of(left), vectors.of(right)
        self.group = group
        self.word = f"i{bits_of(vectors.element)}"
        self._rule = None if group == 1 else _rule_of(left, right, group)
        if in_words:
            self._rule = RULES["u8", "i8", BYTES]

    def row(self, address: Register, numbers: int | None = None) -> Register:
        """Load what one row has for a step into all lanes: a number, or a group, of which so many numbers exist."""
        writer, vectors = self.writer, self.vectors
        if self.group == 1:
            number = writer.load(self.left.element, address)
            return writer.splat(cast(writer, number, self.left.dtype, vectors.dtype), vectors.lanes)
        if numbers is None or numbers == self.group:
            # SAFETY: a group is as many bytes as a word; rows may begin at any number.
            return writer.splat(writer.emit(self.word, f"load {self.word}, {address}, align 1"), vectors.lanes)
        found = constant(self.word, 0)
        for place in range(numbers):
            loaded = writer.load(self.left.element, self.left.address(address, place))
            wide = writer.convert("zext", loaded, self.word)
            moved = writer.binary("shl", wide, constant(self.word, place * bits_of(self.left.element)))
            found = writer.binary("or", found, moved)
        return writer.splat(found, vectors.lanes)

    def columns(self, address: Register, count: int | None) -> Register:
        """Load a vector of a panel: numbers, or groups, which panels have whole vectors of."""
        if self.group == 1:
            return cast(self.writer, self.right.load(address, count), self.right.dtype, self.vectors.dtype)
        return self.writer.load(vector(self.word, self.vectors.lanes), address)

    def add(self, row: Register, column: Register, total: Register) -> Register:
        """Add products to sums."""
        writer, vectors = self.writer, self.vectors
        if self._rule is None:
            if HELD[vectors.dtype].kind == "float":
                return writer.fma(row, column, total)
            return writer.binary("add", total, writer.binary("mul", row, column))
        rule = self._rule
        if writer.target.has(rule.feature) and writer.target.vector_bytes == WHOLE_VECTOR:
            kind = vector(rule.element, vectors.lanes * bits_of(vectors.element) // bits_of(rule.element))
            operands = (writer.bitcast(one, kind) for one in (row, column))
            return writer.intrinsic(rule.instruction, total.kind, total, *operands, suffix=())
        return rule.apart(self, row, column, total)

    def multiply_words(self, row: Register, column: Register, total: Register) -> Register:
        """Add the four products of groups of u8 and i8."""
        writer, kind = self.writer, column.kind
        for place in range(BYTES):
            left = writer.binary("lshr", row, constant(kind, 8 * place))
            left = writer.binary("and", left, constant(kind, 0xFF))
            right = writer.binary("shl", column, constant(kind, 24 - 8 * place))
            right = writer.binary("ashr", right, constant(kind, 24))
            total = writer.binary("add", total, writer.binary("mul", left, right))
        return total

    def multiply_pairs(self, row: Register, column: Register, total: Register) -> Register:
        """Add both products of pairs of bf16, which are the upper halves of floats."""
        writer, kind = self.writer, column.kind
        for opcode, by in (("shl", 16), ("and", 0xFFFF0000)):
            halves = (writer.binary(opcode, word, constant(kind, by)) for word in (row, column))
            left, right = (writer.bitcast(half, total.kind) for half in halves)
            total = writer.fma(left, right, total)
        return total


RULES = {
    ("bf16", "bf16", 2): GroupRule(
        "avx512bf16", "llvm.x86.avx512bf16.dpbf16ps.512", "bfloat", Multiplier.multiply_pairs
    ),
    ("u8", "i8", 4): GroupRule("avx512vnni", "llvm.x86.avx512.vpdpbusd.512", "i8", Multiplier.multiply_words),
}


def _rule_of(left: str, right: str, group: int) -> GroupRule:
    rule = RULES.get((left, right, group))
    if rule is None:
        raise InternalError(f"no product has groups of {group} numbers of {left} and {right}")
    return rule
