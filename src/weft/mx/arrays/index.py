"""Read `x[key]` as MXNet does: what it picks, of which sizes, and whether it is a part of the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Shape = tuple[int, ...]
PLACES = "places"  # stands in a key where an array of places does


@dataclass(frozen=True)
class Index:
    """A key that was read for an array of some sizes."""

    source: Shape
    parts: tuple[Any, ...]  # a number, a slice or PLACES for each axis of the source, and a None for each new one
    places: tuple[Any, ...]  # NDArrays or tensors of places, in the order of the parts that are such
    shape: Shape

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the array, as it is."""
        wholes = tuple(slice(0, size, 1) for size in self.source)
        return self.parts == wholes

    @property
    def is_plain(self) -> bool:
        """Whether torch makes a view of it."""
        return all(part is not PLACES and not (isinstance(part, slice) and part.step < 0) for part in self.parts)

    @property
    def arrays(self) -> list[Any]:
        """The NDArrays among the places."""
        return [array for array in self.places if not isinstance(array, Tensor)]

    def contiguous(self) -> tuple[int, Shape] | None:
        """Where what it picks begins, if it lies in one piece."""
        begin, whole, stride = 0, True, 1
        axes = [part for part in self.parts if part is not None]
        for part, size in reversed(list(zip(axes, self.source, strict=True))):
            if part is PLACES:
                return None
            start, stop, step = (part, part + 1, 1) if isinstance(part, int) else (part.start, part.stop, part.step)
            if step != 1 or (not whole and stop - start != 1):
                return None
            begin += start * stride
            whole = whole and stop - start == size
            stride *= size
        return begin, self.shape

    def pick(self, x: Tensor, given: Sequence[Tensor]) -> Tensor:
        """What it picks; `given` has the elements of `arrays`."""
        axes = [part for part in self.parts if part is not None]
        forwards = list(self.parts)
        for axis, part in enumerate(axes):
            if isinstance(part, slice) and part.step < 0:
                turned = torch.tensor(range(part.start, part.stop, part.step), dtype=torch.int64, device=x.device)
                x = x.index_select(axis, turned)
                forwards[self._place_of(axis)] = slice(None)
        return x[self._key(forwards, x, iter(given))].reshape(self.shape)

    def _place_of(self, axis: int) -> int:
        return [place for place, part in enumerate(self.parts) if part is not None][axis]

    def _key(self, parts: Sequence[Any], x: Tensor, given: Iterator[Tensor]) -> tuple[Any, ...]:
        places = iter(self.places)
        key: list[Any] = []
        axis = 0
        for part in parts:
            if part is PLACES:
                source = next(places)
                whole = (source if isinstance(source, Tensor) else next(given)).to(x.device, torch.int64)
                key.append(torch.where(whole < 0, whole + self.source[axis], whole))
            else:
                key.append(part)
            axis += part is not None
        return tuple(key)

    def put(self, x: Tensor, given: Sequence[Tensor], value: Any) -> None:
        """Write a number, or elements, there."""
        elements = value.to(x.device).expand(self.shape) if isinstance(value, Tensor) else value
        if self.is_plain:
            view = x[self.parts]
            view.copy_(elements.reshape(view.shape)) if isinstance(value, Tensor) else view.fill_(value)
            return
        where = self.pick(torch.arange(x.numel(), device=x.device).reshape(x.shape), given)
        x.view(-1)[where] = elements


def _expanded(key: Any, dims: int) -> list[Any]:
    """The key as a list, with a full slice in the place of each axis that it does not name."""
    parts: list[Any] = []
    for part in key if isinstance(key, tuple) else [key]:
        mask = _mask(part)
        parts += [part] if mask is None else [torch.from_numpy(places) for places in np.nonzero(mask)]
    named = sum(1 for part in parts if part is not None and part is not Ellipsis)
    dots = [place for place, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("Cannot use more than one ellipsis (`...`) for indexing")
    if named > dims:
        raise IndexError(f"too many indices for array: array is {dims}-dimensional, but {named} were indexed")
    place = dots[0] if dots else len(parts)
    parts[place : place + 1] = [slice(None)] * (dims - named)
    return parts


def _mask(part: Any) -> Any:
    """The elements of an array of truth values: which places those are must be known now."""
    if isinstance(part, np.ndarray):
        return part if part.dtype == np.bool_ else None
    return part.asnumpy() if hasattr(part, "asnumpy") and part.dtype == np.bool_ else None


def _number(place: int, axis: int, size: int) -> int:
    if not -size <= place < size:
        raise IndexError(f"index {place} is out of bounds for axis {axis} with size {size}")
    return place % size


def _range(part: slice, size: int) -> slice:
    start, stop, step = part.indices(size)
    count = len(range(start, stop, step))
    # One element lies in one piece, whatever the step was: MXNet shares memory with it.
    return slice(start, start + 1, 1) if count == 1 else slice(start, start + count * step, step)


def read_index(key: Any, source: Shape, is_array: Callable[[Any], bool]) -> Index:
    """Read a key for an array of these sizes."""
    parts: list[Any] = []
    places: list[Any] = []
    axis = 0
    for part in _expanded(key, len(source)):
        if part is None:
            parts.append(None)
            continue
        if isinstance(part, (int, np.integer)) and not isinstance(part, bool):
            parts.append(_number(int(part), axis, source[axis]))
        elif isinstance(part, slice):
            parts.append(_range(part, source[axis]))
        elif is_array(part) or isinstance(part, (list, tuple, range, np.ndarray, Tensor)):
            parts.append(PLACES)
            places.append(
                part if is_array(part) or isinstance(part, Tensor) else torch.tensor(np.asarray(part).astype(np.int64))
            )
        else:
            raise ValueError(f"NDArray does not support slicing with key {part} of type {type(part)}.")
        axis += 1
    return Index(source, tuple(parts), tuple(places), _picked_shape(parts, source, places))


def _picked_shape(parts: Sequence[Any], source: Shape, places: Sequence[Any]) -> Shape:
    """The sizes of what is picked: with places, torch is asked with arrays that have no elements."""
    if PLACES not in parts:
        axes, sizes = iter(source), []
        for part in parts:
            _ = None if part is None else next(axes)
            if not isinstance(part, int):
                sizes.append(1 if part is None else len(range(part.start, part.stop, part.step)))
        return tuple(sizes) or (1,)
    shapes = iter(places)
    key = [
        torch.empty(tuple(next(shapes).shape), dtype=torch.int64, device="meta")
        if part is PLACES
        else slice(0, len(range(part.start, part.stop, part.step)))
        if isinstance(part, slice)
        else part
        for part in parts
    ]
    return tuple(torch.empty(source, device="meta")[tuple(key)].shape)
