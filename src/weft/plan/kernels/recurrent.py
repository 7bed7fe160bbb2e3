"""Define the kernel that runs a recurrent layer, and choose how it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.ir.recurrent import GATES, LEAST_STATE
from weft.plan.kernels.expression import CYCLES_OF_OP
from weft.plan.kernels.gemm import vector_registers
from weft.plan.kernels.images import LIMIT_BOX
from weft.plan.kernels.kernel import Boxes, ByteBox, Kernel, box
from weft.target import Target

ELEMENT_BYTES = 4
SUMS_SHARE = (5, 8)  # of the registers: the rest holds weights and numbers of states
MOST_TOGETHER = 8
ACTIVATIONS = {"lstm": ("sigmoid",) * 3 + ("tanh",) * 2, "gru": ("sigmoid",) * 2 + ("tanh",), "rnn_tanh": ("tanh",)}


@dataclass(frozen=True, slots=True)
class StepsOfRows:
    """How many elements an argument steps from step to step, and from row to row of the batch; a row has no gaps."""

    step: int
    row: int


@dataclass(frozen=True, slots=True)
class RecurrentKernel(Kernel):
    """The states of a layer; arguments are states, the last state, what inputs give, weights, the first state.

    Then of an LSTM the first cell state, of a GRU the bias inside of its reset gate; and with `limited` a number of
    steps, an i32 in memory: what is beyond is no step. All are f32. Weights are packed: for each vector of units all
    rows of the state, and of each row the vectors of all gates. Tiles are rows of the batch, of which a lane does up to
    `together` at once, a power of two; `ends` may be among rows (0).
    """

    name: str
    cell: str
    steps: int
    batch: int
    size: int
    lanes: int
    reverse: bool
    out: StepsOfRows
    given: StepsOfRows
    limited: bool
    together: int
    ends: tuple[int, ...] = ()

    @property
    def gates(self) -> int:
        """Count the gates."""
        return GATES[self.cell]

    @property
    def units(self) -> int:
        """Count the vectors of a state."""
        return self.size // self.lanes

    @property
    def tile_count(self) -> int:
        """Count the tiles."""
        return self.batch if self.size else 0

    @property
    def tile_sizes(self) -> None:
        """All tiles are alike."""

    @property
    def cycles(self) -> float:
        """Estimate the cycles to multiply states with weights, and to bend what comes out."""
        bent = sum(CYCLES_OF_OP[op] for op in ACTIVATIONS.get(self.cell, ()))
        return self.steps * self.batch * self.units * (self.gates * self.size + bent)

    @property
    def summary(self) -> str:
        """Say the cells and how many steps they run."""
        return f"{self.cell} of {self.size}, {self.batch} rows of {self.steps} steps"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give the rows of the batch that tiles are of, at all steps; all weights and biases."""

        def rows(steps: StepsOfRows, width: int) -> ByteBox | None:
            sides = [(steps.step, self.steps), (steps.row, end - begin), (1, width)]
            return box(begin * steps.row, sides, ELEMENT_BYTES)

        state = box(begin * self.size, [(1, (end - begin) * self.size)], ELEMENT_BYTES)
        others: dict[str, tuple[ByteBox | None, ...]] = {"lstm": (state,), "gru": (None,)}
        limit = (LIMIT_BOX,) * self.limited
        given = rows(self.given, self.gates * self.size)
        return (rows(self.out, self.size), state, given, None, state, *others.get(self.cell, ()), *limit)

    def renamed(self, name: str) -> RecurrentKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> None:
        """Never: a state is read by all units of the next step."""


def rows_together(cell: str, target: Target) -> int:
    """Give how many rows are computed at once: the more, the fewer times weights come from the cache."""
    share, of = SUMS_SHARE
    most = min(vector_registers(target) * share // of // GATES[cell], MOST_TOGETHER)
    return 1 << (most.bit_length() - 1)


def lanes_of_states(size: int, target: Target) -> int:
    """Give how many units of a state a vector has; 0 where a state is no whole number of vectors."""
    lanes = target.lanes(ELEMENT_BYTES * 8)
    while lanes >= LEAST_STATE and size % lanes:
        lanes //= 2
    return lanes if lanes >= LEAST_STATE else 0
