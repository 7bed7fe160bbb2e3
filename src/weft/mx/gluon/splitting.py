"""Spread batches over devices, and bound gradients: `gluon.utils`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from weft.mx.arrays.ndarray import NDArray, array
from weft.mx.base.context import Context


def split_data(data: NDArray, num_slice: int, batch_axis: int = 0, even_split: bool = True) -> list[NDArray]:
    """Cut a batch into parts."""
    size = data.shape[batch_axis]
    if even_split and size % num_slice:
        raise ValueError(
            f"data with shape {data.shape} cannot be evenly split into {num_slice} slices along axis {batch_axis}. "
            f"Use a batch size that's multiple of {num_slice} or set even_split=False to allow uneven partitioning of "
            "data."
        )
    count = max(min(num_slice, size), 1)
    step, longer = divmod(size, count)
    places = [0]
    for part in range(count):
        places.append(places[-1] + step + (part < longer))
    before = (slice(None),) * batch_axis
    return [data[(*before, slice(a, b))] for a, b in pairwise(places)]


def split_and_load(
    data: Any, ctx_list: Sequence[Context], batch_axis: int = 0, even_split: bool = True
) -> list[NDArray]:
    """Cut a batch into parts, and bring each to a device."""
    given = data if isinstance(data, NDArray) else array(data, ctx_list[0])
    if len(ctx_list) == 1:
        return [given.as_in_context(ctx_list[0])]
    parts = split_data(given, len(ctx_list), batch_axis, even_split)
    return [part.as_in_context(context) for part, context in zip(parts, ctx_list, strict=False)]


def clip_global_norm(arrays: Sequence[NDArray], max_norm: float, check_isfinite: bool = True) -> Any:
    """Scale arrays so that all of them together are at most so long; gives how long they were."""
    context = arrays[0].context
    total: Any = sum(((x.reshape((-1,)) ** 2).sum().as_in_context(context) for x in arrays[1:]), (arrays[0] ** 2).sum())
    norm = total.sqrt()
    if check_isfinite and not np.isfinite(norm.asscalar()):
        warnings.warn("nan or inf is detected. Clipping results will be undefined.", stacklevel=2)
    scale = max_norm / (norm + 1e-8)
    bound = (scale < 1) * scale + (scale >= 1)
    for x in arrays:
        x *= bound.as_in_context(x.context)
    return float(norm.asscalar()) if check_isfinite else norm
