"""A row of attention's scores -> what softmax has above its sum, in place, with the highest score and the sum.

Two passes: the first applies the body and finds the highest score, the second computes exp(score - highest) and adds.
"""

from collections.abc import Callable
from dataclasses import dataclass

from weft.codegen.kernels.elementwise import Point, Typed, emit_body, emit_op
from weft.codegen.kernels.reducers import REDUCERS, Reducer, joined
from weft.codegen.kernels.spans import Span, linear, mask_up_to
from weft.codegen.llvm.dtypes import HELD, dtype_constant
from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register, vector
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.expression import Instruction, View

CHAINS = 4  # vectors a round


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a row is: its scores, its number, the row's address in each input of the body, and the keys it has."""

    scores: Register
    row: Register
    bases: list[Register]
    keys: Register


# Makes the vector of a span that a reduction joins, and stores what the next pass reads.
Step = Callable[[Span], Register]


class SoftmaxRow:
    """Writes both passes over a row."""

    def __init__(self, f: FunctionWriter, kernel: AttentionKernel) -> None:
        self.f = f
        self.kernel = kernel
        self.dtype = kernel.sizes.element
        self.lanes = kernel.schedule.scores.lanes
        self.view = View(self.dtype, (1,))

    def write(self, place: RowPlace) -> tuple[Register, Register]:
        """Write the passes; gives the highest score and the sum."""
        highest = self._pass("max", place, lambda span: self._masked_score(place, span))
        wide = self.f.splat(self._subtracted(highest), self.lanes)

        def grown(span: Span) -> Register:
            less = self._op("sub", self._load(place, span), wide)
            result = self._op("exp", less)
            self._store(place, span, result)
            return result

        return highest, self._pass("sum", place, grown)

    def divisor(self, highest: Register, total: Register) -> Register:
        """Give what the row is divided by."""
        if not self.kernel.masked_gives_zeros:
            return total
        return self.f.select(self._is_masked(highest), self._number(1.0, 1), total)

    def _subtracted(self, highest: Register) -> Register:
        """Give what is subtracted from scores: -inf minus -inf would be NaN where a masked row is to give zeros."""
        if not self.kernel.masked_gives_zeros:
            return highest
        return self.f.select(self._is_masked(highest), self._number(0.0, 1), highest)

    def _is_masked(self, highest: Register) -> Register:
        return self.f.compare("fcmp oeq", highest, self._number(-float("inf"), 1))

    def _number(self, value: float, lanes: int) -> Register:
        return dtype_constant(self.dtype, value, vector("i64", lanes))

    def _op(self, op: str, *operands: Register) -> Register:
        return emit_op(self.f, op, [Typed(operand, self.dtype) for operand in operands], self.dtype)

    def _masked_score(self, place: RowPlace, span: Span) -> Register:
        f, kernel = self.f, self.kernel
        score = self._load(place, span)
        if not kernel.body and span.mask is None:
            return score
        inputs = [
            Typed(span.load(view, base, view.strides[-1]), view.dtype)
            for view, base in zip(kernel.inputs, place.bases, strict=True)
        ]

        def position(line: Instruction) -> Register:
            *_, row, column, start = (int(value) for value in line.attributes)
            return span.position(line.dtype, linear(f, (place.row,), (row,), start), column)

        values = emit_body(f, kernel.body, [Typed(score, self.dtype), *inputs], Point(self.lanes, position))
        result = values[-1].register if kernel.body else score
        if span.mask is not None:
            result = f.select(span.mask, result, self._number(-float("inf"), self.lanes))
        self._store(place, span, result)
        return result

    # The scores' rows are whole vectors long: beyond the last key lies what nobody reads.
    def _load(self, place: RowPlace, span: Span) -> Register:
        address = self.f.offset(place.scores, HELD[self.dtype].stored, span.column)
        return self.f.load(vector(HELD[self.dtype].stored, self.lanes), address)

    def _store(self, place: RowPlace, span: Span, value: Register) -> None:
        self.f.store(value, self.f.offset(place.scores, HELD[self.dtype].stored, span.column))

    def _pass(self, kind: str, place: RowPlace, step: Step) -> Register:
        """Write one way over the keys: several vectors a round, then one, then what is left of the last."""
        f, lanes, reducer = self.f, self.lanes, REDUCERS[kind]
        (nothing,) = reducer.identity(self.dtype, lanes)
        rounds, _ = f.divide(place.keys, lanes * CHAINS)
        whole, _ = f.divide(place.keys, lanes)
        with f.loop(0, rounds, carried=[nothing] * CHAINS) as loop:
            first = f.multiply(loop.index, lanes * CHAINS)
            spans = [Span(f, f.add(first, chain * lanes), lanes) for chain in range(CHAINS)]
            found = [step(span) for span in spans]
            loop.carry(*(self._joined(reducer, x, y) for x, y in zip(loop.carried, found, strict=True)))
        (partial,) = joined(f, reducer, self.dtype, [(x,) for x in loop.carried])
        with f.loop(f.multiply(rounds, CHAINS), whole, carried=[partial]) as loop:
            span = Span(f, f.multiply(loop.index, lanes), lanes)
            loop.carry(self._joined(reducer, loop.carried[0], step(span)))
        (partial,) = loop.carried
        if self.kernel.sizes.keys % lanes:
            column = f.multiply(whole, lanes)
            some = f.compare("icmp slt", column, place.keys)
            span = Span(f, column, lanes, mask_up_to(f, column, place.keys, lanes))
            before = partial
            (partial,) = f.either(some, lambda: [self._joined(reducer, before, step(span))], lambda: [before])
        (result,) = reducer.gather_lanes(f, self.dtype, (partial,))
        return result

    def _joined(self, reducer: Reducer, x: Register, y: Register) -> Register:
        (result,) = reducer.join(self.f, self.dtype, (x,), (y,))
        return result
