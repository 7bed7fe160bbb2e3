"""Functions of `mx.np` that NumPy computes: they wait for what they are given, and have no gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.mx.arrays.ndarray import NDArray
from weft.mx.arrays.tape import entry_to_record, modes
from weft.mx.base.errors import MXNetError
from weft.mx.numpy.array import array

NAMES = """
allclose apply_along_axis apply_over_axes argpartition argwhere array_equal array_equiv bincount broadcast_arrays
choose compress corrcoef correlate count_nonzero cov delete diag_indices_from digitize divmod ediff1d extract finfo
flatnonzero float_power frexp genfromtxt heaviside histogram histogram2d histogram_bin_edges histogramdd i0 indices
insert interp intersect1d isclose isin ix_ lexsort median min_scalar_type modf nanargmax nanargmin nancumprod
nancumsum nanmax nanmedian nanmin nanpercentile nanprod nanquantile packbits partition percentile piecewise poly
polyadd polydiv polyfit polyint polymul polysub polyval positive promote_types ptp quantile real resize result_type
rollaxis roots searchsorted select setdiff1d setxor1d signbit spacing take_along_axis tril_indices tril_indices_from
trim_zeros triu_indices triu_indices_from union1d unpackbits unravel_index unwrap vander
""".split()  # noqa: SIM905  # words in lines read better than a column of them
OF_LINALG = """
cond eig eigvals eigvalsh lstsq matrix_power matrix_rank multi_dot qr tensorinv tensorsolve
""".split()  # noqa: SIM905
RENAMED = {"in1d": "isin", "trapz": "trapezoid"}  # what NumPy calls them now


def _given(thing: Any) -> Any:
    """NumPy's arrays in the place of ours."""
    if isinstance(thing, NDArray):
        return thing.asnumpy()
    if isinstance(thing, (list, tuple)):
        return type(thing)(_given(each) for each in thing)
    return thing


def _found(thing: Any) -> Any:
    """Our arrays in the place of NumPy's."""
    if isinstance(thing, np.ndarray):
        return array(thing)
    if isinstance(thing, (list, tuple)):
        return tuple(_found(each) for each in thing) if isinstance(thing, tuple) else [_found(each) for each in thing]
    return thing.item() if isinstance(thing, np.bool_) else thing


def _is_recorded(thing: Any) -> bool:
    if isinstance(thing, (list, tuple)):
        return any(_is_recorded(each) for each in thing)
    return isinstance(thing, NDArray) and entry_to_record(thing) is not None


def _is_fraction(thing: Any) -> bool:
    if isinstance(thing, (list, tuple)):
        return any(_is_fraction(each) for each in thing)
    return isinstance(thing, (np.ndarray, np.floating)) and np.issubdtype(thing.dtype, np.floating)


def _by_numpy(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any, **given: Any) -> Any:
        found = function(*_given(args), **{key: _given(value) for key, value in given.items()})
        if modes.recording and _is_fraction(found) and _is_recorded([*args, *given.values()]):
            raise MXNetError(f"NumPy computes np.{name}, which so has no gradient: call it under autograd.pause()")
        return _found(found)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`{name}`, as NumPy computes it."
    return call


def by_numpy(names: list[str], of: Any) -> dict[str, Callable[..., Any]]:
    """Functions of a module of NumPy's as functions of our arrays; those that this NumPy does not have are left out."""
    return {name: _by_numpy(getattr(of, name), name) for name in names if hasattr(of, name)}


FALLBACKS = by_numpy(NAMES, np)
FALLBACKS |= {old: _by_numpy(getattr(np, new), old) for old, new in RENAMED.items() if hasattr(np, new)}
