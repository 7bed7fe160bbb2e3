"""Indices that must name a place -> check kernels, which run before all others of a call and stop it.

What reads or writes at an index relies on it: a call whose indices are out of range must not begin.
"""

from dataclasses import dataclass

from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.loop import WIDEST_MASKED_VECTOR, LoopExpression, Space, simplified
from weft.target import Target

INDEX_BITS = 64


@dataclass(frozen=True, slots=True)
class CheckKernel(Space):
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
