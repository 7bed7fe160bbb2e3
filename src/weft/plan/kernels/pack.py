"""Pack right operands of products panel by panel, so that a product reads each of them in a row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from weft.plan.kernels.gemm import Matrix
from weft.plan.kernels.kernel import Boxes, Kernel, by
from weft.plan.kernels.walk import Blocks
from weft.target import Target

# Per vector packed: what is packed at a call has just been written, often by another core, and its rows lie far apart.
PACK_CYCLES, PACK_ACROSS_CYCLES = 10.0, 20.0


@dataclass(frozen=True)
class PackKernel(Kernel):
    """The packing of a right operand, from any strides; arguments are packed, source, begin, end.

    The sum may run over more dimensions, outside `inner`: `outer` has the size and the source's stride of each, which
    may be negative; `offset` elements of the source come before the first. With `scale_batch` there is another argument
    behind the source: numbers side by side that the columns are multiplied with, so many steps on for each matrix.
    With `casts`, the source has the first of these dtypes, and its numbers are converted to the others in turn; the
    last is `element`. With a `group`, so many numbers along the sum lie side by side for each column, and the sum is
    filled up with zeros to whole groups; it then runs over `inner` alone.
    """

    name: str
    element: str
    batch: tuple[int, ...]
    inner: int
    columns: int
    source: Matrix
    packed_batch: tuple[int, ...]
    lanes: int
    panels: Blocks
    outer: tuple[tuple[int, int], ...] = ()
    offset: int = 0
    scale_batch: tuple[int, ...] | None = None
    casts: tuple[str, ...] = ()
    group: int = 1
    ends: tuple[int, ...] = ()

    @property
    def read(self) -> str:
        """Give the dtype of the source."""
        return self.casts[0] if self.casts else self.element

    @property
    def depth(self) -> int:
        """Count the steps of the whole sum."""
        return prod(size for size, _ in self.outer) * -(-self.inner // self.group) * self.group

    @property
    def tile_count(self) -> int:
        """Count the panels of all matrices."""
        return prod(self.batch) * self.panels.count

    @property
    def tile_sizes(self) -> None:
        """A panel is as much as another, but for the last."""

    @property
    def cycles(self) -> float:
        """Estimate the cycles to fetch and store its vectors."""
        each = PACK_CYCLES if self.source.column == 1 else PACK_ACROSS_CYCLES
        return prod(self.batch) * self.depth * self.columns * each / self.lanes

    @property
    def summary(self) -> str:
        """Say the batch, rows and columns that are packed."""
        return by(*self.batch, self.depth, self.columns)

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give nothing narrower than all of it: whoever reads a packed operand reads all of it."""
        return (None,) * (2 if self.scale_batch is None else 3)

    def renamed(self, name: str) -> PackKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> None:
        """Never: a panel is written in another order than it is read."""


def in_words(kernel: PackKernel, offset: int) -> PackKernel:
    """Give a packing in groups as one of words, where groups are words side by side in the source from an offset on."""
    group, source = kernel.group, kernel.source
    numbers = (kernel.inner, offset, source.column, *source.batch, *kernel.packed_batch)
    if group == 1 or kernel.casts or source.row != 1 or any(number % group for number in numbers):
        return kernel
    return replace(
        kernel,
        element="i32",
        inner=kernel.inner // group,
        source=Matrix(tuple(step // group for step in source.batch), 1, source.column // group),
        packed_batch=tuple(step // group for step in kernel.packed_batch),
        group=1,
    )
