"""A register block -> its function: sums start from the bias or nothing, and are stored after the epilogue.

Phase 0 is the first part of the sum, 2 the last of several, 1 any other; a sum in one part has no phases.
"""

from collections.abc import Callable
from dataclasses import dataclass

from weft.codegen.epilogue import EpilogueEmitter
from weft.codegen.panel_vectors import Vectors
from weft.codegen.register import Register
from weft.codegen.register_block import BlockShape


@dataclass(frozen=True)
class Ending:
    """What surrounds the sums: the addresses of output rows, the epilogue, and whether to add to the output."""

    rows: list[Register]
    epilogue: EpilogueEmitter
    accumulate: bool = False


class SetAside:
    """Sums kept on the stack while registers add up a part: long chains of additions would round worse."""

    def __init__(self, vectors: Vectors, starts: list[Register]) -> None:
        self.vectors = vectors
        self.places = [vectors.writer.emit("ptr", f"alloca {vectors.kind}") for _ in starts]
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


class BlockFunction:
    """Emits the start and the end of a block's sums, and the phases of a sum in parts."""

    def __init__(self, vectors: Vectors, shape: BlockShape, ending: Ending, phase: Register | None) -> None:
        self.vectors = vectors
        self.shape = shape
        self.ending = ending
        self.phase = phase

    def emit(
        self,
        sums: Callable[[list[Register]], list[Register]],
        rest: Callable[[list[Register]], list[Register]] = lambda values: values,
    ) -> None:
        """Emit the function's body; `sums` adds a part of the sum, `rest` what only the last part has."""
        writer, accumulate = self.vectors.writer, self.ending.accumulate
        totals = sums(self._start())
        if self.phase is None:
            self._finish(rest(totals), add=accumulate, last=True)
            return
        first, middle, last, after = (writer.label(stem) for stem in ("first", "middle", "last", "after"))
        writer.emit_void(f"switch {self.phase}, label %{middle} [ i64 0, label %{first} i64 2, label %{last} ]")
        for label in (first, middle, last):
            writer.begin_block(label)
            self.ending.epilogue.begin_block()
            values = rest(totals) if label == last else totals
            self._finish(values, add=accumulate or label != first, last=label == last)
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
        first = writer.compare("icmp eq", self.phase, writer.integer(0))
        return [writer.select(first, start, self.vectors.zero) for start in starts]

    def _finish(self, sums: list[Register], *, add: bool, last: bool) -> None:
        vectors = self.vectors
        for value, place in zip(sums, self._places(), strict=True):
            row, column, count = place
            address = vectors.address(self.ending.rows[row], column)
            total = vectors.writer.binary("fadd", value, vectors.load(address, count)) if add else value
            vectors.store(self.ending.epilogue.apply(total, *place) if last else total, address, count)
