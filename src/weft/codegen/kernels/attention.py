"""Emit attention, softmax(query x key) x value, a block of query rows at a time.

Contract of the emitted function: void name(out*, [highest*, total*,] query*, key*, value*, inputs*..., begin, end). It
computes tiles [begin, end); what it writes overlaps nothing it reads. Nothing outside the tensors is read or written. A
call takes `stack_bytes` of stack.

A tile is a block of query rows of one head. Its scores lie on the stack, so no array of rows x keys is in memory:

    s    = body(query x key)            a matmul; masks, biases and factors are the body
    e    = exp(s - max s)               two passes over each row: `SoftmaxRows`
    out  = (e x value) / sum e          a matmul, divided after it

Whole rows, no running maximum: a block of 32 rows and 2048 keys is 256 KB, which the second cache holds, and sums are
never scaled again. Where the mask is causal, keys behind the last row of a block are skipped in steps of `key_block`:

                  keys ->                    what is skipped is 0 x value, and that is not 0 where a value is infinite
      rows  #########.......                 or no number: `all_finite` looks at the values of a head once, and nothing
       |    ############....                 is skipped if one of them is not finite
       v    ################
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.codegen.kernels.elementwise import BodyContext, Typed, emit_body, emit_op
from weft.codegen.kernels.ends import Parameters, all_below, parameter_kinds
from weft.codegen.kernels.gemm import emit_gemm
from weft.codegen.kernels.reduce import REDUCERS, Reducer, joined
from weft.codegen.kernels.tiles import choose_size, first_of
from weft.codegen.kernels.vectors import ColumnSpan, Vectors, linear, mask_up_to, row_coordinates
from weft.codegen.llvm.dtypes import HELD, dtype_constant
from weft.codegen.llvm.module import FunctionWriter, Module, Register, constant, vector
from weft.codegen.vecmath.core import format_of, like
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.gemm import GemmKernel, Matrix, panels

CHAINS = 4  # vectors a round of a pass over a row


def emit_attention(module: Module, kernel: AttentionKernel) -> None:
    """Emit the functions of an attention into a module; the one to call has the kernel's name."""
    # SAFETY: nothing is claimed of the pointers; the plan gives each buffer bytes of its own.
    count = 4 + 2 * kernel.keeps_numbers + len(kernel.inputs)
    writer = module.function(kernel.name, parameter_kinds(kernel, ["ptr"] * count))
    if kernel.tile_count:
        AttentionEmitter(writer, kernel).emit()


def call_gemm(
    f: FunctionWriter,
    gemm: GemmKernel,
    pointers: Sequence[Register],
    tiles: Register | None,
    ends: Sequence[Register] = (),
) -> None:
    """Call a matmul for some of its tiles, or all."""
    end = tiles or f.integer(gemm.tile_count)
    f.emit_void(f"call void @{gemm.name}({', '.join(map(str, (*pointers, f.integer(0), end, *ends)))})")


def keys_seen(f: FunctionWriter, last: Register, sizes: tuple[int, int], finite: Register | None) -> Register:
    """Give how many of the keys the rows before `last` see, in whole blocks; all of them if a number is not finite.

    `sizes` are the keys and those of a block.
    """
    count, step = sizes
    keys = f.integer(count)
    if finite is None:
        return keys
    whole, _ = f.divide(f.add(last, step - 1), step)
    return f.select(finite, f.minimum(f.multiply(whole, step), keys), keys)


def panels_seen(f: FunctionWriter, seen: Register, gemm: GemmKernel, *, some: bool) -> Register:
    """Give how many panels of a matmul's columns hold the keys that are seen; of all, where not only some are."""
    found = panels(gemm.columns, gemm.schedule)
    if not some:
        return f.integer(found.count)
    width = found.sizes[-1] * gemm.schedule.lanes
    count, _ = f.divide(f.add(seen, width - 1), width)
    return f.minimum(count, f.integer(found.count))


def clear_rows(vectors: Vectors, base: Register, stride: int, sizes: tuple[Register, int]) -> None:
    """Make so many rows of so many columns zero."""
    rows, columns = sizes
    with vectors.writer.loop(0, rows) as loop:
        row = vectors.moved(base, (loop.index, stride))
        for column in range(0, columns, vectors.lanes):
            vectors.store(vectors.zero, vectors.address(row, column), min(vectors.lanes, columns - column))


def sum_times_zero(vectors: Vectors, base: Register, stride: int, sizes: tuple[Register | int, int]) -> Register:
    """Add up all numbers of a matrix times 0: no number where one of them is not finite."""
    f, (rows, columns) = vectors.writer, sizes
    starts = range(0, columns, vectors.lanes)
    with f.loop(0, rows, carried=[vectors.zero for _ in starts]) as loop:
        row = vectors.moved(base, (loop.index, stride))
        loaded = [vectors.load(vectors.address(row, at), min(vectors.lanes, columns - at)) for at in starts]
        loop.carry(*(f.fma(x, vectors.zero, total) for x, total in zip(loaded, loop.carried, strict=True)))
    return functools.reduce(lambda x, y: f.binary("fadd", x, y), loop.carried)


def all_finite(f: FunctionWriter, total: Register) -> Register:
    """Tell from sums of `sum_times_zero` whether all numbers are finite."""
    return f.binary("xor", f.any_lane(f.compare("fcmp uno", total, total)), Register("i1", "true"))


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A row of a block: its number in the matrix, and its address in each input of the body."""

    row: Register
    bases: list[Register]

    def apply(
        self, span: ColumnSpan, body: Sequence[Instruction], scores: list[Typed], views: Sequence[View]
    ) -> list[Typed]:
        """Apply a body to some of the row's scores and to its inputs there; gives all its values."""
        inputs = [
            Typed(span.load(view, base, view.strides[-1]), view.dtype)
            for view, base in zip(views, self.bases, strict=True)
        ]

        def position(line: Instruction) -> Register:
            *_, row, column, start = (int(value) for value in line.attributes)
            return span.position(line.dtype, linear(span.f, (self.row,), (row,), start), column)

        return emit_body(span.f, body, [*scores, *inputs], BodyContext(span.lanes, position))


def row_bases(
    f: FunctionWriter, pointers: Sequence[Register], views: Sequence[View], at: tuple[Register, ...]
) -> list[Register]:
    """Give where a row begins in each input of a body: `at` are its matrix's coordinates and its number."""
    return [
        f.offset(pointer, HELD[view.dtype].stored, linear(f, at, view.strides[:-1], view.offset))
        for pointer, view in zip(pointers, views, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class BlockOfRows:
    """Which block of a matrix it is, the matrix's number and coordinates, and the block's first row."""

    matrix: Register
    block: Register
    at: tuple[Register, ...]
    first: Register


class AttentionEmitter:
    """Emits the loop over tiles."""

    def __init__(self, f: FunctionWriter, kernel: AttentionKernel) -> None:
        self.f = f
        self.kernel = kernel
        sizes, schedule = kernel.sizes, kernel.schedule
        self.number = Vectors(f, sizes.element, 1)
        self.vectors = Vectors(f, sizes.element, schedule.values.lanes)
        given = Parameters.of(f, kernel)
        self.begin, self.end, self.ends = given.begin, given.end, given.ends
        self.out, *rest = given.pointers
        self.keys = self.ends.get(len(sizes.batch) + 1)
        self.numbers = rest[:2] if kernel.keeps_numbers else []
        self.query, self.key, self.value, *self.inputs = rest[len(self.numbers) :]
        self.blocks = kernel.row_blocks
        self.scratch = f.scratch(self.number.element, self.blocks.size * kernel.score_stride)
        self.inverses = f.scratch(self.number.element, self.blocks.size)
        self.softmax = SoftmaxRows(f, kernel)
        self.value_row = kernel.value.row if isinstance(kernel.value, Matrix) else 0
        step = schedule.key_block or sizes.keys
        self.key_step, self.keys_left = step, 0 if kernel.keys_end else sizes.keys % step
        self.scores = [self._emitted(kernel.scores(rows)) for rows in self.blocks.sizes]
        self.values = [self._emitted(kernel.values(rows, step)) for rows in self.blocks.sizes]
        self.last_values = [
            self._emitted(kernel.values(rows, self.keys_left)) for rows in self.blocks.sizes if self.keys_left
        ]

    def _emitted(self, gemm: GemmKernel) -> GemmKernel:
        emit_gemm(self.f.module, gemm)
        return gemm

    def emit(self) -> None:
        """Emit the loop; where keys are skipped, it carries whether the values of the matrix before are finite."""
        f, kernel, blocks = self.f, self.kernel, self.blocks
        key_block = kernel.schedule.key_block
        before = [f.integer(-1), Register("i1", "true")] if key_block else []
        with f.loop(self.begin, self.end, carried=before) as tiles:
            matrix, block = f.divide(tiles.index, blocks.count)
            at = row_coordinates(f, matrix, kernel.sizes.batch)
            first = first_of(f, blocks, block)
            place = BlockOfRows(matrix, block, at, first)
            inside = all_below(f, ((x, self.ends[n]) for n, x in enumerate((*at, first)) if n in self.ends))
            if inside is None:
                tiles.carry(*self._block(place, tiles.carried))
            elif before:
                tiles.carry(*f.either(inside, lambda: self._block(place, tiles.carried), lambda: tiles.carried))
            else:
                with f.only_if(inside):
                    self._block(place, ())

    def _block(self, place: BlockOfRows, before: tuple[Register, ...]) -> tuple[Register, ...]:
        """Compute a block; gives its matrix and whether the values of that are finite, where keys are skipped."""
        f, kernel, blocks, key_block = self.f, self.kernel, self.blocks, self.kernel.schedule.key_block
        matrix, block, at, first = place.matrix, place.block, place.at, place.first
        rows = f.binary("sub", first_of(f, blocks, f.add(block, 1)), first)
        if kernel.rows_end:
            rows = f.minimum(rows, f.binary("sub", self.ends[len(at)], first))
        value = self._at(self.value, kernel.value.batch, at)
        facts = self._finite_values(matrix, value, before) if before else ()
        last = f.binary("add", first, rows)
        seen = keys_seen(f, last, (kernel.sizes.keys, key_block), facts[1] if facts else None)
        if self.keys is not None:
            seen = f.minimum(seen, self.keys)
        query = self._at(self.query, (*kernel.query.batch, kernel.query.row), (*at, first))
        key = self._at(self.key, kernel.key.batch, at)
        tiles = panels_seen(f, seen, self.scores[0], some=key_block > 0 or kernel.keys_end)
        self._call(block, self.scores, [self.scratch, query, key], tiles, (rows,) * kernel.rows_end)
        self._soften(matrix, at, (first, rows, seen))
        out = self._at(self.out, (*kernel.out.batch, kernel.out.row), (*at, first))
        if key_block:
            self._add_values(block, out, value, (rows, seen))
        else:
            ends = (*(rows,) * kernel.rows_end, *(seen,) * kernel.keys_end)
            self._call(block, self.values, [out, self.scratch, value, self.inverses], None, ends)
        return facts

    def _at(self, pointer: Register, strides: tuple[int, ...], coordinates: tuple[Register, ...]) -> Register:
        return self.number.address(pointer, linear(self.f, coordinates, strides, 0))

    def _finite_values(
        self, matrix: Register, value: Register, before: tuple[Register, ...]
    ) -> tuple[Register, Register]:
        """Give the matrix and whether its values are finite; what the tile before has found is not looked up again."""
        f, sizes = self.f, self.kernel.sizes

        def look() -> list[Register]:
            total = sum_times_zero(self.vectors, value, self.value_row, (self.keys or sizes.keys, sizes.columns))
            return [all_finite(f, total)]

        same = f.compare("icmp eq", matrix, before[0])
        (finite,) = f.either(same, lambda: [before[1]], look)
        return matrix, finite

    def _call(
        self,
        block: Register,
        gemms: list[GemmKernel],
        pointers: list[Register],
        tiles: Register | None = None,
        ends: Sequence[Register] = (),
    ) -> None:
        """Call the matmul of a block's size."""
        choose_size(self.f, block, self.blocks, lambda place: call_gemm(self.f, gemms[place], pointers, tiles, ends))

    def _soften(self, matrix: Register, at: tuple[Register, ...], block: tuple[Register, Register, Register]) -> None:
        """Make the rows of scores what softmax has above its sum, and keep one over that sum."""
        f, kernel = self.f, self.kernel
        first, rows, seen = block
        with f.loop(0, rows) as loop:
            row = f.binary("add", first, loop.index)
            bases = row_bases(f, self.inputs, kernel.inputs, (*at, row))
            scores = self.number.moved(self.scratch, (loop.index, kernel.score_stride))
            highest, total = self.softmax.write(ScoreRow(row, bases), scores, seen)
            one = constant(self.number.element, 1.0)
            f.store(f.binary("fdiv", one, self.softmax.divisor(highest, total)), self._row(self.inverses, loop.index))
            number = f.binary("add", f.multiply(matrix, kernel.sizes.rows), row)
            for pointer, value in zip(self.numbers, (highest, total), strict=False):
                f.store(value, self._row(pointer, number))

    def _row(self, pointer: Register, row: Register) -> Register:
        return self.number.address(pointer, row)

    def _add_values(self, block: Register, out: Register, value: Register, seen: tuple[Register, Register]) -> None:
        """Add up the matmuls with blocks of values, in the output, and divide by the sums there."""
        f, kernel, step = self.f, self.kernel, self.key_step
        rows, keys = seen
        clear_rows(self.vectors, out, kernel.out.row, (rows, kernel.sizes.columns))
        given = (rows,) * kernel.rows_end
        whole, _ = f.divide(f.add(keys, (step - 1) * kernel.keys_end), step)
        with f.loop(0, whole) as loop:
            scores = self.number.moved(self.scratch, (loop.index, step))
            left = f.minimum(f.binary("sub", keys, f.multiply(loop.index, step)), f.integer(step))
            ends = (*given, *(left,) * kernel.keys_end)
            self._call(block, self.values, [out, scores, self._moved_value(value, loop.index)], None, ends)
        if self.keys_left:
            with f.only_if(f.compare("icmp eq", keys, f.integer(kernel.sizes.keys))):
                scores = self.number.moved(self.scratch, (whole, step))
                self._call(block, self.last_values, [out, scores, self._moved_value(value, whole)], None, given)
        self._divide(out, rows)

    def _moved_value(self, value: Register, block: Register) -> Register:
        return self.number.moved(value, (block, self.key_step * self.value_row))

    def _divide(self, out: Register, rows: Register) -> None:
        """Multiply the rows of a block's output by one over their sums."""
        f, kernel, vectors = self.f, self.kernel, self.vectors
        with f.loop(0, rows) as loop:
            row = self.number.moved(out, (loop.index, kernel.out.row))
            inverse = vectors.load_splat(self._row(self.inverses, loop.index))
            for column in range(0, kernel.sizes.columns, vectors.lanes):
                count, address = min(vectors.lanes, kernel.sizes.columns - column), vectors.address(row, column)
                vectors.store(f.binary("fmul", vectors.load(address, count), inverse), address, count)


# Makes the vector of a span that a reduction joins, and stores what the next pass reads.
SpanStep = Callable[[ColumnSpan], Register]


class SoftmaxRows:
    """Writes both passes over a row of scores, in place: the body and the highest score; exp(score - highest), added.

    exp of what is surely 0 is not computed (vecmath): every vector with a masked score has one. Beside the highest
    score's 1, what would be less than a normal number is 0, as in PyTorch's fused attention: a mask of -100 makes all
    of those it hides such numbers, and each product of one takes a processor a hundred cycles.
    """

    def __init__(self, f: FunctionWriter, kernel: AttentionKernel) -> None:
        self.f = f
        self.kernel = kernel
        self.dtype = kernel.sizes.element
        self.lanes = kernel.schedule.scores.lanes

    def write(self, row: ScoreRow, scores: Register, keys: Register) -> tuple[Register, Register]:
        """Write the passes over so many keys; gives the highest score and the sum."""
        highest = self._pass("max", keys, lambda span: self._masked_score(row, scores, span))
        wide = self.f.splat(self._subtracted(highest), self.lanes)

        def exponential(span: ColumnSpan) -> Register:
            result = self._op("exp", self._normal_only(self._op("sub", self._load(scores, span), wide)))
            self._store(scores, span, result)
            return result

        return highest, self._pass("sum", keys, exponential)

    def _normal_only(self, distance: Register) -> Register:
        """Send what is so far below the highest score that its exp is no normal number to -inf."""
        lowest = like(distance, (1 - format_of(distance).bias) * math.log(2.0))
        far = self.f.compare("fcmp olt", distance, lowest)
        return self.f.select(far, self._number(-float("inf"), self.lanes), distance)

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

    def _masked_score(self, row: ScoreRow, scores: Register, span: ColumnSpan) -> Register:
        f, kernel = self.f, self.kernel
        score = self._load(scores, span)
        if not kernel.body and span.mask is None:
            return score
        values = row.apply(span, kernel.body, [Typed(score, self.dtype)], kernel.inputs)
        result = values[-1].register if kernel.body else score
        if span.mask is not None:
            result = f.select(span.mask, result, self._number(-float("inf"), self.lanes))
        self._store(scores, span, result)
        return result

    # SAFETY: rows of scores on the stack are whole vectors long (`score_stride`): beyond the last key lies what nobody
    # reads.
    def _load(self, scores: Register, span: ColumnSpan) -> Register:
        address = self.f.offset(scores, HELD[self.dtype].stored, span.column)
        return self.f.load(vector(HELD[self.dtype].stored, self.lanes), address)

    def _store(self, scores: Register, span: ColumnSpan, value: Register) -> None:
        self.f.store(value, self.f.offset(scores, HELD[self.dtype].stored, span.column))

    def _pass(self, kind: str, keys: Register, step: SpanStep) -> Register:
        """Write one way over the keys: several vectors a round, then one, then what is left of the last."""
        f, lanes, reducer = self.f, self.lanes, REDUCERS[kind]
        (nothing,) = reducer.identity(self.dtype, lanes)
        rounds, _ = f.divide(keys, lanes * CHAINS)
        whole, _ = f.divide(keys, lanes)
        with f.loop(0, rounds, carried=[nothing] * CHAINS) as loop:
            first = f.multiply(loop.index, lanes * CHAINS)
            spans = [ColumnSpan(f, f.add(first, chain * lanes), lanes) for chain in range(CHAINS)]
            found = [step(span) for span in spans]
            loop.carry(*(self._joined(reducer, x, y) for x, y in zip(loop.carried, found, strict=True)))
        (partial,) = joined(f, reducer, self.dtype, [(x,) for x in loop.carried])
        with f.loop(f.multiply(rounds, CHAINS), whole, carried=[partial]) as loop:
            span = ColumnSpan(f, f.multiply(loop.index, lanes), lanes)
            loop.carry(self._joined(reducer, loop.carried[0], step(span)))
        (partial,) = loop.carried
        if self.kernel.sizes.keys % lanes or self.kernel.keys_end:
            column = f.multiply(whole, lanes)
            some = f.compare("icmp slt", column, keys)
            span = ColumnSpan(f, column, lanes, mask_up_to(f, column, keys, lanes))
            before = partial
            (partial,) = f.either(some, lambda: [self._joined(reducer, before, step(span))], lambda: [before])
        (result,) = reducer.gather_lanes(f, self.dtype, (partial,))
        return result

    def _joined(self, reducer: Reducer, x: Register, y: Register) -> Register:
        (result,) = reducer.join(self.f, self.dtype, (x,), (y,))
        return result
