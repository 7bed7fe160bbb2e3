"""Elements that go to numbered places of an output -> scatter kernels with their tiles and vectors."""

from dataclasses import dataclass
from math import ceil, prod

from weft.plan.kernels.expression import DTYPE_BYTES, Instruction, View
from weft.plan.kernels.loop import steady_values, vector_bits
from weft.target import Target

WIDEST_MASKED_VECTOR = 64
TILE_VECTORS = 2


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
class ScatterKernel:
    """A scatter expression with a schedule: elements a vector, columns a tile, and how the rest of a row is done.

    Only columns are shared out, and only where a row's places follow each other, so that what meets in one element is
    joined in the order of the rows whatever the lanes: the bits of sums do not depend on them.
    """

    expression: ScatterExpression
    lanes: int
    column_tile: int
    masked: bool

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
