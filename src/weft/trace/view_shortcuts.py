"""Usual operators that give views -> the type of the view, and how far behind its tensor it begins.

PyTorch's rules of these take a millisecond, and what they say is arithmetic on sizes and strides. A shortcut covers the
usual case alone; of any other it gives nothing, and PyTorch's rule is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import torch

from weft.ir.types import TensorType, row_major, type_of
from weft.trace.interception.capture import is_plain_stand_in

Window = tuple[TensorType, int] | None


def window_of(target: str, arguments: tuple[Any, ...]) -> Window:
    """Give what a view looks into of its first argument, if that is usual."""
    shortcut = VIEW_SHORTCUTS.get(target)
    if shortcut is None or not isinstance(arguments[0], torch.Tensor) or not is_plain_stand_in(arguments[0]):
        return None
    numbers = arguments[1:]
    if any(type(number) is not int for given in numbers for number in (given if type(given) is list else [given])):
        return None
    return shortcut(type_of(arguments[0]), *numbers)


def _window(kind: TensorType, sizes: list[int], strides: list[int], offset: int = 0) -> Window:
    return TensorType(kind.dtype, tuple(sizes), tuple(strides), kind.device), offset


def _view(kind: TensorType, sizes: list[int]) -> Window:
    """Of a tensor with elements, of which every dimension of the view has those of one run of its dimensions."""
    count, unknown = prod(size for size in sizes if size != -1), sizes.count(-1)
    if kind.size == 0 or count <= 0 or unknown > 1 or min(sizes, default=1) < -1:
        return None
    whole = [kind.size // count if size == -1 else size for size in sizes]
    if prod(whole) != kind.size:
        return None
    if kind.strides == row_major(kind.shape):
        return _window(kind, whole, list(row_major(tuple(whole))))
    strides = _strides_in_runs(kind, whole)
    return None if strides is None else _window(kind, whole, strides)


def _strides_in_runs(kind: TensorType, sizes: list[int]) -> list[int] | None:
    """Give the strides of a view by runs of dimensions that lie as one.

    A run has so many elements `apart` from one another; the view has `reached` some of them. What PyTorch says of
    dimensions of one element depends on who is asked: they are left to it.
    """
    if 1 in kind.shape or 1 in sizes:
        return None
    strides, left = [0] * len(sizes), len(sizes)
    apart, count, reached = kind.strides[-1], 1, 1
    for place in reversed(range(len(kind.shape))):
        count *= kind.shape[place]
        if place and kind.strides[place - 1] == count * apart:
            continue
        while left and reached < count:
            left -= 1
            strides[left] = reached * apart
            reached *= sizes[left]
        if reached != count:
            return None
        apart, count, reached = kind.strides[place - 1], 1, 1
    return strides


def _expand(kind: TensorType, sizes: list[int]) -> Window:
    """Of a tensor with dimensions, of which those of one element are repeated, and so are new ones before them."""
    new = len(sizes) - len(kind.shape)
    if not kind.shape or new < 0 or min(sizes) < -1 or -1 in sizes[:new]:
        return None
    whole, strides = list(sizes), [0] * new + list(kind.strides)
    for place, size in enumerate(kind.shape, new):
        if whole[place] in (-1, size):
            whole[place] = size
        elif size == 1:
            strides[place] = 0
        else:
            return None
    for place in reversed(range(new)):
        strides[place] = whole[place + 1] * strides[place + 1] if whole[place] == 1 else 0
    return _window(kind, whole, strides)


def _same(kind: TensorType) -> Window:
    return kind, 0


def _transpose(kind: TensorType, first: int, second: int) -> Window:
    order = list(range(len(kind.shape)))
    if not _has(kind, first) or not _has(kind, second):
        return None
    order[first], order[second] = order[second], order[first]
    return _permute(kind, order)


def _matrix_transpose(kind: TensorType) -> Window:
    return _transpose(kind, 0, 1) if len(kind.shape) == 2 else None


def _permute(kind: TensorType, order: list[int]) -> Window:
    places = range(len(kind.shape))
    if not all(_has(kind, place) for place in order) or sorted(places[place] for place in order) != list(places):
        return None
    return _window(kind, [kind.shape[place] for place in order], [kind.strides[place] for place in order])


def _select(kind: TensorType, dimension: int, index: int) -> Window:
    if not _has(kind, dimension) or not -kind.shape[dimension] <= index < kind.shape[dimension]:
        return None
    sizes, strides = list(kind.shape), list(kind.strides)
    index, step = range(sizes.pop(dimension))[index], strides.pop(dimension)
    return _window(kind, sizes, strides, index * step)


def _unsqueeze(kind: TensorType, dimension: int) -> Window:
    count = len(kind.shape)
    if not -count - 1 <= dimension <= count:
        return None
    place = dimension % (count + 1)
    step = kind.shape[place] * kind.strides[place] if place < count else 1
    sizes, strides = list(kind.shape), list(kind.strides)
    sizes.insert(place, 1)
    strides.insert(place, step)
    return _window(kind, sizes, strides)


def _squeeze(kind: TensorType, dimension: int) -> Window:
    if not _has(kind, dimension) or kind.shape[dimension] != 1:
        return None
    sizes, strides = list(kind.shape), list(kind.strides)
    del sizes[dimension], strides[dimension]
    return _window(kind, sizes, strides)


def _has(kind: TensorType, dimension: int) -> bool:
    return -len(kind.shape) <= dimension < len(kind.shape)


VIEW_SHORTCUTS: Mapping[str, Callable[..., Window]] = MappingProxyType(
    {
        "aten.view.default": _view,
        "aten._unsafe_view.default": _view,
        "aten.expand.default": _expand,
        "aten.detach.default": _same,
        "aten.t.default": _matrix_transpose,
        "aten.transpose.int": _transpose,
        "aten.permute.default": _permute,
        "aten.select.int": _select,
        "aten.unsqueeze.default": _unsqueeze,
        "aten.squeeze.dim": _squeeze,
    }
)
