"""Call MXNet's operators on symbols: the functions of `mx.sym`."""

from __future__ import annotations

from typing import Any

from weft.mx.arrays.custom import custom_inputs, properties_of
from weft.mx.arrays.frontend import PAIRS, Namespace, apply_pair, random_functions
from weft.mx.base.element_types import type_name
from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import OPERATORS
from weft.mx.symbols.control_flow import FUNCTIONS
from weft.mx.symbols.names import naming
from weft.mx.symbols.symbol import FRONTEND, Group, Symbol, Variable, load, load_json, var

__all__ = [
    "Custom",
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
    "linspace",
    "load",
    "load_json",
    "ones",
    "op",
    "random",
    "sparse",
    "split_v2",
    "var",
    "zeros",
]

fromjson = load_json
random = Namespace("weft.mx.sym.random", FRONTEND, "_random_", random_functions(FRONTEND))
linalg = Namespace("weft.mx.sym.linalg", FRONTEND, "_linalg_")
contrib = Namespace("weft.mx.sym.contrib", FRONTEND, "_contrib_", FUNCTIONS)
image = Namespace("weft.mx.sym.image", FRONTEND, "_image_")
sparse = Namespace("weft.mx.sym.sparse", FRONTEND, "")
op = _internal = Namespace("weft.mx.sym.op", FRONTEND, "_")


def Custom(*inputs: Symbol, op_type: str, name: str | None = None, **given: Any) -> Symbol:
    """The symbol of an operator that was registered; variables stand for inputs that are missing."""
    options = {key: value for key, value in given.items() if not isinstance(value, Symbol) and key != "attr"}
    properties = properties_of(op_type, options)
    if properties.list_auxiliary_states():
        raise MXNetError(f"custom operator {op_type} has states that move: in a graph, that is not in weft.mx")
    symbols = custom_inputs(properties, inputs, given, Symbol)
    label = naming.managers[-1].get(name, "custom")
    symbols += [var(f"{label}_{each}") for each in properties.list_arguments()[len(symbols) :]]
    found: Symbol = FRONTEND.function("Custom")(
        *symbols, op_type=op_type, name=label, attr=given.get("attr"), **options
    )
    return found


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


def linspace(
    start: float, stop: float, num: int, endpoint: bool = True, name: str | None = None, **given: Any
) -> Symbol:
    """Numbers with equal distances."""
    make, dtype = FRONTEND.function("_linspace"), type_name(given.get("dtype"))
    found: Symbol = make(start=start, stop=stop, num=num, endpoint=endpoint, name=name, dtype=dtype)
    return found


def split_v2(ary: Symbol, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Symbol:
    """Cut an axis into equal parts, or at places."""
    sections = indices_or_sections if isinstance(indices_or_sections, int) else 0
    places = () if sections else (0, *indices_or_sections)
    make = FRONTEND.function("_split_v2")
    found: Symbol = make(ary, indices=places, axis=axis, squeeze_axis=squeeze_axis, sections=sections)
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
