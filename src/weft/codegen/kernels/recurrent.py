"""Emit a recurrent layer: for rows of the batch one step after the other, and in each the units of a state in vectors.

Contract of the emitted function, which computes the rows of tiles [begin, end):
void name(states*, last*, given*, weights*, first*, [cells* or bias*], [steps*], begin, end, ends...)

The states of a step are where the next one reads them. The cells of an LSTM are kept where the last ones belong. Rows
of the batch are computed several at once, so that weights come from the cache less often: as many as there is room for
in registers, and of what is left in the end half as many, and so on. Each is computed as it is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.codegen.kernels.elementwise import Typed, emit_op
from weft.codegen.kernels.ends import Parameters, limit, parameter_kinds
from weft.codegen.kernels.vectors import Vectors
from weft.codegen.llvm.module import FunctionWriter, Module, Register
from weft.ir.recurrent import LEAST_STATE, OPERANDS
from weft.plan.kernels.recurrent import RecurrentKernel

StateOf = Callable[[Register], Register]  # where the state of a row is before a step


def emit_recurrent(module: Module, kernel: RecurrentKernel) -> None:
    """Write the function of a kernel."""
    # SAFETY: nothing is claimed of the pointers; the plan gives each buffer bytes of its own.
    pointers = ["ptr"] * (2 + OPERANDS[kernel.cell] + kernel.limited)
    f = module.function(kernel.name, parameter_kinds(kernel, pointers))
    if kernel.tile_count:
        RecurrentEmitter(f, kernel).emit()


class RecurrentEmitter:
    """Writes the loops over rows of the batch, steps and units."""

    def __init__(self, f: FunctionWriter, kernel: RecurrentKernel) -> None:
        self.f = f
        self.kernel = kernel
        self.vectors = Vectors(f, "f32", kernel.lanes)
        given = Parameters.of(f, kernel)
        self.out, self.last, self.given, self.weights, self.first, *others = given.pointers
        self.steps = limit(f, others.pop(), kernel.steps) if kernel.limited else f.integer(kernel.steps)
        self.other = others[0] if others else None  # first cells, or a bias
        self.tiles = given.begin, given.end
        rows = f.integer(kernel.batch)
        self.rows = f.minimum(given.ends[0], rows) if 0 in given.ends else rows

    def emit(self) -> None:
        """Write the loop over rows, most of them several at once, and what is done of those that are left."""
        f, count = self.f, self.kernel.together
        begin, end = self.tiles
        rows = f.maximum(f.binary("sub", f.minimum(end, self.rows), begin), f.integer(0))
        groups, left = f.divide(rows, count)
        with f.loop(0, groups) as group:
            self._rows(f.add(begin, f.multiply(group.index, count)), count)
        first = f.add(begin, f.multiply(groups, count))
        while count > 1:
            count //= 2
            is_there = f.compare("icmp ne", f.binary("and", left, f.integer(count)), f.integer(0))
            with f.only_if(is_there):
                self._rows(first, count)
            first = f.select(is_there, f.add(first, count), first)

    def _rows(self, first: Register, count: int) -> None:
        """Write all steps of some rows."""
        f, kernel, vectors = self.f, self.kernel, self.vectors
        rows = [f.add(first, row) for row in range(count)]
        begin = self.other if kernel.cell == "lstm" else self.first
        assert begin is not None
        with f.loop(0, kernel.units) as units:
            for row in rows:
                value = vectors.load(self._state(begin, row, units.index))
                vectors.store(value, self._state(self.last, row, units.index))
        with f.loop(0, self.steps) as steps:
            step, before = steps.index, f.add(steps.index, -1)
            if kernel.reverse:
                step = f.binary("sub", f.add(self.steps, -1), steps.index)
                before = f.add(step, 1)
            is_first = f.compare("icmp eq", steps.index, f.integer(0))

            def state(row: Register, before: Register = before, is_first: Register = is_first) -> Register:
                first = vectors.moved(self.first, (row, kernel.size))
                return f.select(
                    is_first, first, vectors.moved(self.out, (before, kernel.out.step), (row, kernel.out.row))
                )

            with f.loop(0, kernel.units) as units:
                self._units(rows, state, step, units.index)

    def _state(self, base: Register, row: Register, unit: Register) -> Register:
        return self.vectors.moved(base, (row, self.kernel.size), (unit, self.kernel.lanes))

    def _units(self, rows: Sequence[Register], state: StateOf, step: Register, unit: Register) -> None:
        """Write a vector of units of some rows at one step."""
        f, kernel, vectors = self.f, self.kernel, self.vectors
        starts = [value for row in rows for value in self._starts(self._given(row, step, unit), unit)]
        weights = vectors.moved(self.weights, (unit, kernel.size * kernel.gates * kernel.lanes))
        states = list(map(state, rows))
        with f.loop(0, kernel.size, LEAST_STATE, carried=starts) as inner:
            totals = list(inner.carried)
            for step_on in range(LEAST_STATE):
                index = f.add(inner.index, step_on)
                line = vectors.moved(weights, (index, kernel.gates * kernel.lanes))
                numbers = [vectors.load_splat(vectors.moved(state, (index, 1))) for state in states]
                for gate in range(kernel.gates):
                    weight = vectors.load(vectors.address(line, gate * kernel.lanes))
                    for at, number in zip(range(gate, len(totals), kernel.gates), numbers, strict=True):
                        totals[at] = f.fma(number, weight, totals[at])
            inner.carry(*totals)
        # What follows is long code: it is there once for all rows, which find their sums in memory.
        sums = f.scratch("float", len(starts) * kernel.lanes)
        for place, total in enumerate(inner.carried):
            vectors.store(total, vectors.address(sums, place * kernel.lanes))
        with f.loop(0, len(rows)) as each:
            row, own = f.add(rows[0], each.index), vectors.moved(sums, (each.index, kernel.gates * kernel.lanes))
            found = [vectors.load(vectors.address(own, gate * kernel.lanes)) for gate in range(kernel.gates)]
            before = vectors.load(vectors.moved(state(row), (unit, kernel.lanes)))
            hidden = self._bent(found, self._given(row, step, unit), before, self._state(self.last, row, unit))
            moves = ((step, kernel.out.step), (row, kernel.out.row), (unit, kernel.lanes))
            vectors.store(hidden, vectors.moved(self.out, *moves))

    def _given(self, row: Register, step: Register, unit: Register) -> list[Register]:
        """What inputs give to the gates of a vector of units."""
        kernel, vectors = self.kernel, self.vectors
        place = ((step, kernel.given.step), (row, kernel.given.row), (unit, kernel.lanes))
        base = vectors.moved(self.given, *place)
        return [vectors.load(vectors.address(base, gate * kernel.size)) for gate in range(kernel.gates)]

    def _starts(self, given: Sequence[Register], unit: Register) -> list[Register]:
        """What the products with the state are added to: of the new state of a GRU the bias that is reset with it."""
        if self.kernel.cell != "gru":
            return [*given]
        assert self.other is not None
        return [*given[:2], self.vectors.load(self.vectors.moved(self.other, (unit, self.kernel.lanes)))]

    def _bent(
        self, totals: Sequence[Register], given: Sequence[Register], before: Register, last: Register
    ) -> Register:
        """The new state of a row, from what goes into its gates; `last` is where the last one, or cell, is kept."""
        if self.kernel.cell == "lstm":
            cells = self.vectors.load(last)
            entry, forget, output = (self._op("sigmoid", totals[gate]) for gate in (0, 1, 3))
            cells = self.f.fma(forget, cells, self._times(entry, self._op("tanh", totals[2])))
            self.vectors.store(cells, last)
            return self._times(output, self._op("tanh", cells))
        if self.kernel.cell == "gru":
            reset, update = (self._op("sigmoid", totals[gate]) for gate in (0, 1))
            new = self._op("tanh", self.f.fma(reset, totals[2], given[2]))
            hidden = self.f.fma(self.f.binary("fsub", before, new), update, new)
        else:
            hidden = self._op(self.kernel.cell.removeprefix("rnn_"), totals[0])
        self.vectors.store(hidden, last)
        return hidden

    def _times(self, x: Register, y: Register) -> Register:
        return self.f.binary("fmul", x, y)

    def _op(self, op: str, x: Register) -> Register:
        return emit_op(self.f, op, [Typed(x, "f32")], "f32")
