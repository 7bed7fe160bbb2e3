"""Define the kernel of attention's gradients, which computes all three of a matrix a block of query rows at a time.

A tile is one matrix of the batch: what its keys and values get is added up over the blocks of rows, in order. For each
block it computes the scores with all keys that the block can see and the products of the result's gradient with the
values (the pull), and from both, element by element, the shares of softmax and the slope of the scores. Neither leaves
the tile: they lie on its stack, `stack_bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from weft.plan.kernels.attention import (
    ALL_TILES,
    KEY_BLOCK,
    LEAST_ROWS,
    MOST_CAUSAL_ROWS,
    MOST_ROWS,
    AttentionSizes,
    attention_summary,
)
from weft.plan.kernels.expression import DTYPE_BYTES, MEMORY_CYCLES, ROW_CYCLES, Instruction, View, body_cycles
from weft.plan.kernels.gemm import Epilogue, GemmKernel, GemmSchedule, Matrix, PackedMatrix, choose_schedule
from weft.plan.kernels.kernel import Boxes, ByteBox, Kernel, box, cut_range
from weft.plan.kernels.walk import Blocks, cut
from weft.target import Target

SCORE_BYTES = 192 * 1024  # of a block's scores, and of its pull as much: both stay in the second cache
STACK_BYTES = 512 * 1024  # the most that both may take of a lane's stack


@dataclass(frozen=True, slots=True)
class GradientSchedule:
    """How gradients are computed: query rows of a block, and the schedules of the five products.

    With `key_block`, a block of rows sees only the keys up to its last row, in whole blocks of so many, unless a number
    of the matrix is not finite: times 0 it is no 0. Without, it sees all keys.
    """

    row_block: int
    scores: GemmSchedule
    pull: GemmSchedule
    for_query: GemmSchedule
    for_key: GemmSchedule
    for_value: GemmSchedule
    key_block: int = 0


@dataclass(frozen=True, slots=True)
class AttentionOperands:
    """Where the tensors of an attention's gradients lie: those that are written, then those that are read.

    `across` are right operands of the first two products: keys, and values, side by side.
    """

    for_query: Matrix
    for_key: Matrix
    for_value: Matrix
    query: Matrix
    keys_across: Matrix | PackedMatrix
    gradient: Matrix
    values_across: Matrix | PackedMatrix
    key: Matrix


@dataclass(frozen=True, slots=True)
class AttentionGradientKernel(Kernel):
    """The gradients of one attention; arguments are those of `operands` in order, the body's inputs, begin, end.

    The body's value 0 is the score, 1 the pull, the next are the inputs, whose views have strides for the batch, rows
    and keys; `share` and `slope` are the numbers of what it gives.
    """

    name: str
    sizes: AttentionSizes
    operands: AttentionOperands
    inputs: tuple[View, ...]
    body: tuple[Instruction, ...]
    share: int
    slope: int
    schedule: GradientSchedule
    ends: tuple[int, ...] = ()

    @property
    def row_blocks(self) -> Blocks:
        """Give the rows of a matrix, cut into blocks."""
        return cut(self.sizes.rows, self.schedule.row_block)

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        return prod(self.sizes.batch)

    @property
    def rows_end(self) -> bool:
        """Whether the caller says where rows end."""
        return len(self.sizes.batch) in self.ends

    @property
    def keys_end(self) -> bool:
        """Whether the caller says where keys end."""
        return len(self.sizes.batch) + 1 in self.ends

    @property
    def key_step(self) -> int:
        """Give the keys that are added to together."""
        return self.schedule.key_block or self.sizes.keys

    @property
    def score_stride(self) -> int:
        """Give the numbers from one row of scores to the next: whole vectors, and not a multiple of a page."""
        lanes = self.schedule.scores.lanes
        return (-(-self.sizes.keys // lanes) + 1) * lanes

    @property
    def stack_bytes(self) -> int:
        """Count the bytes of stack that a call takes."""
        return 2 * self.row_blocks.size * self.score_stride * DTYPE_BYTES[self.sizes.element]

    def seen(self, block: int) -> int:
        """Count the keys that a block of rows sees."""
        step, keys = self.schedule.key_block, self.sizes.keys
        return min(-(-self.row_blocks.start(block + 1) // step) * step, keys) if step else keys

    def scores(self, rows: int) -> GemmKernel:
        """Describe the product of a block of query rows with the keys; a tile of it is a panel of keys."""
        operands, schedule = self.operands, replace(self.schedule.scores, tile_panels=1, rows_outside=False)
        sizes = (rows, self.sizes.keys, self.sizes.inner)
        matrices = (operands.query, operands.keys_across, self._tile())
        return self._product("scores", sizes, matrices, schedule, ends=(self.rows_end, False))

    def pull(self, rows: int) -> GemmKernel:
        """Describe the product of a block of rows of the gradient with the values; a tile of it is a panel of keys."""
        operands, schedule = self.operands, replace(self.schedule.pull, tile_panels=1, rows_outside=False)
        sizes = (rows, self.sizes.keys, self.sizes.columns)
        matrices = (operands.gradient, operands.values_across, self._tile())
        return self._product("pull", sizes, matrices, schedule, ends=(self.rows_end, False))

    def for_query(self, rows: int, keys: int) -> GemmKernel:
        """Describe what some keys add to the gradient for a block of query rows."""
        operands, sizes = self.operands, (rows, self.sizes.inner, keys)
        matrices = (self._tile(), operands.key, operands.for_query)
        part, ends = self.schedule.key_block > 0, (self.rows_end, self.keys_end)
        return self._product("for_query", sizes, matrices, self.schedule.for_query, accumulate=part, ends=ends)

    def for_key(self, rows: int, keys: int) -> GemmKernel:
        """Describe what a block of query rows adds to the gradient for some keys."""
        operands, sizes = self.operands, (keys, self.sizes.inner, rows)
        matrices = (self._transposed(), operands.query, operands.for_key)
        ends = (self.keys_end, self.rows_end)
        return self._product("for_key", sizes, matrices, self.schedule.for_key, accumulate=True, ends=ends)

    def for_value(self, rows: int, keys: int) -> GemmKernel:
        """Describe what a block of query rows adds to the gradient for some values."""
        operands, sizes = self.operands, (keys, self.sizes.columns, rows)
        matrices = (self._transposed(), operands.gradient, operands.for_value)
        ends = (self.keys_end, self.rows_end)
        return self._product("for_value", sizes, matrices, self.schedule.for_value, accumulate=True, ends=ends)

    def _tile(self) -> Matrix:
        return Matrix((), self.score_stride, 1)

    def _transposed(self) -> Matrix:
        return Matrix((), 1, self.score_stride)

    def _product(  # noqa: PLR0913 - what a matmul is, by keyword where it may be left out
        self,
        name: str,
        sizes: tuple[int, int, int],
        matrices: tuple[Matrix, Matrix | PackedMatrix, Matrix],
        schedule: GemmSchedule,
        *,
        accumulate: bool = False,
        ends: tuple[bool, bool],
    ) -> GemmKernel:
        """Describe one of the products; `ends` tells whether the caller says where its rows and its sum end."""
        rows, columns, inner = sizes
        left, right, out = (replace(matrix, batch=()) for matrix in matrices)
        assert not isinstance(left, PackedMatrix)
        assert not isinstance(out, PackedMatrix)
        return GemmKernel(
            name=f"{self.name}.{name}{rows}x{inner}",
            element=self.sizes.element,
            batch=(),
            rows=rows,
            columns=columns,
            inner=inner,
            left=left,
            right=right,
            out=out,
            epilogue=Epilogue(),
            schedule=replace(schedule, tile_row_blocks=ALL_TILES),
            accumulate=accumulate,
            ends=tuple(axis for axis, does_end in zip((0, 2), ends, strict=True) if does_end),
        )

    @property
    def tile_sizes(self) -> None:
        """All tiles are one matrix."""

    @property
    def cycles(self) -> float:
        """Estimate the cycles of the five products and of what is done to scores, as far as keys are seen."""
        sizes, blocks, rows = self.sizes, self.row_blocks, self.row_blocks.size
        keys = sum(self.seen(block) for block in range(blocks.count)) / blocks.count
        element = body_cycles(self.body) + (4 + len(self.inputs)) * MEMORY_CYCLES
        parts = (self.for_query, self.for_key, self.for_value)
        products = [self.scores(rows).cycles, self.pull(rows).cycles]
        products += [part(rows, self.key_step).cycles * sizes.keys / self.key_step for part in parts]
        vectors = rows * (element * keys / self.schedule.scores.lanes + 4 * ROW_CYCLES)
        return self.tile_count * blocks.count * (sum(products) * keys / sizes.keys + vectors)

    @property
    def summary(self) -> str:
        """Say the batch, queries, keys and the numbers of each."""
        return attention_summary(self.sizes, causal=self.schedule.key_block > 0)

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give whole matrices of the batch."""
        sizes, operands, element = self.sizes, self.operands, DTYPE_BYTES[self.sizes.element]

        def seen(strides: Sequence[int], sides: Sequence[tuple[int, int]], item: int = element) -> ByteBox | None:
            offset, steps = cut_range(sizes.batch, strides, begin, end) if sizes.batch else (0, [])
            return box(offset, [*steps, *sides], item)

        def matrix(where: Matrix | PackedMatrix, rows: int, columns: int) -> ByteBox | None:
            if isinstance(where, PackedMatrix):
                return None
            return seen(where.batch, [(where.row, rows), (where.column, columns)])

        across = (sizes.rows, sizes.keys)
        inputs = (
            seen(view.strides[:-2], list(zip(view.strides[-2:], across, strict=True)), DTYPE_BYTES[view.dtype])
            for view in self.inputs
        )
        return (
            matrix(operands.for_query, sizes.rows, sizes.inner),
            matrix(operands.for_key, sizes.keys, sizes.inner),
            matrix(operands.for_value, sizes.keys, sizes.columns),
            matrix(operands.query, sizes.rows, sizes.inner),
            matrix(operands.keys_across, sizes.inner, sizes.keys),
            matrix(operands.gradient, sizes.rows, sizes.columns),
            matrix(operands.values_across, sizes.columns, sizes.keys),
            matrix(operands.key, sizes.keys, sizes.inner),
            *inputs,
        )

    def renamed(self, name: str) -> AttentionGradientKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> None:
        """Never: blocks of rows read keys and values again."""


def gradient_block_rows(sizes: AttentionSizes, target: Target, *, causal: bool) -> int:
    """Give how many rows a block has; 0 where the scores and the pull of so many keys find no room."""
    row_bytes = sizes.keys * DTYPE_BYTES[sizes.element]
    most = MOST_CAUSAL_ROWS if causal else MOST_ROWS
    rows = min(sizes.rows, most, max(SCORE_BYTES // row_bytes, LEAST_ROWS))
    fits = 2 * rows * (row_bytes + target.vector_bytes * 2) <= STACK_BYTES
    return rows if fits and rows >= min(sizes.rows, LEAST_ROWS) else 0


def choose_attention_gradient(
    sizes: AttentionSizes, scores: GemmSchedule, pull: GemmSchedule, target: Target, *, causal: bool
) -> GradientSchedule:
    """Choose how the gradients are computed, where the panels of the first two products are known."""
    rows = gradient_block_rows(sizes, target, causal=causal)
    key_block = KEY_BLOCK if causal and sizes.keys > KEY_BLOCK else 0
    keys = key_block or sizes.keys

    def chosen(product: tuple[int, int, int]) -> GemmSchedule:
        return replace(choose_schedule(sizes.element, product, target), tile_panels=ALL_TILES)

    return GradientSchedule(
        rows,
        scores,
        pull,
        chosen((rows, sizes.inner, keys)),
        chosen((keys, sizes.inner, rows)),
        chosen((keys, sizes.columns, rows)),
        key_block,
    )
