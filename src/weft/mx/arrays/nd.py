"""Call MXNet's operators on arrays: the functions of `mx.nd`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as _np  # noqa: ICN001  # `nd.np` is what blocks that are given `F` call
import torch

from weft.mx.arrays.array_file import load, load_frombuffer, save
from weft.mx.arrays.at_once import PreparedCall
from weft.mx.arrays.control_flow import FUNCTIONS
from weft.mx.arrays.custom import call_custom as Custom
from weft.mx.arrays.frontend import (
    MAY_BE_NONE,
    PAIRS,
    Frontend,
    Namespace,
    apply_pair,
    give_arithmetic,
    give_methods,
    random_functions,
)
from weft.mx.arrays.invoke import call_operator, invoke_one
from weft.mx.arrays.ndarray import NDArray, array, empty, from_torch, to_torch, type_text, zeros
from weft.mx.arrays.queue import seed, waitall
from weft.mx.arrays.sparse import MAKERS, call_stored, cast_storage
from weft.mx.arrays.weight_updates import update_functions
from weft.mx.base.context import Context, current_context
from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import OPERATORS, Operator

__all__ = [
    "Custom",
    "NDArray",
    "arange",
    "array",
    "cast_storage",
    "concatenate",
    "contrib",
    "empty",
    "eye",
    "from_dlpack",
    "from_numpy",
    "from_torch",
    "full",
    "image",
    "linalg",
    "linspace",
    "load",
    "load_frombuffer",
    "moveaxis",
    "ones",
    "op",
    "random",
    "save",
    "sparse",
    "split_v2",
    "to_dlpack_for_read",
    "to_dlpack_for_write",
    "to_torch",
    "waitall",
    "zeros",
]


def _call(row: Operator, arrays: Sequence[NDArray], given: Mapping[str, Any], out: Any, _name: str | None) -> Any:
    for each in arrays:
        if each.__class__ is not NDArray:
            return call_stored(row, arrays, given, out)
    return call_operator(row, arrays, given, out)


def _prepare(row: Operator, given: Mapping[str, Any], count: int) -> PreparedCall | None:
    """A call that may be run at once; None of one that goes the longer way, also of one that is wrong."""
    given = {name: value for name, value in given.items() if value is not None or name in MAY_BE_NONE}
    if row.variadic and row.counter in row.parameters:
        given.setdefault(row.counter, count)
    try:
        p, rule = row.values(given), row.rule
        is_right = rule.is_plain and count > 0 and (row.variadic or count == row.input_count(p))
    except MXNetError:
        return None
    return PreparedCall(rule, p) if is_right else None


FRONTEND = Frontend(NDArray, "NDArray", _call, prepare=_prepare)
give_arithmetic(FRONTEND, in_place=True)
give_methods(FRONTEND)


def _seed(seed_state: int, ctx: Context | str = "all") -> None:
    """Begin the random numbers of a context, or of all, anew."""
    seed(int(seed_state), None if isinstance(ctx, str) else ctx)


random = Namespace("weft.mx.nd.random", FRONTEND, "_random_", {**random_functions(FRONTEND), "seed": _seed})
linalg = Namespace("weft.mx.nd.linalg", FRONTEND, "_linalg_")
image = Namespace("weft.mx.nd.image", FRONTEND, "_image_")


sparse = Namespace("weft.mx.nd.sparse", FRONTEND, "_sparse_", MAKERS)


def _set_value(src: float, out: NDArray) -> NDArray:
    """Let all elements of an array be a number."""
    out[:] = src
    return out


op = _internal = Namespace("weft.mx.nd.op", FRONTEND, "_", {"_set_value": _set_value})


def _rand_zipfian(true_classes: NDArray, num_sampled: int, range_max: int, ctx: Context | None = None) -> Any:
    """Classes by chance, small ones more often, and how often true ones and those are expected."""
    _ = ctx
    span = math.log(range_max + 1)
    drawn = random.uniform(0, span, shape=(num_sampled,), dtype="float64").asnumpy()
    classes = (_np.exp(drawn).round().astype("int64") - 1) % range_max

    def expected(given: Any) -> NDArray:
        given = given.astype("float64")
        return array(_np.log((given + 2.0) / (given + 1.0)) / span * num_sampled, dtype="float64")

    return array(classes, dtype="int64"), expected(true_classes.asnumpy()), expected(classes)


_OWN = {**FUNCTIONS, **update_functions(FRONTEND), "rand_zipfian": _rand_zipfian}
contrib = Namespace("weft.mx.nd.contrib", FRONTEND, "_contrib_", _OWN)


def _where(ctx: Context | None, dtype: Any) -> dict[str, Any]:
    return {"ctx": str(ctx or current_context()), "dtype": type_text(dtype)}


def ones(shape: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An array of ones."""
    return invoke_one("_ones", shape=(shape,) if isinstance(shape, int) else shape, **_where(ctx, dtype))


def full(shape: Any, val: float, ctx: Context | None = None, dtype: Any = _np.float32, out: Any = None) -> NDArray:
    """An array of one number."""
    sizes = (shape,) if isinstance(shape, int) else shape
    return invoke_one("_full", out=out, shape=sizes, value=float(val), **_where(ctx, dtype))


def arange(start: float, stop: float | None = None, step: float = 1.0, repeat: int = 1, **given: Any) -> NDArray:
    """Numbers with a step between them."""
    given.pop("infer_range", None)
    where = _where(given.pop("ctx", None), given.pop("dtype", _np.float32))
    return invoke_one("_arange", start=start, stop=stop, step=step, repeat=repeat, **where)


def linspace(start: float, stop: float, num: int, endpoint: bool = True, **given: Any) -> NDArray:
    """Numbers with equal distances."""
    line = _np.linspace(start, stop, num, endpoint)
    return array(line, given.get("ctx"), given.get("dtype", _np.float32))


def eye(N: int, M: int = 0, k: int = 0, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """1 on a diagonal."""
    return invoke_one("_eye", N=N, M=M, k=k, **_where(ctx, dtype))


def concatenate(arrays: Sequence[NDArray], axis: int = 0, always_copy: bool = True) -> NDArray:
    """Join arrays along an axis."""
    if not always_copy and len(arrays) == 1:
        return arrays[0]
    return invoke_one("Concat", *arrays, dim=axis)


def moveaxis(tensor: NDArray, source: Any, destination: Any) -> NDArray:
    """Move axes to other places."""
    order = list(range(tensor.ndim))
    sources = [source] if isinstance(source, int) else list(source)
    targets = [destination] if isinstance(destination, int) else list(destination)
    for axis in sorted((axis % tensor.ndim for axis in sources), reverse=True):
        order.remove(axis)
    for target, axis in sorted(
        zip((t % tensor.ndim for t in targets), (s % tensor.ndim for s in sources), strict=True)
    ):
        order.insert(target, axis)
    return invoke_one("transpose", tensor, axes=tuple(order))


def split_v2(ary: NDArray, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Any:
    """Cut an axis into equal parts, or at places."""
    sections = indices_or_sections if isinstance(indices_or_sections, int) else 0
    places = () if sections else (0, *indices_or_sections)
    if sections and ary.shape[axis] % sections:
        raise ValueError("array split does not result in an equal division")
    given = {"indices": places, "axis": axis, "squeeze_axis": squeeze_axis, "sections": sections}
    return call_operator(OPERATORS["_split_v2"], [ary], given)


def from_numpy(ndarray: Any, zero_copy: bool = True) -> NDArray:
    """An array over the memory of a NumPy array, or a copy of it."""
    return from_torch(torch.from_numpy(ndarray)) if zero_copy else array(ndarray, dtype=ndarray.dtype)


def from_dlpack(dlpack: Any) -> NDArray:
    """An array over the memory of another library's."""
    return from_torch(torch.utils.dlpack.from_dlpack(dlpack))


def to_dlpack_for_read(data: NDArray) -> Any:
    """A capsule of an array's memory, when it is computed."""
    return data.to_dlpack_for_read()


to_dlpack_for_write = to_dlpack_for_read


def onehot_encode(indices: NDArray, out: NDArray) -> NDArray:
    """Write a line with a 1 for each index."""
    return invoke_one("one_hot", indices, depth=out.shape[1], out=out)


def histogram(a: NDArray, bins: Any = 10, range: Any = None) -> Any:  # MXNet's name
    """Counts of elements between bounds, and the bounds: waits for the elements."""
    values = a.asnumpy()
    counts, bounds = _np.histogram(values, bins.asnumpy() if isinstance(bins, NDArray) else bins, range)
    return array(counts, a.context), array(bounds, a.context)


def _pair_function(name: str) -> Any:
    pair = PAIRS[name]

    def function(lhs: Any, rhs: Any) -> Any:
        return apply_pair(FRONTEND, pair, lhs, rhs)

    function.__name__ = function.__qualname__ = name
    return function


for _name in PAIRS:
    globals()[_name] = _pair_function(_name)
vars(sparse).update({_name: globals()[_name] for _name in ("add", "subtract", "multiply", "divide")})
pi = math.pi


def __getattr__(name: str) -> Any:
    if name in OPERATORS:
        found = globals()[name] = FRONTEND.function(name)  # the next time it is simply there
        return found
    raise AttributeError(f"module 'weft.mx.nd' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for name in OPERATORS if not name.startswith("_"))})
