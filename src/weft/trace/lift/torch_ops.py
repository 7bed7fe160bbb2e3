"""The rule table: each PyTorch operator that small ops can express -> the rule that does it.

An operator without a rule stays a `library` value. One that writes its first argument (`add_`) needs no row: it has
that of its twin which does not, and the write is put back along the path of views.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from weft.errors import InternalError
from weft.trace.lift.activations import ACTIVATIONS
from weft.trace.lift.arguments import Rule, Rules
from weft.trace.lift.attention import ATTENTION
from weft.trace.lift.bags import BAGS
from weft.trace.lift.cells import CELLS
from weft.trace.lift.convolutions import CONVOLUTIONS
from weft.trace.lift.elementwise import ELEMENTWISE
from weft.trace.lift.indexing import INDEXING
from weft.trace.lift.lists import LISTS
from weft.trace.lift.losses import LOSSES
from weft.trace.lift.norms import NORMS
from weft.trace.lift.products import PRODUCTS
from weft.trace.lift.rearranging import REARRANGING
from weft.trace.lift.recurrent import RECURRENT
from weft.trace.lift.reductions import REDUCTIONS
from weft.trace.lift.resampling import RESAMPLING
from weft.trace.lift.sorting import SORTING
from weft.trace.lift.views import VIEWS
from weft.trace.lift.windows import WINDOWS


def merged(families: Iterable[Rules]) -> Rules:
    """Put tables together; an operator named twice is a mistake."""
    found: dict[str, Rule] = {}
    for family in families:
        for target, rule in family.items():
            if target in found:
                raise InternalError(f"two rules for the operator {target}")
            found[target] = rule
    return MappingProxyType(found)


RULES: Rules = merged(
    (
        ELEMENTWISE,
        ACTIVATIONS,
        VIEWS,
        REDUCTIONS,
        PRODUCTS,
        CONVOLUTIONS,
        WINDOWS,
        RESAMPLING,
        NORMS,
        LOSSES,
        INDEXING,
        BAGS,
        ATTENTION,
        RECURRENT,
        CELLS,
        REARRANGING,
        LISTS,
        SORTING,
    )
)
