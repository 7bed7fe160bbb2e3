"""The rule table: each PyTorch operator that small ops can express -> the rule that does it.

An operator without a rule stays a `library` value. One that writes its first argument (`add_`) needs no row: it has
that of its twin which does not, and the write is put back along the path of views.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from weft.errors import InternalError
from weft.trace.lift_activations import ACTIVATIONS
from weft.trace.lift_arguments import Rule, Rules
from weft.trace.lift_attention import ATTENTION
from weft.trace.lift_bags import BAGS
from weft.trace.lift_cells import CELLS
from weft.trace.lift_convolutions import CONVOLUTIONS
from weft.trace.lift_elementwise import ELEMENTWISE
from weft.trace.lift_indexing import INDEXING
from weft.trace.lift_lists import LISTS
from weft.trace.lift_losses import LOSSES
from weft.trace.lift_norms import NORMS
from weft.trace.lift_products import PRODUCTS
from weft.trace.lift_rearranging import REARRANGING
from weft.trace.lift_recurrent import RECURRENT
from weft.trace.lift_reductions import REDUCTIONS
from weft.trace.lift_resampling import RESAMPLING
from weft.trace.lift_sorting import SORTING
from weft.trace.lift_views import VIEWS
from weft.trace.lift_windows import WINDOWS


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
