"""Rows of a left operand and a panel of a right operand -> one block of sums held in registers.

This is the innermost part of products and convolutions. Every step of the sum loads the panel's vectors once, and one
number per row, which it multiplies with all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.llvm.module import ATTRIBUTES, FunctionWriter, Module
from weft.codegen.llvm.register import Register
from weft.plan.kernels.gemm import ELEMENT_BITS

BYTES_AHEAD = 4096  # of a packed panel that are asked into the nearest cache; past its end comes the next one


class BlockWriter(FunctionWriter):
    """A function that only its own module calls, and that is never copied into its callers."""

    def __init__(self, module: Module, name: str, parameters: tuple[str, ...]) -> None:
        super().__init__(module, name, parameters)
        self._stack: list[str] = []

    def __str__(self) -> str:
        text = super().__str__().replace(f" {ATTRIBUTES} ", f" noinline {ATTRIBUTES} ", 1)
        text = text.replace("entry:", "\n".join(["entry:", *self._stack]), 1)
        return text.replace("define", "define internal", 1)

    def stack(self, kind: str) -> Register:
        """Reserve a place on the stack: once a call, also where this is written inside a loop."""
        name = f"%stack{len(self._stack)}"
        self._stack.append(f"  {name} = alloca {kind}")
        return Register("ptr", name)


def begin_block_function(module: Module, name: str, parameters: list[str]) -> BlockWriter:
    """Begin the function of one register block."""
    writer = BlockWriter(module, name, tuple(parameters))
    module.functions.append(writer)
    return writer


@dataclass(frozen=True)
class BlockShape:
    """A register block: rows, vectors of columns, and how many numbers its last vector has."""

    rows: int
    vectors: int
    tail: int

    def count(self, vector: int, lanes: int) -> int:
        """Count the numbers of a vector."""
        return self.tail if vector == self.vectors - 1 else lanes


@dataclass(frozen=True)
class PanelAddress:
    """Where a panel lies: elements from one step of the sum to the next, and whether its last vector is whole."""

    pointer: Register
    step: int
    whole: bool


# Loads one number of every row, repeated in all lanes, for a step of a turn of the loop over the sum.
LoadRows = Callable[[Register, int], list[Register]]


@dataclass(frozen=True)
class Turns:
    """How a loop walks the sum: how many turns, the steps of each, and the separate sums they alternate between."""

    count: Register
    steps: int = 1
    chains: int = 1


class RegisterBlock:
    """Emits the sums of one block; sums are listed row by row, one per vector."""

    def __init__(self, vectors: Vectors, shape: BlockShape) -> None:
        self.vectors = vectors
        self.shape = shape

    def loop(self, sums: list[Register], turns: Turns, panel: PanelAddress, rows: LoadRows) -> list[Register]:
        """Add the products of all turns to the sums."""
        writer, width = self.vectors.writer, len(sums)
        separate = [*sums, *[self.vectors.zero] * (width * (turns.chains - 1))]
        # The place in the panel is carried along: LLVM does not find that by itself (compiler.py).
        with writer.loop(0, turns.count, carried=[*separate, panel.pointer]) as loop:
            *carried, base = loop.carried
            for step in range(turns.steps):
                first = (step % turns.chains) * width
                added = self.step(carried[first : first + width], base, (panel, step), rows(loop.index, step))
                carried[first : first + width] = added
            loop.carry(*carried, self.vectors.address(base, panel.step * turns.steps))
        *separate, _ = loop.carried
        while len(separate) > width:
            half = len(separate) // width // 2 * width
            pairs = zip(separate[:half], separate[-half:], strict=True)
            separate = [*(writer.binary("fadd", x, y) for x, y in pairs), *separate[half:-half]]
        return separate

    def step(
        self, sums: list[Register], base: Register, place: tuple[PanelAddress, int], rows: list[Register]
    ) -> list[Register]:
        """Add the products of one step of a panel, counted from a base address in it."""
        lanes, shape = self.vectors.lanes, self.shape
        panel, step = place
        columns = [
            self.vectors.load(
                self.vectors.address(base, step * panel.step + vector * lanes),
                None if panel.whole else shape.count(vector, lanes),
            )
            for vector in range(shape.vectors)
        ]
        if panel.whole:
            ahead = -(-BYTES_AHEAD * 8 // (panel.step * ELEMENT_BITS[self.vectors.dtype]))
            for vector in range(shape.vectors):
                at = self.vectors.address(base, (step + ahead) * panel.step + vector * lanes)
                self.vectors.writer.prefetch(at)
        pairs = [(row, column) for row in rows for column in columns]
        return [self.vectors.writer.fma(*pair, total) for pair, total in zip(pairs, sums, strict=True)]
