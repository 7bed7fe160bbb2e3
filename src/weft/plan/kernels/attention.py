"""Define the kernel of attention, which computes it a block of query rows at a time.

A tile is one block of rows of one matrix of the batch. It computes the block's scores with all keys that the block can
see, applies a body to them (scale, mask), makes each row exp(score - highest of the row), multiplies by the values and
divides each row by its sum. Scores never leave the tile: they lie on its stack, `stack_bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from weft.ir.ops import SIMPLE
from weft.plan.kernels.expression import (
    CYCLES_OF_OP,
    DTYPE_BYTES,
    MEMORY_CYCLES,
    ROW_CYCLES,
    Instruction,
    View,
    body_cycles,
)
from weft.plan.kernels.gemm import (
    Epilogue,
    EpilogueOperand,
    GemmKernel,
    GemmSchedule,
    Matrix,
    PackedMatrix,
    choose_schedule,
)
from weft.plan.kernels.kernel import Boxes, ByteBox, Kernel, Range, Sizes, box, by, cut_range
from weft.plan.kernels.walk import Blocks, cut
from weft.target import Target

SCORE_BYTES = 256 * 1024  # of a block's scores: they stay in the second cache beside keys and values
STACK_BYTES = 512 * 1024  # the most that scores may take of a lane's stack
MOST_ROWS, LEAST_ROWS = 64, 4
MOST_CAUSAL_ROWS = 32  # smaller blocks see fewer keys that are masked for most of their rows
KEY_BLOCK = 64  # keys that a causal block sees, or does not see, together
ALL_TILES = 1 << 30  # blocks of a tile that has all of them


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """What is attended: rows of queries, keys, numbers of a query and of a value, for each matrix of a batch."""

    element: str
    batch: tuple[int, ...]
    rows: int
    keys: int
    inner: int
    columns: int


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """How attention is computed: query rows of a block, and the schedules of both products.

    With `key_block`, a block of rows sees only the keys up to its last row, in whole blocks of so many, unless a value
    of the matrix is no finite number: times 0 it is no 0. Without, it sees all keys.
    """

    row_block: int
    scores: GemmSchedule
    values: GemmSchedule
    key_block: int = 0


@dataclass(frozen=True, slots=True)
class AttentionKernel(Kernel):
    """One attention; arguments are out, [highest, total], query, key, value, the body's inputs, begin, end.

    `key` is the right operand of the first product, keys side by side. The body's value 0 is the score, the next are
    the inputs, whose views have strides for the batch, rows and keys; its last value goes into softmax. A row whose
    scores are all -inf gives zeros with `masked_gives_zeros`, else NaN. With `keeps_numbers`, the highest score of each
    row and the sum it divides by are stored, row after row.
    """

    name: str
    sizes: AttentionSizes
    query: Matrix
    key: Matrix | PackedMatrix
    value: Matrix | PackedMatrix
    out: Matrix
    inputs: tuple[View, ...]
    body: tuple[Instruction, ...]
    schedule: AttentionSchedule
    masked_gives_zeros: bool = False
    keeps_numbers: bool = False
    ends: tuple[int, ...] = ()

    @property
    def row_blocks(self) -> Blocks:
        """Give the rows of a matrix, cut into blocks."""
        return cut(self.sizes.rows, self.schedule.row_block)

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        return prod(self.sizes.batch) * self.row_blocks.count

    @property
    def score_stride(self) -> int:
        """Give the numbers from one row of scores to the next: whole vectors, and not a multiple of a page."""
        lanes = self.schedule.scores.lanes
        return (-(-self.sizes.keys // lanes) + 1) * lanes

    @property
    def stack_bytes(self) -> int:
        """Count the bytes of stack that a call takes."""
        return self.row_blocks.size * (self.score_stride + 1) * DTYPE_BYTES[self.sizes.element]

    def seen(self, block: int) -> int:
        """Count the keys that a block of rows sees."""
        step, keys = self.schedule.key_block, self.sizes.keys
        return min(-(-self.row_blocks.start(block + 1) // step) * step, keys) if step else keys

    def scores(self, rows: int) -> GemmKernel:
        """Describe the product of a block of query rows with the keys; a tile of it is a panel of keys."""
        sizes = self.sizes
        schedule = replace(self.schedule.scores, tile_row_blocks=ALL_TILES, tile_panels=1, rows_outside=False)
        return GemmKernel(
            name=f"{self.name}.scores{rows}",
            element=sizes.element,
            batch=(),
            rows=rows,
            columns=sizes.keys,
            inner=sizes.inner,
            left=replace(self.query, batch=()),
            right=replace(self.key, batch=()),
            out=Matrix((), self.score_stride, 1),
            epilogue=Epilogue(),
            schedule=schedule,
            ends=(0,) if self.rows_end else (),
        )

    def values(self, rows: int, keys: int) -> GemmKernel:
        """Describe the product of a block of rows with the values of all keys, or of some that it adds."""
        part = keys < self.sizes.keys or self.schedule.key_block > 0
        operands = () if part else (EpilogueOperand((), 1, 0),)
        body = () if part else (Instruction("mul", (0, 1), self.sizes.element),)
        schedule = replace(self.schedule.values, tile_row_blocks=ALL_TILES, tile_panels=ALL_TILES)
        return GemmKernel(
            name=f"{self.name}.values{rows}x{keys}",
            element=self.sizes.element,
            batch=(),
            rows=rows,
            columns=self.sizes.columns,
            inner=keys,
            left=Matrix((), self.score_stride, 1),
            right=replace(self.value, batch=()),
            out=replace(self.out, batch=()),
            epilogue=Epilogue(operands=operands, body=body),
            schedule=schedule,
            accumulate=part,
            ends=(0,) * self.rows_end + (2,) * self.keys_end,
        )

    @property
    def rows_end(self) -> bool:
        """Whether the caller says where rows end."""
        return len(self.sizes.batch) in self.ends

    @property
    def keys_end(self) -> bool:
        """Whether the caller says where keys end."""
        return len(self.sizes.batch) + 1 in self.ends

    @property
    def tile_sizes(self) -> tuple[Sizes, Sizes]:
        """Give the scores of each block of rows: causal ones see more keys the farther down they are."""
        blocks = self.row_blocks
        rows = [blocks.start(block + 1) - blocks.start(block) for block in range(blocks.count)]
        return [self.seen(block) * height for block, height in enumerate(rows)], (1,)

    @property
    def cycles(self) -> float:
        """Estimate the cycles of both products and of softmax between them, as far as keys are seen."""
        sizes, schedule, blocks = self.sizes, self.schedule, self.row_blocks
        keys = sum(self.seen(block) for block in range(blocks.count)) / blocks.count
        element = CYCLES_OF_OP["exp"] + body_cycles(self.body) + 3 * SIMPLE + (4 + len(self.inputs)) * MEMORY_CYCLES
        rows = blocks.size * (element * keys / schedule.scores.lanes + 4 * ROW_CYCLES)
        products = self.scores(blocks.size).cycles + self.values(blocks.size, sizes.keys).cycles
        return self.tile_count * (products * keys / sizes.keys + rows)

    @property
    def summary(self) -> str:
        """Say the batch, queries, keys and the numbers of each."""
        return attention_summary(self.sizes, causal=self.schedule.key_block > 0)

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give some rows of queries and outputs, where they are of one matrix, and all of keys and values."""
        sizes, blocks = self.sizes, self.row_blocks
        first, last = begin // blocks.count, (end - 1) // blocks.count
        rows = (0, sizes.rows)
        if first == last:
            rows = (blocks.start(begin % blocks.count), blocks.start((end - 1) % blocks.count + 1))
        element = DTYPE_BYTES[sizes.element]

        def seen(strides: Sequence[int], spans: Sequence[tuple[int, Range]], item: int = element) -> ByteBox | None:
            offset, steps = cut_range(sizes.batch, strides, first, last + 1) if sizes.batch else (0, [])
            for stride, (start, stop) in spans:
                offset += start * stride
                steps = [*steps, (stride, stop - start)]
            return box(offset, steps, item)

        def matrix(where: Matrix | PackedMatrix, down: Range, across: Range) -> ByteBox | None:
            if isinstance(where, PackedMatrix):
                return None
            return seen(where.batch, ((where.row, down), (where.column, across)))

        number = box(first * sizes.rows + rows[0], [(1, (last - first) * sizes.rows + rows[1] - rows[0])], element)
        sides = [rows, (0, sizes.keys)]
        inputs = (
            seen(view.strides[:-2], list(zip(view.strides[-2:], sides, strict=True)), DTYPE_BYTES[view.dtype])
            for view in self.inputs
        )
        return (
            matrix(self.out, rows, (0, sizes.columns)),
            *((number, number) if self.keeps_numbers else ()),
            matrix(self.query, rows, (0, sizes.inner)),
            matrix(self.key, (0, sizes.inner), (0, sizes.keys)),
            matrix(self.value, (0, sizes.keys), (0, sizes.columns)),
            *inputs,
        )

    def renamed(self, name: str) -> AttentionKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> None:
        """Never: blocks of rows read keys and values again."""


def block_rows(sizes: AttentionSizes, target: Target, *, causal: bool) -> int:
    """Give how many rows a block has; 0 where the scores of so many keys find no room."""
    row_bytes = sizes.keys * DTYPE_BYTES[sizes.element]
    most = MOST_CAUSAL_ROWS if causal else MOST_ROWS
    rows = min(sizes.rows, most, max(SCORE_BYTES // row_bytes, LEAST_ROWS))
    fits = (rows + 1) * (row_bytes + target.vector_bytes * 2) <= STACK_BYTES
    return rows if fits and rows >= min(sizes.rows, LEAST_ROWS) else 0


def choose_attention(sizes: AttentionSizes, scores: GemmSchedule, target: Target, *, causal: bool) -> AttentionSchedule:
    """Choose how attention is computed, where the panels of the keys are known, and scores find room."""
    rows = block_rows(sizes, target, causal=causal)
    key_block = KEY_BLOCK if causal and sizes.keys > KEY_BLOCK else 0
    values = choose_schedule(sizes.element, (sizes.rows, sizes.columns, key_block or sizes.keys), target)
    return AttentionSchedule(rows, scores, values, key_block)


def attention_summary(sizes: AttentionSizes, *, causal: bool) -> str:
    """Say the batch, queries, keys and the numbers of each."""
    return f"{by(*sizes.batch, sizes.rows, sizes.keys)}, {sizes.inner} to {sizes.columns}{', causal' if causal else ''}"
