"""An AttentionGradientKernel -> LLVM functions: the loop over matrices and blocks of query rows, and its products.

Contract of the emitted function: void name(for_query*, for_key*, for_value*, query*, keys_across*, gradient*,
values_across*, key*, inputs*..., begin, end). It computes tiles [begin, end); what it writes overlaps nothing it reads.
Nothing outside the tensors is read or written. A call takes `stack_bytes` of stack.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.codegen.kernels.elementwise import Point, Typed, emit_body
from weft.codegen.kernels.gemm import emit_gemm
from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.kernels.spans import Span, linear, mask_up_to, row_coordinates
from weft.codegen.kernels.tiles import choose, first_of
from weft.codegen.llvm.dtypes import HELD
from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register, vector
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.expression import Instruction
from weft.plan.kernels.gemm import GemmKernel, Matrix, panels


def emit_attention_gradient(module: Module, kernel: AttentionGradientKernel) -> None:
    """Emit the functions of the gradients into a module; the one to call has the kernel's name."""
    writer = module.function(kernel.name, [*["ptr"] * (8 + len(kernel.inputs)), "i64", "i64"])
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
        *self.pointers, self.begin, self.end = f.parameters
        self.shares = f.scratch(self.number.element, self.blocks.size * kernel.score_stride)
        self.slopes = f.scratch(self.number.element, self.blocks.size * kernel.score_stride)
        left = sizes.keys % kernel.key_step
        self.key_parts = (kernel.key_step, *([left] if left else []))
        self.products: dict[tuple[str, int, int], GemmKernel] = {}
        self.made: set[str] = set()

    def emit(self) -> None:
        """Emit the loop."""
        f, kernel = self.f, self.kernel
        with f.loop(self.begin, self.end) as tiles:
            place = self._matrix(tiles.index)
            for pointer, matrix, columns in (
                (place.for_key, kernel.operands.for_key, kernel.sizes.inner),
                (place.for_value, kernel.operands.for_value, kernel.sizes.columns),
            ):
                self._clear(pointer, matrix, (f.integer(kernel.sizes.keys), columns))
            finite = self._are_finite(place) if kernel.schedule.key_block else None
            with f.loop(0, self.blocks.count) as loop:
                first = first_of(f, self.blocks, loop.index)
                after = first_of(f, self.blocks, f.add(loop.index, 1))
                rows = f.binary("sub", after, first)
                self._block(place, RowBlock(loop.index, first, rows, self._keys_seen(after, finite)))

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
        kernel, operands = self.kernel, self.kernel.operands
        query = self._row(place.query, operands.query, block.first)
        gradient = self._row(place.gradient, operands.gradient, block.first)
        out = self._row(place.for_query, operands.for_query, block.first)
        panels_seen = self._panels_seen(block.seen, kernel.scores(1))
        self._each_rows(block, kernel.scores, [self.shares, query, place.keys_across], panels_seen)
        panels_seen = self._panels_seen(block.seen, kernel.pull(1))
        self._each_rows(block, kernel.pull, [self.slopes, gradient, place.values_across], panels_seen)
        self._apply_body(place, block)
        if kernel.schedule.key_block:
            self._clear(out, operands.for_query, (block.rows, kernel.sizes.inner))

        def add(first: Register, keys: int) -> None:
            share, slope = (self.number.address(scratch, first) for scratch in (self.shares, self.slopes))
            for_key = self._row(place.for_key, operands.for_key, first)
            for_value = self._row(place.for_value, operands.for_value, first)
            key = self._row(place.key, operands.key, first)
            self._each_rows(block, lambda rows: kernel.for_value(rows, keys), [for_value, share, gradient])
            self._each_rows(block, lambda rows: kernel.for_key(rows, keys), [for_key, slope, query])
            self._each_rows(block, lambda rows: kernel.for_query(rows, keys), [out, slope, key])

        self._each_part(block.seen, add)

    def _each_part(self, seen: Register, add: Callable[[Register, int], None]) -> None:
        """Emit what is done for the keys that are seen, in whole parts and what is left."""
        f, step, *left = self.f, *self.key_parts
        whole, _ = f.divide(seen, step)
        with f.loop(0, whole) as loop:
            add(f.multiply(loop.index, step), step)
        for keys in left:
            with f.only_if(f.compare("icmp eq", seen, f.integer(self.kernel.sizes.keys))):
                add(f.multiply(whole, step), keys)

    def _row(self, pointer: Register, matrix: Matrix, row: Register) -> Register:
        return self.number.moved(pointer, (row, matrix.row))

    def _each_rows(
        self,
        block: RowBlock,
        product_of: Callable[[int], GemmKernel],
        pointers: Sequence[Register],
        tiles: Register | None = None,
    ) -> None:
        """Call the product for as many rows as a block has."""
        f, blocks = self.f, self.blocks
        stops = [stop for stop, count in ((blocks.large, blocks.large), (blocks.count, blocks.small)) if count]

        def call(place: int) -> None:
            product = product_of(blocks.sizes[place])
            if product.name not in self.made:
                self.made.add(product.name)
                emit_gemm(f.module, product)
            end = tiles or f.integer(product.tile_count)
            arguments = ", ".join(map(str, (*pointers, f.integer(0), end)))
            f.emit_void(f"call void @{product.name}({arguments})")

        choose(f, block.number, stops, call)

    def _keys_seen(self, last: Register, finite: Register | None) -> Register:
        """Give how many keys the rows before `last` see; all if a number is not finite, since times 0 it is not 0."""
        f, step, keys = self.f, self.kernel.schedule.key_block, self.f.integer(self.kernel.sizes.keys)
        if finite is None:
            return keys
        whole, _ = f.divide(f.add(last, step - 1), step)
        return f.select(finite, f.minimum(f.multiply(whole, step), keys), keys)

    def _panels_seen(self, seen: Register, product: GemmKernel) -> Register:
        f, found = self.f, panels(product.columns, product.schedule)
        if not self.kernel.schedule.key_block:
            return f.integer(found.count)
        width = found.sizes[-1] * product.schedule.lanes
        count, _ = f.divide(f.add(seen, width - 1), width)
        return f.minimum(count, f.integer(found.count))

    def _clear(self, pointer: Register, matrix: Matrix, sizes: tuple[Register, int]) -> None:
        """Make some rows of a matrix zero."""
        f, vectors, (rows, columns) = self.f, self.vectors, sizes
        with f.loop(0, rows) as loop:
            row = self._row(pointer, matrix, loop.index)
            for column in range(0, columns, vectors.lanes):
                vectors.store(vectors.zero, vectors.address(row, column), min(vectors.lanes, columns - column))

    def _are_finite(self, place: MatrixPlace) -> Register:
        """Tell whether all that shares and slopes of 0 are multiplied with is finite."""
        f, operands, sizes = self.f, self.kernel.operands, self.kernel.sizes
        total = self.vectors.zero
        for pointer, matrix, (rows, columns) in (
            (place.query, operands.query, (sizes.rows, sizes.inner)),
            (place.gradient, operands.gradient, (sizes.rows, sizes.columns)),
            (place.key, operands.key, (sizes.keys, sizes.inner)),
        ):
            total = f.binary("fadd", total, self._nothing_of(pointer, matrix, (rows, columns)))
        return f.binary("xor", f.any_lane(f.compare("fcmp uno", total, total)), Register("i1", "true"))

    def _nothing_of(self, pointer: Register, matrix: Matrix, sizes: tuple[int, int]) -> Register:
        """Add up all numbers of a matrix times 0: no number where one of them is not finite."""
        f, vectors, (rows, columns) = self.f, self.vectors, sizes
        starts = range(0, columns, vectors.lanes)
        with f.loop(0, rows, carried=[vectors.zero for _ in starts]) as loop:
            row = self._row(pointer, matrix, loop.index)
            loaded = [
                vectors.load(vectors.address(row, column), min(vectors.lanes, columns - column)) for column in starts
            ]
            loop.carry(*(f.fma(x, vectors.zero, total) for x, total in zip(loaded, loop.carried, strict=True)))
        return functools.reduce(lambda x, y: f.binary("fadd", x, y), loop.carried)

    def _apply_body(self, place: MatrixPlace, block: RowBlock) -> None:
        """Make shares of the scores, and slopes of the pull, in their place."""
        f, kernel, lanes = self.f, self.kernel, self.vectors.lanes
        with f.loop(0, block.rows) as loop:
            row = f.binary("add", block.first, loop.index)
            bases = [
                f.offset(pointer, HELD[view.dtype].stored, linear(f, (*place.at, row), view.strides[:-1], view.offset))
                for pointer, view in zip(self.pointers[8:], kernel.inputs, strict=True)
            ]
            scores, pulls = (
                self.number.moved(scratch, (loop.index, kernel.score_stride)) for scratch in (self.shares, self.slopes)
            )
            line = _Line(self, row, bases, (scores, pulls))
            whole, _ = f.divide(block.seen, lanes)
            with f.loop(0, whole) as columns:
                line.write(Span(f, f.multiply(columns.index, lanes), lanes))
            if kernel.sizes.keys % lanes:
                column = f.multiply(whole, lanes)
                with f.only_if(f.compare("icmp slt", column, block.seen)):
                    line.write(Span(f, column, lanes, mask_up_to(f, column, block.seen, lanes)))


@dataclass(frozen=True, slots=True)
class _Line:
    """A row of a block: its number, its address in each input of the body, its scores and pulls."""

    emitter: GradientEmitter
    row: Register
    bases: list[Register]
    places: tuple[Register, Register]

    def write(self, span: Span) -> None:
        """Apply the body to a span. Rows on the stack are whole vectors long: behind the last key nobody reads."""
        f, kernel = self.emitter.f, self.emitter.kernel
        element = HELD[kernel.sizes.element].stored
        kind = vector(element, span.lanes)
        addresses = [f.offset(place, element, span.column) for place in self.places]
        inputs = [Typed(f.load(kind, address), kernel.sizes.element) for address in addresses]
        inputs += [
            Typed(span.load(view, base, view.strides[-1]), view.dtype)
            for view, base in zip(kernel.inputs, self.bases, strict=True)
        ]

        def position(line: Instruction) -> Register:
            *_, row, column, start = (int(value) for value in line.attributes)
            return span.position(line.dtype, linear(f, (self.row,), (row,), start), column)

        values = emit_body(f, kernel.body, inputs, Point(span.lanes, position))
        for number, address in zip((kernel.share, kernel.slope), addresses, strict=True):
            f.store(values[number].register, address)
