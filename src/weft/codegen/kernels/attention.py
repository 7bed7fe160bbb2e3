"""A row of attention's scores -> what softmax has above its sum, in place, with the highest score and the sum.

Two passes: the first applies the body and finds the highest score, the second computes exp(score - highest) and adds.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from weft.codegen.kernels.elementwise import Point, Typed, emit_body, emit_op
from weft.codegen.kernels.gemm import emit_gemm
from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.kernels.reducers import REDUCERS, Reducer, joined
from weft.codegen.kernels.spans import Span, linear, mask_up_to, row_coordinates
from weft.codegen.kernels.tiles import choose, first_of
from weft.codegen.llvm.dtypes import HELD, dtype_constant
from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register, constant, vector
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.blocks import Blocks
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.gemm import GemmKernel, Matrix, panels

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


def emit_attention(module: Module, kernel: AttentionKernel) -> None:
    """Emit the functions of an attention into a module; the one to call has the kernel's name."""
    count = 4 + 2 * kernel.keeps_numbers + len(kernel.inputs)
    writer = module.function(kernel.name, [*["ptr"] * count, "i64", "i64"])
    if kernel.tile_count:
        AttentionEmitter(writer, kernel).emit()


class AttentionEmitter:
    """Emits the loop over tiles."""

    def __init__(self, f: FunctionWriter, kernel: AttentionKernel) -> None:
        self.f = f
        self.kernel = kernel
        sizes, schedule = kernel.sizes, kernel.schedule
        self.number = Vectors(f, sizes.element, 1)
        self.out, *rest, self.begin, self.end = f.parameters
        self.numbers = rest[:2] if kernel.keeps_numbers else []
        self.query, self.key, self.value, *self.inputs = rest[len(self.numbers) :]
        self.blocks = kernel.row_blocks
        self.scratch = f.scratch(self.number.element, self.blocks.size * kernel.score_stride)
        self.inverses = f.scratch(self.number.element, self.blocks.size)
        self.softmax = SoftmaxRow(f, kernel)
        self.value_row = kernel.value.row if isinstance(kernel.value, Matrix) else 0
        step = schedule.key_block or sizes.keys
        self.key_step, self.keys_left = step, sizes.keys % step
        self.scores = [self._product(kernel.scores(rows)) for rows in self.blocks.sizes]
        self.values = [self._product(kernel.values(rows, step)) for rows in self.blocks.sizes]
        self.last_values = [
            self._product(kernel.values(rows, self.keys_left)) for rows in self.blocks.sizes if self.keys_left
        ]

    def _product(self, product: GemmKernel) -> GemmKernel:
        emit_gemm(self.f.module, product)
        return product

    def emit(self) -> None:
        """Emit the loop."""
        f, kernel, blocks = self.f, self.kernel, self.blocks
        before = [f.integer(-1), Register("i1", "true")] if kernel.schedule.key_block else []
        with f.loop(self.begin, self.end, carried=before) as tiles:
            matrix, block = f.divide(tiles.index, blocks.count)
            at = row_coordinates(f, matrix, kernel.sizes.batch)
            first = first_of(f, blocks, block)
            rows = f.binary("sub", first_of(f, blocks, f.add(block, 1)), first)
            value = self._at(self.value, kernel.value.batch, at)
            known = self._known_values(matrix, value, tiles.carried) if before else ()
            seen = self._keys_seen(f.binary("add", first, rows), known)
            tiles.carry(*known)
            query = self._at(self.query, (*kernel.query.batch, kernel.query.row), (*at, first))
            key = self._at(self.key, kernel.key.batch, at)
            self._each_size(block, self.scores, [self.scratch, query, key], self._panels_seen(seen))
            self._soften(matrix, at, (first, rows, seen))
            out = self._at(self.out, (*kernel.out.batch, kernel.out.row), (*at, first))
            if kernel.schedule.key_block:
                self._add_values(block, out, value, (rows, seen))
            else:
                self._each_size(block, self.values, [out, self.scratch, value, self.inverses])

    def _at(self, pointer: Register, strides: tuple[int, ...], coordinates: tuple[Register, ...]) -> Register:
        return self.number.address(pointer, linear(self.f, coordinates, strides, 0))

    def _known_values(
        self, matrix: Register, value: Register, before: tuple[Register, ...]
    ) -> tuple[Register, Register]:
        """Give the matrix and whether its values are finite; what is known from the tile before is not looked up."""
        same = self.f.compare("icmp eq", matrix, before[0])
        (finite,) = self.f.either(same, lambda: [before[1]], lambda: [self._are_finite(value)])
        return matrix, finite

    def _keys_seen(self, last: Register, known: tuple[Register, ...]) -> Register:
        """Give how many keys the rows before `last` see; all if a value is not finite, since times 0 it is not 0."""
        f, step, keys = self.f, self.kernel.schedule.key_block, self.f.integer(self.kernel.sizes.keys)
        if not known:
            return keys
        whole, _ = f.divide(f.add(last, step - 1), step)
        return f.select(known[1], f.minimum(f.multiply(whole, step), keys), keys)

    def _are_finite(self, value: Register) -> Register:
        """Tell whether all values of a matrix are finite numbers."""
        f, sizes = self.f, self.kernel.sizes
        vectors = Vectors(f, sizes.element, self.kernel.schedule.values.lanes)
        columns = range(0, sizes.columns, vectors.lanes)
        with f.loop(0, sizes.keys, carried=[vectors.zero for _ in columns]) as loop:
            row = self.number.moved(value, (loop.index, self.value_row))
            loaded = [
                vectors.load(vectors.address(row, column), min(vectors.lanes, sizes.columns - column))
                for column in columns
            ]
            loop.carry(*(f.fma(x, vectors.zero, total) for x, total in zip(loaded, loop.carried, strict=True)))
        total = functools.reduce(lambda x, y: f.binary("fadd", x, y), loop.carried)
        return f.binary("xor", f.any_lane(f.compare("fcmp uno", total, total)), Register("i1", "true"))

    def _panels_seen(self, seen: Register) -> Register:
        f, schedule = self.f, self.kernel.schedule.scores
        found: Blocks = panels(self.kernel.sizes.keys, schedule)
        if not self.kernel.schedule.key_block:
            return f.integer(found.count)
        width = found.sizes[-1] * schedule.lanes
        count, _ = f.divide(f.add(seen, width - 1), width)
        return f.minimum(count, f.integer(found.count))

    def _each_size(
        self, block: Register, products: list[GemmKernel], pointers: list[Register], tiles: Register | None = None
    ) -> None:
        """Call the product of a block's size."""
        blocks = self.blocks
        stops = [stop for stop, count in ((blocks.large, blocks.large), (blocks.count, blocks.small)) if count]

        def call(place: int) -> None:
            product = products[place]
            end = tiles or self.f.integer(product.tile_count)
            arguments = ", ".join(map(str, (*pointers, self.f.integer(0), end)))
            self.f.emit_void(f"call void @{product.name}({arguments})")

        choose(self.f, block, stops, call)

    def _soften(self, matrix: Register, at: tuple[Register, ...], block: tuple[Register, Register, Register]) -> None:
        """Make the rows of scores what softmax has above its sum, and keep one over that sum."""
        f, kernel = self.f, self.kernel
        first, rows, seen = block
        with f.loop(0, rows) as loop:
            row = f.binary("add", first, loop.index)
            bases = [
                f.offset(pointer, HELD[view.dtype].stored, linear(f, (*at, row), view.strides[:-1], view.offset))
                for pointer, view in zip(self.inputs, kernel.inputs, strict=True)
            ]
            scores = self.number.moved(self.scratch, (loop.index, kernel.score_stride))
            highest, total = self.softmax.write(RowPlace(scores, row, bases, seen))
            one = constant(self.number.element, 1.0)
            f.store(f.binary("fdiv", one, self.softmax.divisor(highest, total)), self._row(self.inverses, loop.index))
            number = f.binary("add", f.multiply(matrix, kernel.sizes.rows), row)
            for pointer, value in zip(self.numbers, (highest, total), strict=False):
                f.store(value, self._row(pointer, number))

    def _row(self, pointer: Register, row: Register) -> Register:
        return self.number.address(pointer, row)

    def _add_values(self, block: Register, out: Register, value: Register, seen: tuple[Register, Register]) -> None:
        """Add up the products with blocks of values, in the output, and divide by the sums there."""
        f, kernel, step = self.f, self.kernel, self.key_step
        rows, keys = seen
        self._each_row(out, rows, scaled=False)
        whole, _ = f.divide(keys, step)
        with f.loop(0, whole) as loop:
            scores = self.number.moved(self.scratch, (loop.index, step))
            self._each_size(block, self.values, [out, scores, self._moved_value(value, loop.index)])
        if self.keys_left:
            with f.only_if(f.compare("icmp eq", keys, f.integer(kernel.sizes.keys))):
                scores = self.number.moved(self.scratch, (whole, step))
                self._each_size(block, self.last_values, [out, scores, self._moved_value(value, whole)])
        self._each_row(out, rows, scaled=True)

    def _moved_value(self, value: Register, block: Register) -> Register:
        return self.number.moved(value, (block, self.key_step * self.value_row))

    def _each_row(self, out: Register, rows: Register, *, scaled: bool) -> None:
        """Make a block's output zero, or multiply its rows by one over their sums."""
        f, kernel = self.f, self.kernel
        vectors = Vectors(f, kernel.sizes.element, kernel.schedule.values.lanes)
        with f.loop(0, rows) as loop:
            row = self.number.moved(out, (loop.index, kernel.out.row))
            inverse = vectors.load_splat(self._row(self.inverses, loop.index)) if scaled else vectors.zero
            for column in range(0, kernel.sizes.columns, vectors.lanes):
                count = min(vectors.lanes, kernel.sizes.columns - column)
                address = vectors.address(row, column)
                result = f.binary("fmul", vectors.load(address, count), inverse) if scaled else inverse
                vectors.store(result, address, count)
