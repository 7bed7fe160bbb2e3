"""Make the functions of `nd` and `sym` from the rows of the operators: one description, two ways to be called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from weft.mx.base.context import Context
from weft.mx.base.element_types import type_name
from weft.mx.base.numpy_mode import is_np_array
from weft.mx.operators import RULES
from weft.mx.operators.table import OPERATORS, Operator, has_negative_zero, operator

MAY_BE_NONE = {"axis", "end"}  # parameters of which None says something
MOST_PREPARED = 1024  # forms of calls of one operator
Number = (int, float, np.generic)
Call = Callable[[Operator, Sequence[Any], Mapping[str, Any], Any, "str | None"], Any]


@dataclass(frozen=True, eq=False)
class Frontend:
    """What `nd` and `sym` differ in: what an array is, and what a call does (row, arrays, parameters, out, name)."""

    array: type
    label: str
    call: Call
    alike: Mapping[str, str] = field(default_factory=dict)  # operators that take the place of those that broadcast
    # Of a row, parameters and a number of arrays: a call that may be run at once, or None.
    prepare: Callable[[Operator, Mapping[str, Any], int], Any] | None = None

    def function(self, name: str) -> Callable[..., Any]:
        """The function of an operator."""
        return _function(self, name)


def plain(value: Any) -> Any:
    """A parameter as rows read it: devices and element types by their names."""
    if isinstance(value, Context):
        return str(value)
    if isinstance(value, (type, np.dtype, torch.dtype)):
        return type_name(value)
    return value


@cache
def _function(frontend: Frontend, name: str) -> Callable[..., Any]:
    row = operator(name)
    _ = row.rule  # a missing operator is an error where it is named
    order = [*([] if row.variadic else row.inputs), *row.parameters]
    name_called = name
    prepared_calls = _PreparedCalls(frontend, row) if frontend.prepare is not None else None

    def call(*args: Any, out: Any = None, name: str | None = None, **given: Any) -> Any:
        if prepared_calls is not None and out is None:
            done = prepared_calls.run(args, given)
            if done is not None:
                return done
        attributes = given.pop("attr", None)
        arrays: list[Any] = []
        if row.variadic:
            arrays = list(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else list(args)
            arrays += [given.pop(key) for key in list(given) if isinstance(given[key], frontend.array)]
            for array in arrays:
                if not isinstance(array, frontend.array):
                    have = "have NDArray type" if frontend.label == "NDArray" else "be Symbol instances"
                    raise AssertionError(f"Positional arguments must {have}, but got {array}")  # noqa: TRY004  # MXNet's
        else:
            given = {**dict(zip(order, args, strict=False)), **given}
            arrays = [given.pop(key, None) for key in row.inputs]
            while arrays and arrays[-1] is None:
                arrays.pop()
            if frontend.label == "NDArray":
                arrays = [array for array in arrays if array is not None]
        for key, array in zip(row.inputs, arrays, strict=False):
            if array is not None and not isinstance(array, frontend.array):
                raise _wrong_kind(frontend, key, array)
        parameters = {key: plain(value) for key, value in given.items() if value is not None or key in MAY_BE_NONE}
        if frontend.label == "Symbol":
            parameters |= {"__called__": name_called} | ({"__attr__": attributes} if attributes else {})
        return frontend.call(row, arrays, parameters, out, name)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{row.name}({', '.join(order)}), as in MXNet 1.9.1."
    return call


class _PreparedCalls:
    """The calls of an operator that may be run at once, by their form: how many arrays, and which parameters."""

    def __init__(self, frontend: Frontend, row: Operator) -> None:
        self._array, self._prepare, self._row = frontend.array, frontend.prepare, row
        self._by_form: dict[Any, Any] = {}

    def run(self, arrays: Any, given: dict[str, Any]) -> Any:
        """What a call gives; None if it is to go the longer way, which knows all forms of calls."""
        for array in arrays:
            if array.__class__ is not self._array:
                return None
        if has_negative_zero(given):
            return None
        form = (len(arrays), *given.items())
        try:
            prepared = self._by_form.get(form, form)
        except TypeError:  # a list was given, say
            return None
        if prepared is form:
            prepared = self._prepared(form, given)
        return None if prepared is None else one_or_all(prepared.run(arrays))

    def _prepared(self, form: Any, given: dict[str, Any]) -> Any:
        assert self._prepare is not None
        if any(isinstance(value, self._array) for value in given.values()):
            return None
        prepared = self._prepare(self._row, {name: plain(value) for name, value in given.items()}, form[0])
        if len(self._by_form) > MOST_PREPARED:
            self._by_form.clear()
        self._by_form[form] = prepared
        return prepared


def one_or_all(results: list[Any] | None) -> Any:
    """The only result, or a list of several, as functions of MXNet give them."""
    return results[0] if results is not None and len(results) == 1 else results


def _wrong_kind(frontend: Frontend, key: str, array: Any) -> Exception:
    if frontend.label == "NDArray":
        return AssertionError(f"Argument {key} must have NDArray type, but got {array}")
    return AssertionError(f"Argument {key} must be Symbol instances, but got {array}")


@dataclass(frozen=True)
class Pair:
    """The operators behind a function of two arguments, of which either may be a number."""

    arrays: str
    with_number: str
    number_first: str | None
    numbers: Callable[[Any, Any], Any]


PAIRS = {
    "add": Pair("broadcast_add", "_plus_scalar", None, lambda x, y: x + y),
    "subtract": Pair("broadcast_sub", "_minus_scalar", "_rminus_scalar", lambda x, y: x - y),
    "multiply": Pair("broadcast_mul", "_mul_scalar", None, lambda x, y: x * y),
    "divide": Pair("broadcast_div", "_div_scalar", "_rdiv_scalar", lambda x, y: x / y),
    "true_divide": Pair("broadcast_div", "_div_scalar", "_rdiv_scalar", lambda x, y: x / y),
    "modulo": Pair("broadcast_mod", "_mod_scalar", "_rmod_scalar", lambda x, y: x % y),
    "power": Pair("broadcast_power", "_power_scalar", "_rpower_scalar", lambda x, y: x**y),
    "maximum": Pair("broadcast_maximum", "_maximum_scalar", None, max),
    "minimum": Pair("broadcast_minimum", "_minimum_scalar", None, min),
    "hypot": Pair("broadcast_hypot", "_hypot_scalar", None, np.hypot),
    "equal": Pair("broadcast_equal", "_equal_scalar", None, lambda x, y: float(x == y)),
    "not_equal": Pair("broadcast_not_equal", "_not_equal_scalar", None, lambda x, y: float(x != y)),
    "greater": Pair("broadcast_greater", "_greater_scalar", "_lesser_scalar", lambda x, y: float(x > y)),
    "greater_equal": Pair(
        "broadcast_greater_equal", "_greater_equal_scalar", "_lesser_equal_scalar", lambda x, y: float(x >= y)
    ),
    "lesser": Pair("broadcast_lesser", "_lesser_scalar", "_greater_scalar", lambda x, y: float(x < y)),
    "lesser_equal": Pair(
        "broadcast_lesser_equal", "_lesser_equal_scalar", "_greater_equal_scalar", lambda x, y: float(x <= y)
    ),
    "logical_and": Pair("broadcast_logical_and", "_logical_and_scalar", None, lambda x, y: float(bool(x and y))),
    "logical_or": Pair("broadcast_logical_or", "_logical_or_scalar", None, lambda x, y: float(bool(x or y))),
    "logical_xor": Pair("broadcast_logical_xor", "_logical_xor_scalar", None, lambda x, y: float(bool(x) != bool(y))),
}
# In Python's arithmetic: the function, and the pair it stands for.
ARITHMETIC = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "div": "divide",
    "mod": "modulo",
    "pow": "power",
}
COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "lt": "lesser",
    "le": "lesser_equal",
}


def _number(given: Any) -> Any:
    """A number as a parameter; True is 1."""
    return int(given) if isinstance(given, (bool, np.bool_)) else given


def apply_pair(frontend: Frontend, pair: Pair, left: Any, right: Any, out: Any = None) -> Any:
    """Call a function of two arguments; TypeError if one is neither an array nor a number."""
    if isinstance(left, frontend.array):
        if isinstance(right, frontend.array):
            name = pair.arrays if is_np_array() else frontend.alike.get(pair.arrays, pair.arrays)
            return frontend.call(operator(name), (left, right), {}, out, None)
        if isinstance(right, Number):
            return frontend.call(operator(pair.with_number), (left,), {"scalar": _number(right)}, out, None)
    elif isinstance(left, Number):
        if isinstance(right, frontend.array):
            name = pair.number_first or pair.with_number
            return frontend.call(operator(name), (right,), {"scalar": _number(left)}, out, None)
        if isinstance(right, Number):
            return pair.numbers(left, right)
        raise TypeError(f"type {type(right)} not supported")
    raise TypeError(f"type {type(right if isinstance(left, frontend.array) else left)} not supported")


def give_arithmetic(frontend: Frontend, *, in_place: bool) -> None:
    """Give the class of a frontend Python's operators."""
    for python, name in (ARITHMETIC | COMPARISONS).items():
        pair = PAIRS[name]
        setattr(frontend.array, f"__{python}__", _method(frontend, pair, swapped=False))
        if python in ARITHMETIC:
            setattr(frontend.array, f"__r{python}__", _method(frontend, pair, swapped=True))
        if in_place and python in ARITHMETIC:
            setattr(frontend.array, f"__i{python}__", _in_place(frontend, pair))


def _method(frontend: Frontend, pair: Pair, *, swapped: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return apply_pair(frontend, pair, other, self) if swapped else apply_pair(frontend, pair, self, other)

    if frontend.prepare is None:
        return method
    with_array = frontend.function(frontend.alike.get(pair.arrays, pair.arrays))
    with_number = frontend.function((pair.number_first or pair.with_number) if swapped else pair.with_number)

    def method_at_once(self: Any, other: Any) -> Any:
        kind = other.__class__
        if kind is float or kind is int:
            return with_number(self, scalar=other)
        if kind is frontend.array:
            return with_array(other, self) if swapped else with_array(self, other)
        return method(self, other)

    return method_at_once


def _in_place(frontend: Frontend, pair: Pair) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return apply_pair(frontend, pair, self, other, self)

    return method


# The operators that are methods of arrays and symbols, too.
METHODS = """
abs arccos arccosh arcsin arcsinh arctan arctanh argmax argmax_channel argmin argsort broadcast_axes
broadcast_like cbrt ceil clip cos cosh degrees depth_to_space diag exp expand_dims expm1 fix flatten flip
floor log log10 log1p log2 log_softmax max mean min nanprod nansum norm one_hot ones_like pad pick prod
radians rcbrt reciprocal relu repeat reshape_like rint round rsqrt shape_array sigmoid sign sin sinh
size_array slice slice_axis slice_like softmax softmin sort space_to_depth split sqrt square squeeze sum
swapaxes take tan tanh tile topk transpose trunc zeros_like
""".split()  # noqa: SIM905  # words in lines read better than a column of them


def give_methods(frontend: Frontend) -> None:
    """Give the class of a frontend the operators that are methods."""
    for name in METHODS:
        setattr(frontend.array, name, _operator_method(frontend, name))


def _operator_method(frontend: Frontend, name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **given: Any) -> Any:
        if name == "transpose" and args:  # transpose(1, 0) as well as transpose((1, 0))
            args = ((args if isinstance(args[0], int) else args[0]),)
        return frontend.function(name)(self, *args, **given)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"{name} of this array."
    return method


class Namespace:
    """A part of `nd` or `sym`, such as `linalg`, whose functions are operators with a prefix."""

    def __init__(self, name: str, frontend: Frontend, prefix: str, own: Mapping[str, Any] | None = None) -> None:
        self.__name__ = name
        self._frontend = frontend
        self._prefix = prefix
        self.__dict__.update(own or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for full in (self._prefix + name, name):
            if full in OPERATORS:
                return self._frontend.function(full)
        raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")

    def __dir__(self) -> list[str]:
        return [*self.__dict__, *(name.removeprefix(self._prefix) for name in RULES if name.startswith(self._prefix))]

    def __repr__(self) -> str:
        return f"<module '{self.__name__}'>"


# Of each distribution: its parameters with their defaults, and whether arrays may stand for them.
DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "uniform": {"low": 0, "high": 1},
    "normal": {"loc": 0, "scale": 1},
    "gamma": {"alpha": 1, "beta": 1},
    "exponential": {"scale": 1},
    "poisson": {"lam": 1},
    "negative_binomial": {"k": 1, "p": 1},
    "generalized_negative_binomial": {"mu": 1, "alpha": 1},
}


def random_functions(frontend: Frontend) -> dict[str, Callable[..., Any]]:
    """The functions that draw, of numbers or of arrays of parameters."""
    found = {name: _distribution(frontend, name, defaults) for name, defaults in DISTRIBUTIONS.items()}

    def randn(*shape: int, **given: Any) -> Any:
        given = {"loc": given.pop("loc", 0), "scale": given.pop("scale", 1), **given}
        return found["normal"](shape=shape or None, **given)

    def randint(low: int, high: int, shape: Any = None, dtype: Any = None, **given: Any) -> Any:
        return frontend.function("_random_randint")(low=low, high=high, shape=shape, dtype=dtype, **given)

    def multinomial(data: Any, shape: Any = None, get_prob: bool = False, **given: Any) -> Any:
        return frontend.function("_sample_multinomial")(data, shape=shape or (), get_prob=get_prob, **given)

    def shuffle(data: Any, **given: Any) -> Any:
        return frontend.function("_shuffle")(data, **given)

    likes = {f"{name}_like": frontend.function(f"_random_{name}_like") for name in DISTRIBUTIONS}
    return {**found, **likes, "randn": randn, "randint": randint, "multinomial": multinomial, "shuffle": shuffle}


def _distribution(frontend: Frontend, name: str, defaults: Mapping[str, Any]) -> Callable[..., Any]:
    names = [*defaults, "shape", "dtype", "ctx", "out"]

    def draw(*args: Any, **given: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **given}
        values = {key: given.pop(key, default) for key, default in defaults.items()}
        if name == "exponential":
            scale = values.pop("scale")
            values["lam"] = 1.0 / scale
        arrays = [value for value in values.values() if isinstance(value, frontend.array)]
        out, label = given.pop("out", None), given.pop("name", None)
        if arrays and len(arrays) < len(values):
            raise ValueError("Distribution parameters must all have the same type, but got both an array and a number.")
        given = {key: plain(value) for key, value in given.items() if value is not None}
        if arrays:
            given.pop("ctx", None)
            return frontend.call(operator(f"_sample_{name}"), arrays, given, out, label)
        if out is not None and "shape" not in given:
            given["shape"] = out.shape
        return frontend.call(operator(f"_random_{name}"), [], {**values, **given}, out, label)

    draw.__name__ = draw.__qualname__ = name
    return draw
