"""An AttentionKernel -> LLVM functions: the loop over blocks of query rows, and the products in it.

Contract of the emitted function: void name(out*, [highest*, total*,] query*, key*, value*, inputs*..., begin, end). It
computes tiles [begin, end); what it writes overlaps nothing it reads. Nothing outside the tensors is read or written. A
call takes `stack_bytes` of stack.
"""

import functools

from weft.codegen.kernels.attention_rows import RowPlace, SoftmaxRow
from weft.codegen.kernels.gemm import emit_gemm
from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.kernels.spans import linear, row_coordinates
from weft.codegen.kernels.tiles import choose, first_of
from weft.codegen.llvm.dtypes import HELD
from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register, constant
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.blocks import Blocks
from weft.plan.kernels.gemm import GemmKernel, Matrix, panels


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
