"""Call MXNet's operators on symbols: the functions of `mx.sym`."""

from __future__ import annotations

from typing import Any

from weft.mx.arrays.frontend import PAIRS, Namespace, apply_pair, random_functions
from weft.mx.base.element_types import type_name
from weft.mx.operators.table import OPERATORS
from weft.mx.symbols.symbol import FRONTEND, Group, Symbol, Variable, load, load_json, var

__all__ = [
    "Group",
    "Symbol",
    "Variable",
    "contrib",
    "fromjson",
    "image",
    "linalg",
    "load",
    "load_json",
    "ones",
    "op",
    "random",
    "sparse",
    "var",
    "zeros",
]

fromjson = load_json
random = Namespace("weft.mx.sym.random", FRONTEND, "_random_", random_functions(FRONTEND))
linalg = Namespace("weft.mx.sym.linalg", FRONTEND, "_linalg_")
contrib = Namespace("weft.mx.sym.contrib", FRONTEND, "_contrib_")
image = Namespace("weft.mx.sym.image", FRONTEND, "_image_")
sparse = Namespace("weft.mx.sym.sparse", FRONTEND, "")
op = _internal = Namespace("weft.mx.sym.op", FRONTEND, "_")


def zeros(shape: Any, dtype: Any = None, **given: Any) -> Symbol:
    """All 0."""
    found: Symbol = FRONTEND.function("_zeros")(shape=shape, dtype=type_name(dtype), **given)
    return found


def ones(shape: Any, dtype: Any = None, **given: Any) -> Symbol:
    """All 1."""
    found: Symbol = FRONTEND.function("_ones")(shape=shape, dtype=type_name(dtype), **given)
    return found


def _pair_function(name: str) -> Any:
    def function(left: Any, right: Any) -> Any:
        return apply_pair(FRONTEND, PAIRS[name], left, right)

    function.__name__ = function.__qualname__ = name
    return function


for _name in ("maximum", "minimum", "hypot", "power"):
    globals()[_name] = _pair_function(_name)
pow = globals()["power"]


def __getattr__(name: str) -> Any:
    if name in OPERATORS:
        return FRONTEND.function(name)
    raise AttributeError(f"module 'weft.mx.sym' has no attribute '{name}'")
