"""Hold a block of sums in registers: start them, add the products of a panel, finish and store them.

This is the innermost part of matmuls and convolutions. A block is some rows of the left operand by some vectors of
columns; every step of the sum loads one panel row and one number per left row, and does rows x vectors multiply-adds:

                      panel row:   [ column vector 0 ] [ column vector 1 ]
    left row 0: splat(l0)      ->  [ sum 0, 0        ] [ sum 0, 1        ]
    left row 1: splat(l1)      ->  [ sum 1, 0        ] [ sum 1, 1        ]
    ...                                  += splat(l) * vector

All sums stay in registers from the first step to the last. A function per shape of block is called by the loops over
blocks (tiles.py). Phase 0 is the first part of a sum, 2 the last of several, 1 any other; a sum in one part has no
phases.

Numbers are multiplied one by one, converted when they are loaded; or, where the panel has them so, in groups that lie
side by side along the sum and fill the bits of one sum: two of bf16, four of 8 bits.

    left row:     l0 l1 | l2 l3 | ...          panel row (bf16, 4 columns):   a0 a1  b0 b1  c0 c1  d0 d1
    sum of column a  +=  l0 * a0 + l1 * a1

Processors have instructions for this (VDPBF16PS, VPDPBUSD); where one lacks them, numbers are taken apart in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from weft.codegen.kernels.elementwise import BodyContext, Typed, emit_body
from weft.codegen.kernels.vectors import Vectors
from weft.codegen.llvm.dtypes import HELD, cast
from weft.codegen.llvm.module import FunctionWriter, Register, bits_of, constant, vector
from weft.errors import InternalError
from weft.plan.kernels.expression import DTYPE_BYTES, Instruction
from weft.plan.kernels.gemm import Epilogue

WHOLE_VECTOR = 64  # bytes
BYTES = 4  # of a group of u8 and i8


class GroupRule(NamedTuple):
    """How groups of numbers are multiplied: an instruction with the feature that has it, and what stands for it."""

    feature: str
    instruction: str
    element: str  # of the instruction's operands, as LLVM spells it
    apart: Callable[[Multiplier, Register, Register, Register], Register]


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


WHOLE_SUM = 3  # the phase of a sum of which there is one part, where there may be several
LINE_BYTES = 64  # that the processor fetches at once
BYTES_AHEAD = 4096  # of a packed panel that are asked into the nearest cache; past its end comes the next one


@dataclass(frozen=True)
class BlockShape:
    """A register block: rows, vectors of columns, and how many numbers its last vector has.

    Of a `partial` block only some of the rows exist, at least one: it is told how many.
    """

    rows: int
    vectors: int
    tail: int
    partial: bool = False

    def count(self, vector: int, lanes: int) -> int:
        """Count the numbers of a vector."""
        return self.tail if vector == self.vectors - 1 else lanes


@dataclass(frozen=True)
class PanelAddress:
    """Where a panel lies: elements from one step of the sum to the next, and whether its last vector is whole."""

    pointer: Register
    step: int
    whole: bool


# Loads one number of every row, repeated in all lanes, for a step of an iteration of the loop over the sum.
LoadRows = Callable[[Register, int], list[Register]]


@dataclass(frozen=True)
class Iterations:
    """How a loop runs along the sum: its iterations, the steps of each, and the sums that these alternate between."""

    count: Register
    steps: int = 1
    chains: int = 1


class RegisterBlock:
    """Emits the sums of one block; sums are listed row by row, one per vector."""

    def __init__(self, vectors: Vectors, shape: BlockShape, multiplier: Multiplier | None = None) -> None:
        self.vectors = vectors
        self.shape = shape
        self.multiplier = multiplier or Multiplier(vectors, vectors.dtype, vectors.dtype)

    def loop(self, sums: list[Register], iterations: Iterations, panel: PanelAddress, rows: LoadRows) -> list[Register]:
        """Add the products of all iterations to the sums."""
        writer, width = self.vectors.writer, len(sums)
        separate = [*sums, *[self.vectors.zero] * (width * (iterations.chains - 1))]
        # The place in the panel is carried along: LLVM does not find that by itself (compiler.py).
        with writer.loop(0, iterations.count, carried=[*separate, panel.pointer]) as loop:
            *carried, base = loop.carried
            for step in range(iterations.steps):
                first = (step % iterations.chains) * width
                added = self.step(carried[first : first + width], base, (panel, step), rows(loop.index, step))
                carried[first : first + width] = added
            loop.carry(*carried, self.multiplier.right.address(base, panel.step * iterations.steps))
        *separate, _ = loop.carried
        while len(separate) > width:
            half = len(separate) // width // 2 * width
            pairs = zip(separate[:half], separate[-half:], strict=True)
            separate = [*(self.vectors.plus(x, y) for x, y in pairs), *separate[half:-half]]
        return separate

    def step(
        self, sums: list[Register], base: Register, place: tuple[PanelAddress, int], rows: list[Register]
    ) -> list[Register]:
        """Add the products of one step of a panel, counted from a base address in it."""
        lanes, shape, multiplier = self.vectors.lanes, self.shape, self.multiplier
        panel, step = place
        width = lanes * multiplier.group
        columns = [
            multiplier.columns(
                multiplier.right.address(base, step * panel.step + vector * width),
                None if panel.whole else shape.count(vector, lanes),
            )
            for vector in range(shape.vectors)
        ]
        if panel.whole:
            ahead = -(-BYTES_AHEAD // (panel.step * DTYPE_BYTES[multiplier.right.dtype]))
            line = max(1, LINE_BYTES // (width * DTYPE_BYTES[multiplier.right.dtype]))
            for vector in range(0, shape.vectors, line):
                # SAFETY: the address may be past the packed matrix: a prefetch touches no memory that the program sees.
                at = multiplier.right.address(base, (step + ahead) * panel.step + vector * width)
                self.vectors.writer.prefetch(at)
        pairs = [(row, column) for row in rows for column in columns]
        return [multiplier.add(*pair, total) for pair, total in zip(pairs, sums, strict=True)]


def stored_and_read(vectors: Vectors, epilogue: Epilogue) -> list[Vectors]:
    """Give vectors of what an epilogue stores, and of each of its inputs."""
    return [vectors.of(dtype) for dtype in (epilogue.stored(vectors.dtype), *epilogue.dtypes(vectors.dtype))]


class EpilogueEmitter:
    """Applies an epilogue to the sums of one register block; `pointers` are its inputs at the block's first place.

    `rows` says where each row of a partial block is.
    """

    def __init__(
        self, vectors: Vectors, epilogue: Epilogue, pointers: list[Register], rows: Sequence[Register] | None = None
    ) -> None:
        self.rows = rows
        self.vectors = vectors
        self.epilogue = epilogue
        self.pointers = pointers
        self.stored, *self._reads = stored_and_read(vectors, epilogue)
        self._first_operand = 1 if epilogue.bias else 0
        self._shared: dict[tuple[int, int, int, int | None], Register] = {}

    def at(self, row: Register, column: Register) -> EpilogueEmitter:
        """Give an emitter whose first place is one known when the kernel runs."""
        moved = [
            own.moved(pointer, (row, operand.row), (column, operand.column))
            for own, pointer, operand in zip(self._reads, self.pointers, self.epilogue.inputs, strict=True)
        ]
        return EpilogueEmitter(self.vectors, self.epilogue, moved)

    def begin_block(self) -> None:
        """Forget what was loaded: in the block that begins now it may not have been."""
        self._shared.clear()

    def bias(self, row: int, column: int, count: int | None) -> Register:
        """Give what the sum starts with, for a vector that starts at a column."""
        return self._read(0, row, column, count) if self.epilogue.bias else self.vectors.zero

    def apply(self, value: Register, row: int, column: int, count: int | None) -> Register:
        """Apply the body to the vector of results at a row and column."""
        if not self.epilogue.body:
            return value
        numbers = range(self._first_operand, len(self.epilogue.inputs))
        operands = [Typed(self._read(number, row, column, count), self._reads[number].dtype) for number in numbers]
        inputs = [Typed(value, self.vectors.dtype), *operands]
        context = BodyContext(self.vectors.lanes, _no_position)
        return emit_body(self.vectors.writer, self.epilogue.body, inputs, context)[-1].register

    def _read(self, number: int, row: int, column: int, count: int | None) -> Register:
        """Load an input at a place of the block; what several rows or columns share is loaded once."""
        operand = self.epilogue.inputs[number]
        place = (number, row if operand.row else 0, column if operand.column else 0, count)
        if place not in self._shared:
            own, base = self._reads[number], self.pointers[number]
            if self.rows is not None:
                base, row = own.moved(base, (self.rows[row], operand.row)), 0
            address = own.address(base, row * operand.row + column * operand.column)
            self._shared[place] = own.load_apart(address, operand.column, count)
        return self._shared[place]


def _no_position(instruction: Instruction) -> Register:
    raise InternalError(f"an epilogue cannot compute {instruction.op}", why="it does not know where it is")


@dataclass(frozen=True)
class Ending:
    """What surrounds the sums: the addresses of output rows, the epilogue, and whether to add to the output.

    What is added to, in parts or because the kernel accumulates, has the dtype of the sums.
    """

    rows: list[Register]
    epilogue: EpilogueEmitter
    accumulate: bool = False
    existing: Register | None = None  # of the rows of a partial block: so many are stored


class SetAside:
    """Sums kept on the stack while registers add up a part: long chains of additions would round worse."""

    def __init__(self, writer: FunctionWriter, vectors: Vectors, starts: list[Register]) -> None:
        self.vectors = vectors
        self.places = [writer.stack(vectors.kind) for _ in starts]
        for place, start in zip(self.places, starts, strict=True):
            self._store(start, place)

    def add(self, sums: list[Register]) -> None:
        """Add a part."""
        for place, value in zip(self.places, sums, strict=True):
            self._store(self.vectors.writer.binary("fadd", self._load(place), value), place)

    def totals(self) -> list[Register]:
        """Give the sums of all parts."""
        return [self._load(place) for place in self.places]

    # SAFETY: places of this function's own stack frame, of exactly one vector each, so aligned as LLVM aligns them.
    # Volatile, or LLVM would take these back into registers that the inner loop needs.
    def _load(self, place: Register) -> Register:
        return self.vectors.writer.emit(self.vectors.kind, f"load volatile {self.vectors.kind}, {place}")

    def _store(self, value: Register, place: Register) -> None:
        self.vectors.writer.emit_void(f"store volatile {value}, {place}")


@dataclass(frozen=True)
class PartOfSum:
    """The phase of a sum in several parts; with two, no part is between the first and the last.

    `varies` where there may be fewer parts in a call.
    """

    number: Register
    parts: int
    varies: bool = False

    @classmethod
    def of(cls, number: Register, parts: int, *, varies: bool = False) -> PartOfSum | None:
        """Give the phase of a sum, if it has several parts."""
        return cls(number, parts, varies) if parts > 1 else None


class BlockFunction:
    """Emits the start and the end of a block's sums, and the phases of a sum in parts."""

    def __init__(self, block: RegisterBlock, writer: FunctionWriter, ending: Ending, phase: PartOfSum | None) -> None:
        self.writer = writer
        self.vectors = block.vectors
        self.shape = block.shape
        self.ending = ending
        self.phase = phase

    def emit(
        self,
        sums: Callable[[list[Register]], list[Register]],
        rest: Callable[[list[Register]], list[Register]] | None = None,
    ) -> None:
        """Emit the function's body; `sums` adds a part of the sum, `rest` what only the last part has."""
        accumulate = self.ending.accumulate
        totals = sums(self._start())
        if self.phase is None:
            self._finish(rest(totals) if rest else totals, add=accumulate, last=True)
            return
        writer = self.vectors.writer
        # Phases that end alike share their code.
        first, middle = (accumulate, False), (True, False)
        last = True, rest is not None or bool(self.ending.epilogue.epilogue.body)
        ends = {0: first, 2: last} if self.phase.parts == 2 else {0: first, 1: middle, 2: last}
        if self.phase.varies:
            ends[WHOLE_SUM] = accumulate, last[1]
        labels = {end: writer.label("end") for end in ends.values()}
        listed = " ".join(f"i64 {number}, label %{labels[end]}" for number, end in ends.items() if end != last)
        writer.emit_void(f"switch {self.phase.number}, label %{labels[last]} [ {listed} ]")
        after = writer.label("after")
        for (add, is_last), label in labels.items():
            writer.begin_block(label)
            self.ending.epilogue.begin_block()
            self._finish(rest(totals) if rest and is_last else totals, add=add, last=is_last)
            writer.branch(after)
        writer.begin_block(after)

    def _places(self) -> list[tuple[int, int, int]]:
        """List row, column and count of every vector of the block."""
        lanes, shape = self.vectors.lanes, self.shape
        return [(r, v * lanes, shape.count(v, lanes)) for r in range(shape.rows) for v in range(shape.vectors)]

    def _start(self) -> list[Register]:
        starts = [self.ending.epilogue.bias(*place) for place in self._places()]
        if self.phase is None or self.ending.epilogue.epilogue.bias is None:
            return starts
        writer = self.vectors.writer
        first = writer.compare("icmp eq", self.phase.number, writer.integer(0))
        if self.phase.varies:
            alone = writer.compare("icmp eq", self.phase.number, writer.integer(WHOLE_SUM))
            first = writer.binary("or", first, alone)
        return [writer.select(first, start, self.vectors.zero) for start in starts]

    def _finish(self, sums: list[Register], *, add: bool, last: bool) -> None:
        vectors, stored = self.vectors, self.ending.epilogue.stored
        if last and self.ending.epilogue.epilogue.is_long:
            self._finish_row_by_row(sums, add=add)
            return
        places, width = list(zip(sums, self._places(), strict=True)), self.shape.vectors
        for row in range(self.shape.rows):
            with self._if_exists(row):
                for value, place in places[row * width : (row + 1) * width]:
                    _, column, count = place
                    address = stored.address(self.ending.rows[row], column)
                    total = vectors.writer.binary("fadd", value, vectors.load(address, count)) if add else value
                    stored.store(self.ending.epilogue.apply(total, *place) if last else total, address, count)

    @contextmanager
    def _if_exists(self, row: int) -> Iterator[None]:
        """Do what is inside for a row that exists; what is loaded there is known there alone."""
        existing = self.ending.existing
        if existing is None or row == 0:
            yield
            return
        self.ending.epilogue.begin_block()
        with self.writer.only_if(self.writer.compare("icmp slt", self.writer.integer(row), existing)):
            yield
        self.ending.epilogue.begin_block()

    def _finish_row_by_row(self, sums: list[Register], *, add: bool) -> None:
        """Apply a long epilogue in a loop over rows, from sums and addresses of rows put on the stack."""
        writer, vectors, shape, stored = self.writer, self.vectors, self.shape, self.ending.epilogue.stored
        values = writer.stack(f"[{len(sums)} x {vectors.kind}]")
        rows = writer.stack(f"[{shape.rows} x ptr]")
        for number, value in enumerate(sums):
            vectors.store(value, vectors.address(values, number * vectors.lanes))
        for number, address in enumerate(self.ending.rows):
            writer.store(address, writer.offset(rows, "ptr", number))
        with writer.loop(0, self.ending.existing or shape.rows) as loop:
            epilogue = self.ending.epilogue.at(loop.index, writer.integer(0))
            out = writer.load("ptr", writer.offset(rows, "ptr", loop.index))
            first = vectors.moved(values, (loop.index, shape.vectors * vectors.lanes))
            for vector in range(shape.vectors):
                column, count = vector * vectors.lanes, shape.count(vector, vectors.lanes)
                address, total = stored.address(out, column), vectors.load(vectors.address(first, column))
                total = writer.binary("fadd", total, vectors.load(address, count)) if add else total
                stored.store(epilogue.apply(total, 0, column, count), address, count)
