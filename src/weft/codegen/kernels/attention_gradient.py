"""Emit the gradients of attention, a matrix of the batch at a time, in blocks of query rows.

Contract of the emitted function: void name(for_query*, for_key*, for_value*, query*, keys_across*, gradient*,
values_across*, key*, inputs*..., begin, end, ends...). It computes tiles [begin, end); what it writes overlaps nothing
it reads. Nothing outside the tensors is read or written. A call takes `stack_bytes` of stack.

    s = query x key^T          pull = gradient x value^T           two matmuls, on the stack
    p, g = body(s, pull)       share p = exp(s - logsumexp), slope g = p * (pull - d); d, a number a row, is an input
    for_value += p^T x gradient      for_key += g^T x query      for_query = g x key

A matrix is not shared out: blocks of rows add to the same keys, and whatever lane computes a matrix, its bits are the
same. Causal blocks skip the keys behind them, as in attention.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.codegen.kernels.attention import (
    ScoreRow,
    all_finite,
    call_gemm,
    clear_rows,
    keys_seen,
    panels_seen,
    row_bases,
    sum_times_zero,
)
from weft.codegen.kernels.elementwise import Typed
from weft.codegen.kernels.ends import Parameters, all_below, parameter_kinds
from weft.codegen.kernels.gemm import emit_gemm
from weft.codegen.kernels.tiles import choose_size, first_of
from weft.codegen.kernels.vectors import ColumnSpan, Vectors, linear, mask_up_to, row_coordinates
from weft.codegen.llvm.dtypes import HELD
from weft.codegen.llvm.module import FunctionWriter, Module, Register, vector
from weft.codegen.vecmath.core import without_subnormals
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.gemm import GemmKernel, Matrix


def emit_attention_gradient(module: Module, kernel: AttentionGradientKernel) -> None:
    """Emit the functions of the gradients into a module; the one to call has the kernel's name."""
    # SAFETY: nothing is claimed of the pointers; the plan gives each buffer bytes of its own.
    writer = module.function(kernel.name, parameter_kinds(kernel, ["ptr"] * (8 + len(kernel.inputs))))
    if kernel.tile_count:
        GradientEmitter(writer, kernel).emit()


@dataclass(frozen=True, slots=True)
class MatrixPlace:
    """Where the tensors of one matrix of the batch are, and its coordinates."""

    at: tuple[Register, ...]
    for_query: Register
    for_key: Register
    for_value: Register
    query: Register
    keys_across: Register
    gradient: Register
    values_across: Register
    key: Register


@dataclass(frozen=True, slots=True)
class RowBlock:
    """A block of query rows: its number, its first row, how many it has, and the keys that they see."""

    number: Register
    first: Register
    rows: Register
    seen: Register


class GradientEmitter:
    """Emits the loop over tiles."""

    def __init__(self, f: FunctionWriter, kernel: AttentionGradientKernel) -> None:
        self.f = f
        self.kernel = kernel
        sizes, self.blocks = kernel.sizes, kernel.row_blocks
        self.number = Vectors(f, sizes.element, 1)
        self.vectors = Vectors(f, sizes.element, kernel.schedule.scores.lanes)
        given = Parameters.of(f, kernel)
        self.pointers, self.begin, self.end, self.ends = given.pointers, given.begin, given.end, given.ends
        self.rows_end, self.keys_end = (self.ends.get(len(sizes.batch) + side) for side in (0, 1))
        self.keys = f.integer(sizes.keys) if self.keys_end is None else self.keys_end
        self.shares = f.scratch(self.number.element, self.blocks.size * kernel.score_stride)
        self.slopes = f.scratch(self.number.element, self.blocks.size * kernel.score_stride)
        left = 0 if kernel.keys_end else sizes.keys % kernel.key_step
        self.key_parts = (kernel.key_step, *([left] if left else []))
        self.made: set[str] = set()

    def emit(self) -> None:
        """Emit the loop."""
        f = self.f
        with f.loop(self.begin, self.end) as tiles:
            place = self._matrix(tiles.index)
            inside = all_below(f, ((x, self.ends[n]) for n, x in enumerate(place.at) if n in self.ends))
            if inside is None:
                self._tile(place)
            else:
                with f.only_if(inside):
                    self._tile(place)

    def _tile(self, place: MatrixPlace) -> None:
        """Compute the gradients of one matrix."""
        f, kernel = self.f, self.kernel
        for pointer, matrix, columns in (
            (place.for_key, kernel.operands.for_key, kernel.sizes.inner),
            (place.for_value, kernel.operands.for_value, kernel.sizes.columns),
        ):
            clear_rows(self.vectors, pointer, matrix.row, (self.keys, columns))
        finite = self._are_finite(place) if kernel.schedule.key_block else None
        with f.loop(0, self._block_count()) as loop:
            first = first_of(f, self.blocks, loop.index)
            after = first_of(f, self.blocks, f.add(loop.index, 1))
            if self.rows_end is not None:
                after = f.minimum(after, self.rows_end)
            rows = f.binary("sub", after, first)
            seen = keys_seen(f, after, (kernel.sizes.keys, kernel.schedule.key_block), finite)
            if self.keys_end is not None:
                seen = f.minimum(seen, self.keys_end)
            self._block(place, RowBlock(loop.index, first, rows, seen))

    def _block_count(self) -> Register | int:
        """Give the blocks of rows that begin before the rows end."""
        f, end = self.f, self.rows_end
        if end is None:
            return self.blocks.count
        count = f.integer(0)
        for number in range(self.blocks.count):
            begins = f.compare("icmp slt", f.integer(self.blocks.start(number)), end)
            count = f.select(begins, f.integer(number + 1), count)
        return count

    def _matrix(self, index: Register) -> MatrixPlace:
        f, operands = self.f, self.kernel.operands
        at = row_coordinates(f, index, self.kernel.sizes.batch)
        listed = (
            operands.for_query, operands.for_key, operands.for_value, operands.query,
            operands.keys_across, operands.gradient, operands.values_across, operands.key,
        )  # fmt: skip
        moved = [
            self.number.address(pointer, linear(f, at, matrix.batch, 0))
            for pointer, matrix in zip(self.pointers, listed, strict=False)
        ]
        return MatrixPlace(at, *moved)

    def _block(self, place: MatrixPlace, block: RowBlock) -> None:
        """Add what one block of rows gives."""
        f, kernel, operands = self.f, self.kernel, self.kernel.operands
        query = self._row(place.query, operands.query, block.first)
        gradient = self._row(place.gradient, operands.gradient, block.first)
        out = self._row(place.for_query, operands.for_query, block.first)
        key_block = kernel.schedule.key_block
        some, rows = key_block > 0 or kernel.keys_end, (block.rows,) * kernel.rows_end
        tiles = panels_seen(self.f, block.seen, kernel.scores(1), some=some)
        self._call(block, kernel.scores, [self.shares, query, place.keys_across], (tiles, rows))
        tiles = panels_seen(self.f, block.seen, kernel.pull(1), some=some)
        self._call(block, kernel.pull, [self.slopes, gradient, place.values_across], (tiles, rows))
        self._apply_body(place, block)
        if key_block:
            clear_rows(self.vectors, out, operands.for_query.row, (block.rows, kernel.sizes.inner))

        def add(first: Register, keys: int) -> None:
            share, slope = (self.number.address(scratch, first) for scratch in (self.shares, self.slopes))
            for_key = self._row(place.for_key, operands.for_key, first)
            for_value = self._row(place.for_value, operands.for_value, first)
            key = self._row(place.key, operands.key, first)
            those: tuple[Register, ...] = ()
            if kernel.keys_end:
                those = (f.minimum(f.binary("sub", block.seen, first), f.integer(keys)),)
            here = (None, (*those, *rows))
            self._call(block, lambda height: kernel.for_value(height, keys), [for_value, share, gradient], here)
            self._call(block, lambda height: kernel.for_key(height, keys), [for_key, slope, query], here)
            self._call(block, lambda height: kernel.for_query(height, keys), [out, slope, key], (None, (*rows, *those)))

        self._each_part(block.seen, add)

    def _each_part(self, seen: Register, add: Callable[[Register, int], None]) -> None:
        """Emit what is done for the keys that are seen, in whole parts and what is left."""
        f, step, *left = self.f, *self.key_parts
        whole, _ = f.divide(f.add(seen, step - 1) if self.kernel.keys_end else seen, step)
        with f.loop(0, whole) as loop:
            add(f.multiply(loop.index, step), step)
        for keys in left:
            with f.only_if(f.compare("icmp eq", seen, f.integer(self.kernel.sizes.keys))):
                add(f.multiply(whole, step), keys)

    def _row(self, pointer: Register, matrix: Matrix, row: Register) -> Register:
        return self.number.moved(pointer, (row, matrix.row))

    def _call(
        self,
        block: RowBlock,
        gemm_of: Callable[[int], GemmKernel],
        pointers: Sequence[Register],
        extent: tuple[Register | None, Sequence[Register]],
    ) -> None:
        """Call the matmul for as many rows as a block has; its function is emitted when it is first needed.

        The `extent` is how many tiles there are, all if None, and where rows and the sum end.
        """

        def call(place: int) -> None:
            gemm = gemm_of(self.blocks.sizes[place])
            if gemm.name not in self.made:
                self.made.add(gemm.name)
                emit_gemm(self.f.module, gemm)
            call_gemm(self.f, gemm, pointers, *extent)

        choose_size(self.f, block.number, self.blocks, call)

    def _are_finite(self, place: MatrixPlace) -> Register:
        """Tell whether all that shares and slopes of 0 are multiplied with is finite."""
        f, operands, sizes = self.f, self.kernel.operands, self.kernel.sizes
        total, rows = self.vectors.zero, sizes.rows if self.rows_end is None else self.rows_end
        for pointer, matrix, shape in (
            (place.query, operands.query, (rows, sizes.inner)),
            (place.gradient, operands.gradient, (rows, sizes.columns)),
            (place.key, operands.key, (self.keys, sizes.inner)),
        ):
            total = f.binary("fadd", total, sum_times_zero(self.vectors, pointer, matrix.row, shape))
        return all_finite(f, total)

    def _apply_body(self, place: MatrixPlace, block: RowBlock) -> None:
        """Make shares of the scores, and slopes of the pull, in their place."""
        f, kernel, lanes = self.f, self.kernel, self.vectors.lanes
        with f.loop(0, block.rows) as loop:
            row = f.binary("add", block.first, loop.index)
            bases = row_bases(f, self.pointers[8:], kernel.inputs, (*place.at, row))
            scores, pulls = (
                self.number.moved(scratch, (loop.index, kernel.score_stride)) for scratch in (self.shares, self.slopes)
            )
            line = _GradientRow(self, ScoreRow(row, bases), (scores, pulls))
            whole, _ = f.divide(block.seen, lanes)
            with f.loop(0, whole) as columns:
                line.write(ColumnSpan(f, f.multiply(columns.index, lanes), lanes))
            if kernel.sizes.keys % lanes or kernel.keys_end:
                column = f.multiply(whole, lanes)
                with f.only_if(f.compare("icmp slt", column, block.seen)):
                    line.write(ColumnSpan(f, column, lanes, mask_up_to(f, column, block.seen, lanes)))


@dataclass(frozen=True, slots=True)
class _GradientRow:
    """A row of a block, and where its scores and pulls are."""

    emitter: GradientEmitter
    row: ScoreRow
    places: tuple[Register, Register]

    def write(self, span: ColumnSpan) -> None:
        """Apply the body to a span."""
        f, kernel = self.emitter.f, self.emitter.kernel
        element = HELD[kernel.sizes.element].stored
        kind = vector(element, span.lanes)
        # SAFETY: rows on the stack are whole vectors long (`score_stride`): behind the last key nobody reads.
        addresses = [f.offset(place, element, span.column) for place in self.places]
        scores = [Typed(f.load(kind, address), kernel.sizes.element) for address in addresses]
        values = self.row.apply(span, kernel.body, scores, kernel.inputs)
        for number, address in zip((kernel.share, kernel.slope), addresses, strict=True):
            f.store(without_subnormals(f, values[number].register), address)
