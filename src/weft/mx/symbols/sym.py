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
    "arange",
    "contrib",
    "eye",
    "fromjson",
    "full",
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


def full(shape: Any, val: float, dtype: Any = None, **given: Any) -> Symbol:
    """One number."""
    found: Symbol = FRONTEND.function("_full")(shape=shape, value=float(val), dtype=type_name(dtype), **given)
    return found


def arange(
    start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, name: str | None = None, **given: Any
) -> Symbol:
    """Numbers with a step between them."""
    options = {"infer_range": given.get("infer_range", False), "dtype": type_name(given.get("dtype"))}
    make = FRONTEND.function("_arange")
    found: Symbol = make(start=start, stop=stop, step=step, repeat=repeat, name=name, **options)
    return found


def eye(N: int, M: int = 0, k: int = 0, dtype: Any = None, **given: Any) -> Symbol:
    """1 on a diagonal."""
    found: Symbol = FRONTEND.function("_eye")(N=N, M=M, k=k, dtype=type_name(dtype), **given)
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


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for name in OPERATORS if not name.startswith("_"))})
