"""Collect the lifting rules in one table: each PyTorch operator that small ops can express, with the rule that does it.

An operator without a rule stays a `library` value. One that writes its first argument (`add_`) needs no row: it has
that of its twin which does not, and the write is put back along the path of views.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from weft.errors import InternalError
from weft.trace.lift.activations import ACTIVATIONS
from weft.trace.lift.arguments import Arguments, Rule, Rules
from weft.trace.lift.attention import ATTENTION
from weft.trace.lift.convolutions import CONVOLUTIONS
from weft.trace.lift.elementwise import ELEMENTWISE
from weft.trace.lift.expression import Expression
from weft.trace.lift.indexing import BAGS, INDEXING
from weft.trace.lift.losses import LOSSES
from weft.trace.lift.norms import NORMS
from weft.trace.lift.products import PRODUCTS
from weft.trace.lift.rearranging import REARRANGING, RESAMPLING
from weft.trace.lift.recurrent import CELLS, RECURRENT
from weft.trace.lift.reductions import REDUCTIONS, SORTING
from weft.trace.lift.views import VIEWS
from weft.trace.lift.windows import WINDOWS

ONE: Rules = {**ELEMENTWISE, **REDUCTIONS}
SAME: Mapping[str, str] = {}
OTHER: Mapping[str, str] = {"scalar": "other", "scalars": "other"}
VALUE: Mapping[str, str] = {"scalars": "value"}
ENDS: Mapping[str, str] = {"tensors1": "end", "weights": "weight"}


def for_each(target: str, renamed: Mapping[str, str] = SAME) -> Rule:
    """Make the rule of a list operator from the operator on one tensor; `renamed` gives the names it has there."""

    def rule(arguments: Arguments) -> tuple[Expression | None, ...]:
        found: list[Expression | None] = []
        for index in range(len(arguments.tensor_list("self"))):
            result = ONE[target](arguments.of_one(target, index, renamed))
            found += [result] if isinstance(result, Expression) else result
        return tuple(found)

    return rule


UNARY = (
    *("abs", "neg", "sign", "sqrt", "rsqrt", "reciprocal", "exp", "expm1", "log", "log10", "log1p", "log2", "floor"),
    *("ceil", "round", "trunc", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "erf", "erfc"),
    *("sigmoid", "frac", "zero"),
)
BOUNDS = {"maximum": "aten.maximum.default", "minimum": "aten.minimum.default"}
CLAMPS = {"clamp_max": "aten.minimum.default", "clamp_min": "aten.maximum.default"}

LISTS: Rules = {
    **{f"aten._foreach_{name}.default": for_each(f"aten.{name}.default") for name in UNARY},
    **{
        f"aten._foreach_{name}.{variant}": for_each(f"aten.{name}.Tensor", OTHER)
        for name in ("add", "sub", "mul", "div")
        for variant in ("Scalar", "List", "ScalarList")
    },
    **{f"aten._foreach_{name}.Tensor": for_each(f"aten.{name}.Tensor") for name in ("add", "mul", "div")},
    **{
        f"aten._foreach_{name}.{variant}": for_each(target, OTHER)
        for name, target in {**BOUNDS, **CLAMPS}.items()
        for variant in ("Scalar", "List", "ScalarList")
    },
    **{
        f"aten._foreach_{name}.{variant}": for_each(f"aten.{name}.default", VALUE)
        for name in ("addcmul", "addcdiv")
        for variant in ("Scalar", "ScalarList")
    },
    "aten._foreach_lerp.Scalar": for_each("aten.lerp.Scalar", ENDS),
    "aten._foreach_lerp.ScalarList": for_each("aten.lerp.Scalar", ENDS),
    "aten._foreach_lerp.List": for_each("aten.lerp.Tensor", ENDS),
    "aten._foreach_pow.Scalar": for_each("aten.pow.Tensor_Scalar"),
    "aten._foreach_pow.ScalarList": for_each("aten.pow.Tensor_Scalar"),
    "aten._foreach_pow.List": for_each("aten.pow.Tensor_Tensor"),
    "aten._foreach_norm.Scalar": for_each("aten.linalg_vector_norm.default"),
    "aten._foreach_copy.default": for_each("aten.copy.default"),
}


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
