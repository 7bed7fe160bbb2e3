"""The functions of `mx.np`, a row each: how torch computes them; many are methods of arrays too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.mx.arrays.ndarray import NDArray
from weft.mx.base.element_types import torch_type
from weft.mx.numpy.array import NumpyNDArray, array, pair_of, run, taken

Axes = Any

# Of each element.
OF_ELEMENTS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(torch, name)
        for name in (
            *("exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "square", "sin", "cos", "tan", "sinh", "cosh"),
            *("tanh", "arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "abs", "absolute", "sign"),
            *("floor", "ceil", "trunc", "fix", "negative", "reciprocal", "deg2rad", "rad2deg", "isnan", "isinf"),
            *("isfinite", "logical_not", "bitwise_not", "isposinf", "isneginf"),
        )
    },
    "fabs": torch.abs,
    "rint": torch.round,
    "degrees": torch.rad2deg,
    "radians": torch.deg2rad,
    "cbrt": lambda x: torch.sign(x) * torch.abs(x).pow(1 / 3),
}
# Of the elements of two arrays, of which one may be a number.
OF_PAIRS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(torch, name)
        for name in (
            *(
                "add",
                "subtract",
                "multiply",
                "divide",
                "true_divide",
                "remainder",
                "maximum",
                "minimum",
                "fmax",
                "fmin",
            ),
            *("hypot", "arctan2", "copysign", "logical_and", "logical_or", "logical_xor", "bitwise_and"),
            *(
                "bitwise_or",
                "bitwise_xor",
                "lcm",
                "ldexp",
                "not_equal",
                "greater",
                "greater_equal",
                "less",
                "less_equal",
            ),
        )
    },
    "mod": torch.remainder,
    "power": torch.pow,
    "equal": torch.eq,
}
# Those that are operators of Python, which know what a number does to an element type.
AS_OPERATORS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "truediv", "true_divide": "truediv", "mod": "mod",
    "remainder": "mod", "power": "pow", "equal": "eq", "not_equal": "ne", "greater": "gt", "greater_equal": "ge",
    "less": "lt", "less_equal": "le", "matmul": "matmul",
}  # fmt: skip

FUNCTIONS: dict[str, Callable[..., Any]] = {}
METHODS: set[str] = set()


def _row(name: str, function: Callable[..., Any], *, method: bool = False) -> None:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = function.__doc__ or f"`{name}`, as in NumPy."
    FUNCTIONS[name] = function
    if method:
        METHODS.add(name)


def _function(*names: str, method: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            FUNCTIONS[name] = function
            if method:
                METHODS.add(name)
        return function

    return note


def into(out: Any, found: Any) -> Any:
    """The result, or the array that was given for it."""
    if out is None:
        return found
    out[:] = found
    return out


def _of_elements(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    def function(x: Any, out: Any = None, **_options: Any) -> Any:
        if not isinstance(x, NDArray):
            if isinstance(x, (int, float)):
                return getattr(np, name)(x)
            x = array(x)
        return into(out, run(compute, taken(x)))

    return function


def _of_pairs(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    python = AS_OPERATORS.get(name)

    def function(x1: Any, x2: Any, out: Any = None, **_options: Any) -> Any:
        first = x1 if isinstance(x1, NDArray) else x2
        if not isinstance(first, NDArray):
            return getattr(np, name)(x1, x2)
        if python is not None:
            return into(out, pair_of(python, x1, x2))
        return into(out, run(compute, [taken(x1, first), taken(x2, first)]))

    return function


for _name, _compute in OF_ELEMENTS.items():
    _row(_name, _of_elements(_name, _compute), method=_name in ("abs", "exp", "log", "sqrt", "square", "sign"))
for _name, _compute in {**OF_PAIRS, "matmul": torch.matmul}.items():
    _row(_name, _of_pairs(_name, _compute))


# Reductions.


def axes_of(axis: Axes, dims: int) -> tuple[int, ...]:
    """The axes that are meant, none below 0."""
    if axis is None:
        return tuple(range(dims))
    listed = (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
    return tuple(range(dims)[each] for each in listed)


def _reduction(compute: Callable[..., Any]) -> Callable[..., Any]:
    def function(
        a: Any, axis: Axes = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **given: Any
    ) -> Any:
        x = taken(a)
        if dtype is not None:
            x = x.astype(dtype)
        options = tuple(sorted(given.items()))
        return into(out, run(compute, x, axes_of(axis, x.ndim), bool(keepdims), *(value for _, value in options)))

    return function


def _sum(x: Any, axes: Sequence[int], keep: bool) -> Any:
    wanted = torch.int64 if x.dtype == torch.bool else x.dtype
    return x.sum(axes, keepdim=keep, dtype=wanted) if axes else x.to(wanted, copy=True)


def _floating(x: Any) -> Any:
    return x if x.is_floating_point() else x.float()


def _mean(x: Any, axes: Sequence[int], keep: bool) -> Any:
    return _floating(x).mean(axes, keepdim=keep) if axes else _floating(x).clone()


def _one_by_one(reduce: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def compute(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
        for axis in sorted(axes, reverse=True):
            x = reduce(x, axis, keepdim=True)
        return x if keep else x.reshape([size for place, size in enumerate(x.shape) if place not in axes])

    return compute


def _variance(x: Tensor, axes: Any, keep: bool, ddof: float = 0) -> Any:
    return torch.var(_floating(x), axes, correction=ddof, keepdim=keep)


def _deviation(x: Tensor, axes: Any, keep: bool, ddof: float = 0) -> Any:
    return torch.std(_floating(x), axes, correction=ddof, keepdim=keep)


_prod = _one_by_one(torch.prod)
_all, _any = _one_by_one(torch.all), _one_by_one(torch.any)
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "mean": _mean,
    "prod": lambda x, axes, keep: _prod(x, axes, keep).to(x.dtype),
    "max": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "min": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "var": _variance,
    "std": _deviation,
    "all": lambda x, axes, keep: _all(x.bool(), axes, keep),
    "any": lambda x, axes, keep: _any(x.bool(), axes, keep),
}
for _name, _compute in REDUCTIONS.items():
    _row(_name, _reduction(_compute), method=True)
FUNCTIONS |= {"amax": FUNCTIONS["max"], "amin": FUNCTIONS["min"], "alltrue": FUNCTIONS["all"]}
FUNCTIONS |= {"sometrue": FUNCTIONS["any"], "product": FUNCTIONS["prod"], "invert": FUNCTIONS["bitwise_not"]}


def _place(compute: Callable[..., Tensor]) -> Callable[..., Any]:
    def function(a: Any, axis: int | None = None, out: Any = None, keepdims: bool = False) -> Any:
        return into(out, run(compute, taken(a), axis, keepdims if axis is not None else False))

    return function


_row("argmax", _place(torch.argmax), method=True)
_row("argmin", _place(torch.argmin), method=True)


@_function("cumsum", method=True)
def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    """Sums of all elements up to each."""
    x = taken(a) if axis is not None else taken(a).reshape(-1)
    return into(out, run(_cumulated, x, axis or 0, x._dtype if dtype is None else torch_type(np.dtype(dtype).type)))


def _cumulated(x: Tensor, axis: int, dtype: torch.dtype) -> Tensor:
    return x.cumsum(axis, dtype=dtype)


@_function("average")
def average(a: Any, axis: Axes = None, weights: Any = None, returned: bool = False) -> Any:
    """The mean, perhaps with weights."""
    x = taken(a)
    if weights is None:
        total: Any = array(float(math.prod(x.shape[each] for each in axes_of(axis, x.ndim))), ctx=x.context)
        found = x.mean(axis)
    else:
        shares = taken(weights, x)
        if shares.ndim < x.ndim:
            shares = shares.reshape([-1 if place == axes_of(axis, x.ndim)[0] else 1 for place in range(x.ndim)])
        shares = shares * FUNCTIONS["ones_like"](x)
        total = shares.sum(axis)
        found = (x * shares).sum(axis) / total
    return (found, total) if returned else found


# Sizes.


@_function("reshape")
def reshape(a: Any, newshape: Any, order: str = "C") -> Any:
    """A copy with other sizes."""
    _ = order
    return taken(a).reshape((newshape,) if isinstance(newshape, int) else newshape)


@_function("transpose")
def transpose(a: Any, axes: Any = None) -> Any:
    """Axes in another order."""
    return _transpose(taken(a), *(() if axes is None else (axes,)))


def _transpose(self: Any, *axes: Any) -> Any:
    order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    order = tuple(reversed(range(self.ndim))) if not order else tuple(order)
    return run(_in_order, self, order)


def _in_order(x: Tensor, order: Sequence[int]) -> Tensor:
    return x.permute(*order) if order else x


def _simple(compute: Callable[..., Any], *names: str, method: bool = False, **defaults: Any) -> None:
    """Note a function of one array and of some parameters, which are named by their defaults."""
    order = list(defaults)

    def function(a: Any, *places: Any, out: Any = None, **given: Any) -> Any:
        unknown = set(given) - set(order)
        if unknown or len(places) > len(order):
            raise TypeError(f"{names[0]}() got an unexpected argument {', '.join(sorted(unknown))}".rstrip())
        values = {**defaults, **dict(zip(order, places, strict=False)), **given}
        return into(out, run(compute, taken(a), *(_hashable(each) for each in values.values())))

    for name in names:
        _row(name, function, method=method)


def _hashable(given: Any) -> Any:
    if isinstance(given, NDArray):
        given = given.asnumpy().tolist()
    return tuple(_hashable(each) for each in given) if isinstance(given, (list, tuple)) else given


def _listed(given: Any) -> list[int]:
    return [int(given)] if isinstance(given, (int, np.integer)) else list(given)


def _expanded(x: Tensor, axis: Any) -> Tensor:
    dims = x.dim() + len(_listed(axis))
    for each in sorted(range(dims)[each] for each in _listed(axis)):
        x = x.unsqueeze(each)
    return x


def _squeezed(x: Tensor, axis: Any) -> Tensor:
    if axis is None:
        return x.squeeze()
    for each in axes_of(axis, x.dim()):
        if x.shape[each] != 1:
            raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
    return x.squeeze(axes_of(axis, x.dim()))


def _repeated(x: Tensor, repeats: Any, axis: int | None) -> Tensor:
    counts = repeats if isinstance(repeats, int) else torch.tensor(repeats, device=x.device)
    return torch.repeat_interleave(x.reshape(-1) if axis is None else x, counts, dim=axis or 0)


def _turned(x: Tensor, axis: Any) -> Tensor:
    return x.flip(axes_of(axis, x.dim()))


def _rolled(x: Tensor, shift: Any, axis: Any) -> Tensor:
    return torch.roll(x, shift, axis) if axis is not None else torch.roll(x.reshape(-1), shift).reshape(x.shape)


def _clipped(x: Tensor, low: Any, high: Any) -> Tensor:
    return x.clip(low, high)


def _sorted(x: Tensor, axis: int | None) -> Tensor:
    return torch.sort(x.reshape(-1) if axis is None else x, dim=-1 if axis is None else axis, stable=True).values


def _sorted_places(x: Tensor, axis: int | None) -> Tensor:
    return torch.sort(x.reshape(-1) if axis is None else x, dim=-1 if axis is None else axis, stable=True).indices


def _rounded(x: Tensor, decimals: int) -> Tensor:
    return torch.round(x, decimals=decimals) if x.is_floating_point() else x.clone()


def _broadcast(x: Tensor, shape: Any) -> Tensor:
    return x.expand(*_listed(shape))


def _diagonal(x: Tensor, k: int) -> Tensor:
    return torch.diag(x, k)


_simple(_expanded, "expand_dims", axis=0, method=True)
_simple(_squeezed, "squeeze", axis=None, method=True)
_simple(lambda x, a, b: x.transpose(a, b), "swapaxes", axis1=0, axis2=0, method=True)
_simple(torch.moveaxis, "moveaxis", source=0, destination=0)
_simple(_repeated, "repeat", repeats=1, axis=None, method=True)
_simple(lambda x, reps: torch.tile(x, _listed(reps)), "tile", reps=1, method=True)
_simple(_rolled, "roll", shift=0, axis=None)
_simple(lambda x: x.reshape(-1), "ravel", method=True)
_simple(_sorted, "sort", axis=-1, method=True)
_simple(_sorted_places, "argsort", axis=-1, method=True)
_simple(_rounded, "round", "around", "round_", decimals=0, method=True)
_simple(_broadcast, "broadcast_to", shape=())
_simple(torch.tril, "tril", k=0)
_simple(torch.triu, "triu", k=0)
_simple(_diagonal, "diag", k=0)
_simple(torch.diagonal, "diagonal", offset=0, axis1=0, axis2=1)
_simple(torch.diagflat, "diagflat", k=0)
_simple(torch.trace, "trace")
_simple(torch.atleast_1d, "atleast_1d")
_simple(torch.atleast_2d, "atleast_2d")
_simple(torch.atleast_3d, "atleast_3d")
_simple(torch.fliplr, "fliplr")
_simple(torch.flipud, "flipud")
_simple(torch.rot90, "rot90", k=1, axes=(0, 1))
_simple(torch.zeros_like, "zeros_like", "empty_like")
_simple(torch.ones_like, "ones_like")
_simple(torch.full_like, "full_like", fill_value=0)
_simple(lambda x: x.clone(), "copy")
_simple(torch.nan_to_num, "nan_to_num")


@_function("clip", method=True)
def clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, **ends: Any) -> Any:
    """Elements that are cut off below and above; the method's `min` and `max` are the same."""
    low, high = ends.pop("min", a_min), ends.pop("max", a_max)
    if ends:
        raise TypeError(f"clip() got an unexpected argument {', '.join(sorted(ends))}")
    return into(out, run(_clipped, taken(a), low, high))


@_function("flip")
def flip(m: Any, axis: Axes = None) -> Any:
    """Turn axes round."""
    return run(_turned, taken(m), _hashable(axis))


@_function("diff")
def diff(a: Any, n: int = 1, axis: int = -1) -> Any:
    """Differences of neighbours."""
    return run(_differences, taken(a), n, axis)


def _differences(x: Tensor, n: int, axis: int) -> Tensor:
    return torch.diff(x, n, axis)


@_function("append")
def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """An array with more behind it."""
    x = taken(arr)
    return FUNCTIONS["concatenate"]([x, taken(values, x)], axis=axis)


@_function("pad")
def pad(x: Any, pad_width: Any, mode: str = "constant", **given: Any) -> Any:
    """An array with a border around it."""
    source = taken(x)
    widths = np.broadcast_to(np.asarray(_hashable(pad_width)), (source.ndim, 2))
    border: Any = np.pad
    places = [border(np.arange(size), tuple(width), mode=mode) if mode != "constant" else None
              for size, width in zip(source.shape, widths, strict=True)]  # fmt: skip
    if mode == "constant":
        return run(_bordered, source, tuple(int(each) for each in widths[::-1].reshape(-1)), *given.values())
    if given:
        raise TypeError(f"pad(mode={mode!r}) got an unexpected argument {', '.join(given)}")
    for axis, line in enumerate(places):
        source = take(source, array(line, dtype=np.int64), axis=axis)
    return source


def _bordered(x: Tensor, widths: Sequence[int], value: float = 0) -> Tensor:
    return torch.nn.functional.pad(x, list(widths), value=value)


def flatten(self: Any, order: str = "C") -> Any:
    """A copy that has one axis."""
    _ = order
    return run(_flat, self)


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1).clone()


# Several arrays.


def _joined(compute: Callable[..., Tensor], *names: str, **defaults: Any) -> None:
    order = list(defaults)

    def function(arrays: Any, *places: Any, out: Any = None, **given: Any) -> Any:
        values = {**defaults, **dict(zip(order, places, strict=False)), **given}
        found = [taken(each) for each in arrays]
        return into(out, run(_over_list(compute), found, *(values[name] for name in order)))

    for name in names:
        _row(name, function)


_OVER_LISTS: dict[Any, Callable[..., Tensor]] = {}


def _over_list(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of a list of tensors as one of tensors and of numbers behind them."""
    if compute not in _OVER_LISTS:

        def apply(*given: Any) -> Tensor:
            return compute([each for each in given if isinstance(each, Tensor)],
                           *(each for each in given if not isinstance(each, Tensor)))  # fmt: skip

        _OVER_LISTS[compute] = apply
    return _OVER_LISTS[compute]


def _concatenated(tensors: Sequence[Tensor], axis: int | None) -> Tensor:
    return torch.cat([each.reshape(-1) for each in tensors]) if axis is None else torch.cat(list(tensors), axis)


_joined(_concatenated, "concatenate", axis=0)
_joined(lambda tensors, axis: torch.stack(list(tensors), axis), "stack", axis=0)
_joined(lambda tensors: torch.vstack(list(tensors)), "vstack", "row_stack")
_joined(lambda tensors: torch.hstack(list(tensors)), "hstack")
_joined(lambda tensors: torch.dstack(list(tensors)), "dstack")
_joined(lambda tensors: torch.column_stack(list(tensors)), "column_stack")


def _pieces(ary: Any, places: Sequence[int], axis: int) -> list[Any]:
    x = taken(ary)
    ends = [0, *places, x.shape[axis]]
    before = [slice(None)] * (axis % x.ndim)
    return [x[(*before, slice(begin, end))] for begin, end in pairwise(ends)]


@_function("split")
def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Cut an axis into equal parts, or at places."""
    x = taken(ary)
    if isinstance(indices_or_sections, int):
        if x.shape[axis] % indices_or_sections:
            raise ValueError("array split does not result in an equal division")
        found: list[Any] = array_split(x, indices_or_sections, axis)
        return found
    return _pieces(x, list(indices_or_sections), axis)


@_function("array_split")
def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Cut an axis into parts that are as equal as can be, or at places."""
    x = taken(ary)
    if not isinstance(indices_or_sections, int):
        return _pieces(x, list(indices_or_sections), axis)
    each, more = divmod(x.shape[axis], indices_or_sections)
    ends = np.cumsum([each + (place < more) for place in range(indices_or_sections)])[:-1].tolist()
    return _pieces(x, ends, axis)


def _split_along(name: str, axis: int) -> None:
    def function(ary: Any, indices_or_sections: Any) -> list[Any]:
        x = taken(ary)
        found: list[Any] = split(x, indices_or_sections, axis if x.ndim > 1 else 0)
        return found

    _row(name, function)


_split_along("vsplit", 0)
_split_along("hsplit", 1)
_split_along("dsplit", 2)


@_function("dot", method=True)
def dot(a: Any, b: Any, out: Any = None) -> Any:
    """The product of vectors and matrices; of a number, the multiple."""
    x, y = taken(a), taken(b)
    if x.ndim == 0 or y.ndim == 0:
        return into(out, x * y)
    return into(out, run(_dot, [x, y]))


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return torch.matmul(x, y) if y.dim() <= 2 else torch.tensordot(x, y, ([x.dim() - 1], [y.dim() - 2]))


@_function("tensordot")
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """The sum of products over axes."""
    x, y = taken(a), taken(b)
    count = axes if isinstance(axes, int) else None
    dims = _hashable(axes if count is None else (range(x.ndim - count, x.ndim), range(count)))
    return run(_tensordot, [x, y], tuple(tuple(_listed(each)) for each in map(_ranged, dims)))


def _ranged(given: Any) -> Any:
    return tuple(given) if isinstance(given, range) else given


def _tensordot(x: Tensor, y: Tensor, dims: Any) -> Any:
    return torch.tensordot(x, y, dims)


@_function("einsum")
def einsum(subscripts: str, *operands: Any, **_options: Any) -> Any:
    """Einstein's sum."""
    return run(_einsum, [taken(each) for each in operands], subscripts)


def _einsum(*given: Any) -> Tensor:
    return torch.einsum(given[-1], *given[:-1])


_OUTER = {
    "outer": lambda x, y: torch.outer(x.reshape(-1), y.reshape(-1)),
    "inner": torch.inner,
    "vdot": lambda x, y: torch.dot(x.reshape(-1), y.reshape(-1)),
    "kron": torch.kron,
}
for _name, _compute in _OUTER.items():
    _row(_name, lambda a, b, compute=_compute: run(compute, [taken(a), taken(b)]))


@_function("where")
def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Elements of one array where a condition holds, else of another; without them, where it holds."""
    chosen = taken(condition)
    if x is None and y is None:
        return nonzero(chosen)
    like = x if isinstance(x, NDArray) else y if isinstance(y, NDArray) else array(0.0)
    return run(_where, [chosen, taken(x, like), taken(y, like)])


def _where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.where(condition.bool(), x, y)


@_function("take", method=True)
def take(a: Any, indices: Any, axis: int | None = None, mode: str = "clip", out: Any = None) -> Any:
    """Elements by their places along an axis."""
    x, places = taken(a), taken(indices) if isinstance(indices, NDArray) else array(indices, dtype=np.int64)
    return into(out, run(_taken, [x if axis is not None else x.reshape(-1), places], axis or 0, mode))


def _taken(x: Tensor, places: Tensor, axis: int, mode: str) -> Tensor:
    size = x.shape[axis]
    where_ = places.long().clip(-size if mode == "clip" else None, size - 1) if mode == "clip" else places.long() % size
    found = x.index_select(axis, where_.clip(min=0).reshape(-1) if mode == "clip" else where_.reshape(-1))
    return found.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]) if axis >= 0 else found


@_function("nonzero")
def nonzero(a: Any) -> tuple[Any, ...]:
    """Where elements are not 0, axis by axis: waits for them."""
    return tuple(array(each) for each in taken(a).asnumpy().nonzero())


METHODS.add("nonzero")


@_function("unique")
def unique(ar: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
           axis: int | None = None) -> Any:  # fmt: skip
    """The elements without those that come again, in order: waits for them."""
    which = {"return_index": return_index, "return_inverse": return_inverse, "return_counts": return_counts}
    found: Any = np.unique(taken(ar).asnumpy(), axis=axis, **which)  # type: ignore[call-overload]
    return tuple(array(each) for each in found) if isinstance(found, tuple) else array(found)


@_function("meshgrid")
def meshgrid(*xi: Any, indexing: str = "xy") -> list[Any]:
    """Grids of which each has the numbers of one line."""
    lines = [taken(each) for each in xi]
    return list(run(_meshgrid, lines, indexing, outputs=len(lines))) if len(lines) > 1 else lines


def _meshgrid(*given: Any) -> Any:
    return torch.meshgrid(*given[:-1], indexing=given[-1])


@_function("may_share_memory", "shares_memory")
def may_share_memory(a: Any, b: Any, max_work: Any = None) -> bool:
    """Whether two arrays are parts of the same memory."""
    _ = max_work
    return isinstance(a, NDArray) and isinstance(b, NDArray) and a._chunk is b._chunk


@_function("shape")
def shape(a: Any) -> tuple[int, ...]:
    """The sizes."""
    return taken(a).shape


@_function("size")
def size(a: Any) -> int:
    """The number of elements."""
    return taken(a).size


@_function("ndim")
def ndim(a: Any) -> int:
    """The number of axes."""
    return taken(a).ndim


OF_ARRAYS: dict[str, Callable[..., Any]] = {
    **{_name: FUNCTIONS[_name] for _name in METHODS},
    "transpose": _transpose,
    "flatten": flatten,
}
for _name, _compute in OF_ARRAYS.items():
    setattr(NumpyNDArray, _name, _compute)
