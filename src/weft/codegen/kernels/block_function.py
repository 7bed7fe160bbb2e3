"""A register block -> its function: sums start from the bias or nothing, and are stored after the epilogue.

Phase 0 is the first part of the sum, 2 the last of several, 1 any other; a sum in one part has no phases.
"""

from collections.abc import Callable
from dataclasses import dataclass

from weft.codegen.kernels.epilogue import EpilogueEmitter
from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.kernels.register_block import BlockWriter, RegisterBlock
from weft.codegen.llvm.register import Register


@dataclass(frozen=True)
class Ending:
    """What surrounds the sums: the addresses of output rows, the epilogue, and whether to add to the output."""

    rows: list[Register]
    epilogue: EpilogueEmitter
    accumulate: bool = False


class SetAside:
    """Sums kept on the stack while registers add up a part: long chains of additions would round worse."""

    def __init__(self, writer: BlockWriter, vectors: Vectors, starts: list[Register]) -> None:
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

    # Volatile, or LLVM would take these back into registers that the inner loop needs.
    def _load(self, place: Register) -> Register:
        return self.vectors.writer.emit(self.vectors.kind, f"load volatile {self.vectors.kind}, {place}")

    def _store(self, value: Register, place: Register) -> None:
        self.vectors.writer.emit_void(f"store volatile {value}, {place}")


@dataclass(frozen=True)
class PartOfSum:
    """The phase of a sum in several parts; with two, no part is between the first and the last."""

    number: Register
    parts: int

    @classmethod
    def of(cls, number: Register, parts: int) -> "PartOfSum | None":
        """Give the phase of a sum, if it has several parts."""
        return cls(number, parts) if parts > 1 else None


class BlockFunction:
    """Emits the start and the end of a block's sums, and the phases of a sum in parts."""

    def __init__(self, block: RegisterBlock, writer: BlockWriter, ending: Ending, phase: PartOfSum | None) -> None:
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
        return [writer.select(first, start, self.vectors.zero) for start in starts]

    def _finish(self, sums: list[Register], *, add: bool, last: bool) -> None:
        vectors = self.vectors
        if last and self.ending.epilogue.epilogue.is_long:
            self._finish_row_by_row(sums, add=add)
            return
        for value, place in zip(sums, self._places(), strict=True):
            row, column, count = place
            address = vectors.address(self.ending.rows[row], column)
            total = vectors.writer.binary("fadd", value, vectors.load(address, count)) if add else value
            vectors.store(self.ending.epilogue.apply(total, *place) if last else total, address, count)

    def _finish_row_by_row(self, sums: list[Register], *, add: bool) -> None:
        """Apply a long epilogue in a loop over rows, from sums and addresses of rows put on the stack."""
        writer, vectors, shape = self.writer, self.vectors, self.shape
        values = writer.stack(f"[{len(sums)} x {vectors.kind}]")
        rows = writer.stack(f"[{shape.rows} x ptr]")
        for number, value in enumerate(sums):
            vectors.store(value, vectors.address(values, number * vectors.lanes))
        for number, address in enumerate(self.ending.rows):
            writer.store(address, writer.offset(rows, "ptr", number))
        with writer.loop(0, shape.rows) as loop:
            epilogue = self.ending.epilogue.at(loop.index, writer.integer(0))
            out = writer.load("ptr", writer.offset(rows, "ptr", loop.index))
            first = vectors.moved(values, (loop.index, shape.vectors * vectors.lanes))
            for vector in range(shape.vectors):
                column, count = vector * vectors.lanes, shape.count(vector, vectors.lanes)
                address, total = vectors.address(out, column), vectors.load(vectors.address(first, column))
                total = writer.binary("fadd", total, vectors.load(address, count)) if add else total
                vectors.store(epilogue.apply(total, 0, column, count), address, count)
