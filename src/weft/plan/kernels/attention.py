"""Attention -> the kernel that computes it a block of query rows at a time, with every scheduling choice as a field.

A tile is one block of rows of one matrix of the batch. It computes the block's scores with all keys that the block can
see, applies a body to them (scale, mask), makes each row exp(score - highest of the row), multiplies by the values and
divides each row by its sum. Scores never leave the tile: they lie on its stack, `stack_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from weft.plan.kernels.blocks import Blocks, cut
from weft.plan.kernels.epilogue import Epilogue, Operand
from weft.plan.kernels.expression import DTYPE_BYTES, Instruction, View
from weft.plan.kernels.gemm import GemmKernel, GemmSchedule, Matrix, PackedMatrix
from weft.plan.kernels.schedule_gemm import choose_schedule
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
class AttentionKernel:
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
        )

    def values(self, rows: int, keys: int) -> GemmKernel:
        """Describe the product of a block of rows with the values of all keys, or of some that it adds."""
        part = keys < self.sizes.keys or self.schedule.key_block > 0
        operands = () if part else (Operand((), 1, 0),)
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
        )


def choose_attention(
    sizes: AttentionSizes, scores: GemmSchedule, target: Target, *, causal: bool
) -> AttentionSchedule | None:
    """Choose how attention is computed, where the panels of the keys are known; None where scores find no room."""
    row_bytes = sizes.keys * DTYPE_BYTES[sizes.element]
    most = MOST_CAUSAL_ROWS if causal else MOST_ROWS
    rows = min(sizes.rows, most, max(SCORE_BYTES // row_bytes, LEAST_ROWS))
    if rows < min(sizes.rows, LEAST_ROWS) or (rows + 1) * (row_bytes + target.vector_bytes * 2) > STACK_BYTES:
        return None
    key_block = KEY_BLOCK if causal and sizes.keys > KEY_BLOCK else 0
    values = choose_schedule(sizes.element, (sizes.rows, sizes.columns, key_block or sizes.keys), target)
    return AttentionSchedule(rows, scores, values, key_block)
