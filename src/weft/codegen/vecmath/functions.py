"""Give the rule of each mathematical function on vectors, at most 2 units from the exact result: a row per function.

float rules work in float where that is accurate enough and on the way through double where it is not; in double, what
has no rule of its own is the C library's function, called for every lane.
"""

from collections.abc import Sequence

from weft.codegen.llvm.module import FunctionWriter, Register, element_of
from weft.codegen.vecmath import exponential, remainder, trigonometry
from weft.codegen.vecmath.core import Rule, per_lane, through_double
from weft.errors import InternalError


def library(name: str) -> Rule:
    """Make the rule that calls a function of the C library for every lane."""

    def rule(f: FunctionWriter, *operands: Register) -> Register:
        return per_lane(f, name, operands)

    return rule


FUNCTIONS: dict[str, dict[str, Rule]] = {
    "exp": {"float": exponential.exp, "double": exponential.exp},
    "exp2": {"float": exponential.exp2, "double": exponential.exp2},
    "expm1": {"float": exponential.expm1, "double": exponential.expm1},
    "log": {"float": exponential.log, "double": exponential.log},
    "log1p": {"float": exponential.log1p, "double": exponential.log1p},
    "log2": {"float": exponential.log2, "double": exponential.log2},
    "pow": {"float": through_double(exponential.power), "double": library("pow")},
    "sigmoid": {"float": exponential.sigmoid, "double": exponential.sigmoid},
    "tanh": {"float": exponential.tanh, "double": exponential.tanh},
    "sinh": {"float": through_double(exponential.sinh), "double": library("sinh")},
    "cosh": {"float": through_double(exponential.cosh), "double": library("cosh")},
    "sin": {"float": trigonometry.sin, "double": trigonometry.sin_double},
    "cos": {"float": trigonometry.cos, "double": trigonometry.cos_double},
    "tan": {"float": trigonometry.tan, "double": library("tan")},
    "asin": {"float": through_double(trigonometry.asin), "double": library("asin")},
    "acos": {"float": through_double(trigonometry.acos), "double": library("acos")},
    "atan": {"float": through_double(trigonometry.atan), "double": library("atan")},
    "atan2": {"float": through_double(trigonometry.atan2), "double": library("atan2")},
    "erf": {"float": exponential.erf, "double": library("erf")},
    "erfc": {"float": through_double(exponential.erfc), "double": library("erfc")},
    "fmod": {"float": remainder.fmod_float, "double": remainder.fmod_double},
    "log10": {"float": through_double(exponential.log10), "double": library("log10")},
    "asinh": {"float": through_double(exponential.asinh), "double": library("asinh")},
    "acosh": {"float": through_double(exponential.acosh), "double": library("acosh")},
    "atanh": {"float": through_double(exponential.atanh), "double": library("atanh")},
}


def emit_function(f: FunctionWriter, name: str, operands: Sequence[Register]) -> Register:
    """Compute a function of FUNCTIONS on scalars or vectors of float or double."""
    rules = FUNCTIONS.get(name, {})
    rule = rules.get(element_of(operands[0].kind))
    if rule is None:
        raise InternalError(f"no rule computes {name} on {operands[0].kind}", why="there are: " + ", ".join(FUNCTIONS))
    return rule(f, *operands)
