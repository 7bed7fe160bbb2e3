"""Names of mathematical functions -> the rules that compute them on vectors, at most 2 units from the exact result.

FUNCTIONS has a row per function. float rules work in float where that is accurate enough and on the way through
double where it is not; in double, what has no row of its own is the C library's function, called for every lane.
"""

from collections.abc import Sequence

from weft.codegen import (
    vecmath_error,
    vecmath_exponential,
    vecmath_logarithm,
    vecmath_remainder,
    vecmath_trigonometry,
)
from weft.codegen.module import FunctionWriter
from weft.codegen.register import Register, element_of
from weft.codegen.vecmath_core import Rule, per_lane, through_double
from weft.errors import InternalError


def library(name: str) -> Rule:
    """Make the rule that calls a function of the C library for every lane."""

    def rule(f: FunctionWriter, *operands: Register) -> Register:
        return per_lane(f, name, operands)

    return rule


FUNCTIONS: dict[str, dict[str, Rule]] = {
    "exp": {"float": vecmath_exponential.exp, "double": vecmath_exponential.exp},
    "exp2": {"float": vecmath_exponential.exp2, "double": vecmath_exponential.exp2},
    "expm1": {"float": vecmath_exponential.expm1, "double": vecmath_exponential.expm1},
    "log": {"float": vecmath_logarithm.log, "double": vecmath_logarithm.log},
    "log1p": {"float": vecmath_logarithm.log1p, "double": vecmath_logarithm.log1p},
    "log2": {"float": vecmath_logarithm.log2, "double": vecmath_logarithm.log2},
    "pow": {"float": through_double(vecmath_logarithm.power), "double": library("pow")},
    "sigmoid": {"float": vecmath_exponential.sigmoid, "double": vecmath_exponential.sigmoid},
    "tanh": {"float": vecmath_exponential.tanh, "double": vecmath_exponential.tanh},
    "sinh": {"float": through_double(vecmath_exponential.sinh), "double": library("sinh")},
    "cosh": {"float": through_double(vecmath_exponential.cosh), "double": library("cosh")},
    "sin": {"float": vecmath_trigonometry.sin, "double": vecmath_trigonometry.sin_double},
    "cos": {"float": vecmath_trigonometry.cos, "double": vecmath_trigonometry.cos_double},
    "tan": {"float": vecmath_trigonometry.tan, "double": library("tan")},
    "asin": {"float": through_double(vecmath_trigonometry.asin), "double": library("asin")},
    "acos": {"float": through_double(vecmath_trigonometry.acos), "double": library("acos")},
    "atan": {"float": through_double(vecmath_trigonometry.atan), "double": library("atan")},
    "atan2": {"float": through_double(vecmath_trigonometry.atan2), "double": library("atan2")},
    "erf": {"float": vecmath_error.erf, "double": library("erf")},
    "erfc": {"float": through_double(vecmath_error.erfc), "double": library("erfc")},
    "fmod": {"float": vecmath_remainder.fmod_float, "double": vecmath_remainder.fmod_double},
    "log10": {"float": through_double(vecmath_logarithm.log10), "double": library("log10")},
    "asinh": {"float": through_double(vecmath_logarithm.asinh), "double": library("asinh")},
    "acosh": {"float": through_double(vecmath_logarithm.acosh), "double": library("acosh")},
    "atanh": {"float": through_double(vecmath_logarithm.atanh), "double": library("atanh")},
}


def emit_function(f: FunctionWriter, name: str, operands: Sequence[Register]) -> Register:
    """Compute a function of FUNCTIONS on scalars or vectors of float or double."""
    rules = FUNCTIONS.get(name, {})
    rule = rules.get(element_of(operands[0].kind))
    if rule is None:
        raise InternalError(f"no rule computes {name} on {operands[0].kind}", why="there are: " + ", ".join(FUNCTIONS))
    return rule(f, *operands)
