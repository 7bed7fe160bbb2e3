"""Define scatter kernels: elements go to numbered places of an output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

from weft.plan.kernels.expression import DTYPE_BYTES, Instruction, View, body_cycles, vectors_of
from weft.plan.kernels.kernel import Boxes, Kernel, by
from weft.plan.kernels.loop import steady_values, vector_bits
from weft.target import Target

WIDEST_MASKED_VECTOR = 64
TILE_VECTORS = 2
SCATTER_CYCLES = 4.0  # per vector that goes to a place found at run time


@dataclass(frozen=True, slots=True)
class ScatterExpression:
    """What a scatter kernel does for every point of a space, in the order of the points.

    The element of the output at the value `place` (i64, counted in elements) plus the column times `column_stride`
    becomes itself joined with `value` by the op `join`: "add", "minimum", "maximum", "mul"; or `value` alone: "store".
    The output holds what the elements start from. `tables` are the dtypes of buffers that `take` reads anywhere; they
    are parameters after the inputs. Nothing checks that places exist: the planner must.
    """

    name: str
    sizes: tuple[int, ...]
    dtype: str
    column_stride: int
    inputs: tuple[View, ...]
    body: tuple[Instruction, ...]
    place: int
    value: int
    join: str
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScatterKernel(Kernel):
    """A scatter expression with a schedule: elements a vector, columns a tile, and how the rest of a row is done.

    Only columns are shared out, and only where a row's places follow each other, so that what meets in one element is
    joined in the order of the rows whatever the lanes: the bits of sums do not depend on them.
    """

    expression: ScatterExpression
    lanes: int
    column_tile: int
    masked: bool
    ends: tuple[int, ...] = ()  # dimensions, but the last, of which the caller says where they end

    @property
    def name(self) -> str:
        """Name the native function."""
        return self.expression.name

    @property
    def columns(self) -> int:
        """Count the elements along the last dimension."""
        return self.expression.sizes[-1]

    @property
    def rows(self) -> int:
        """Count the points of all dimensions but the last."""
        return prod(self.expression.sizes[:-1])

    @property
    def tile_count(self) -> int:
        """Count the tiles; a space without points has none."""
        return ceil(self.columns / self.column_tile) if self.rows else 0

    @property
    def tile_sizes(self) -> None:
        """All tiles are as many columns but the last."""

    @property
    def cycles(self) -> float:
        """Estimate the cycles of its vectors, computed and joined with what is there."""
        vectors = vectors_of(self.columns, self.lanes, masked=self.masked)
        return self.rows * vectors * (body_cycles(self.expression.body) + SCATTER_CYCLES)

    @property
    def summary(self) -> str:
        """Say how elements are joined, and how many there are."""
        return f"{self.expression.join} of {by(*self.expression.sizes)}"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give nothing narrower than all of it: where elements go is known when they are read."""
        return (None,) * (1 + len(self.expression.inputs) + len(self.expression.tables))

    def renamed(self, name: str) -> ScatterKernel:
        """Give the same kernel under another name, which its expression has."""
        return replace(self, expression=replace(self.expression, name=name))

    def written_over(self, output: int, read: int, target: Target) -> None:
        """Never: the output already holds what the elements start from."""


def plan_scatter(expression: ScatterExpression, target: Target) -> ScatterKernel:
    """Choose vectors and tiles of a scatter expression."""
    columns = max(expression.sizes[-1], 1)
    steady = expression.place in steady_values(expression.inputs, expression.body)
    if not steady or expression.column_stride == 0:
        return ScatterKernel(expression, 1, columns, masked=False)
    dtypes = [expression.dtype, *(line.dtype for line in expression.body)]
    lanes = target.lanes(vector_bits([dtype for dtype in dtypes if DTYPE_BYTES[dtype] <= 4] or dtypes))
    lanes = min(lanes, 1 << (columns - 1).bit_length())
    return ScatterKernel(expression, lanes, lanes * TILE_VECTORS, target.vector_bytes >= WIDEST_MASKED_VECTOR)
