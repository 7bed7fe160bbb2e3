"""The functions of `mx.np` that make arrays of nothing but numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.mx.base.context import Context
from weft.mx.numpy.array import array


def _made(elements: Any, dtype: Any, ctx: Context | None) -> Any:
    return array(elements, np.float32 if dtype is None else dtype, ctx)


def zeros(shape: Any, dtype: Any = None, order: str = "C", ctx: Context | None = None) -> Any:
    """An array of zeros."""
    _ = order
    return _made(np.zeros(shape), dtype, ctx)


def ones(shape: Any, dtype: Any = None, order: str = "C", ctx: Context | None = None) -> Any:
    """An array of ones."""
    _ = order
    return _made(np.ones(shape), dtype, ctx)


def full(
    shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", ctx: Context | None = None, out: Any = None
) -> Any:
    """An array of one number: of truth values, if that is one."""
    _ = order
    kind = np.bool_ if dtype is None and isinstance(fill_value, bool) else dtype
    found = _made(np.full(shape, fill_value), kind, ctx)
    if out is None:
        return found
    out[:] = found
    return out


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, ctx: Context | None = None) -> Any:
    """Numbers with a step between them."""
    return _made(np.arange(start, stop, step) if stop is not None else np.arange(0, start, step), dtype, ctx)


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    ctx: Context | None = None,
) -> Any:
    """Numbers with equal distances."""
    found, step = np.linspace(start, stop, num, endpoint, retstep=True, axis=axis)
    return (_made(found, dtype, ctx), float(step)) if retstep else _made(found, dtype, ctx)


def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: float = 10.0, dtype: Any = None, axis: int = 0,
    ctx: Context | None = None,
) -> Any:  # fmt: skip
    """Powers with equal ratios."""
    return _made(np.logspace(start, stop, num, endpoint, base, axis=axis), dtype, ctx)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None, ctx: Context | None = None) -> Any:
    """1 on a diagonal."""
    return _made(np.eye(N, M, k), dtype, ctx)


def identity(n: int, dtype: Any = None, ctx: Context | None = None) -> Any:
    """1 on the diagonal of a square."""
    return eye(n, dtype=dtype, ctx=ctx)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None, ctx: Context | None = None) -> Any:
    """1 on and below a diagonal."""
    return _made(np.tri(N, M, k), dtype, ctx)


def _window(name: str) -> Callable[..., Any]:
    def make(M: int, dtype: Any = None, ctx: Context | None = None) -> Any:
        return _made(getattr(np, name)(M), dtype, ctx)

    make.__doc__ = f"The window `{name}`."
    return make


MAKERS: dict[str, Callable[..., Any]] = {
    "zeros": zeros,
    "ones": ones,
    "empty": zeros,
    "full": full,
    "arange": arange,
    "linspace": linspace,
    "logspace": logspace,
    "eye": eye,
    "identity": identity,
    "tri": tri,
    **{name: _window(name) for name in ("blackman", "hamming", "hanning")},
}
