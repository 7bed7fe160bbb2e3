"""Define check kernels: indices must name a place, or nothing else of the call runs.

What reads or writes at an index relies on it: a call whose indices are out of range must not begin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.plan.kernels.expression import MEMORY_CYCLES, ROW_CYCLES, Instruction, View, body_cycles, vectors_of
from weft.plan.kernels.kernel import Boxes, Kernel, by
from weft.plan.kernels.loop import WIDEST_MASKED_VECTOR, LoopExpression, Space, simplified
from weft.target import Target

INDEX_BITS = 64


@dataclass(frozen=True, slots=True)
class CheckKernel(Space, Kernel):
    """An expression of indices (i64), the value `index` of the body, that must all be at least 0 and below `extent`.

    `lanes` elements are compared at once; `masked` says whether the last ones of a row are one vector with a mask, or
    are done one by one.
    """

    name: str
    sizes: tuple[int, ...]
    inputs: tuple[View, ...]
    body: tuple[Instruction, ...]
    index: int
    extent: int
    lanes: int
    masked: bool

    @property
    def tile_count(self) -> int:
        """Count the tiles: one, or none where there is no index."""
        return 1 if self.rows * self.columns else 0

    @property
    def tile_sizes(self) -> None:
        """There is one tile."""

    @property
    def cycles(self) -> float:
        """Estimate the cycles to compare its vectors."""
        vectors = vectors_of(self.columns, self.lanes, masked=self.masked)
        return self.rows * (vectors * (body_cycles(self.body) + len(self.inputs) * MEMORY_CYCLES) + ROW_CYCLES)

    @property
    def summary(self) -> str:
        """Say how many indices there are, and what they must be below."""
        return f"{by(*self.sizes)} below {self.extent}"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give nothing narrower than all of it: checks run before everything else, and nothing runs beside them."""
        return (None,) * len(self.inputs)

    def renamed(self, name: str) -> CheckKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> None:
        """Never: it writes nothing."""


def plan_check(expression: LoopExpression, extent: int, target: Target) -> CheckKernel:
    """Choose the vectors of a check; the expression's one result is the index, its output says only how rows lie."""
    simple = simplified(expression)
    lanes = min(target.lanes(INDEX_BITS), 1 << max(simple.sizes[-1] - 1, 0).bit_length())
    return CheckKernel(
        simple.name,
        simple.sizes,
        simple.inputs,
        simple.body,
        simple.results[0],
        extent,
        lanes,
        target.vector_bytes >= WIDEST_MASKED_VECTOR,
    )
