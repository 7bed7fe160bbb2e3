"""Index by tensors without dimensions (`x[i]`, `cache[:, step] = y`) as gathers and scatters of one place.

In eager such an index is read as a Python number, and what it names is a view. Here the place is read when the program
runs, so what is read is a copy. Where the difference shows (the copy is written, handed on, or used after the tensor
that it is of was written), the trace is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.trace.copied_places import Copied, copied_of
from weft.trace.interception.capture import storage_key
from weft.trace.interception.refusals import refuse
from weft.trace.recorder import Recorder

READ = torch.Tensor.__getitem__
WRITE = torch.Tensor.__setitem__
PLACES = (torch.int64, torch.int32, torch.int16, torch.int8)
MASKS = (torch.bool, torch.uint8)
WHOLE = slice(None)


class TensorIndex:
    """Finds what is indexed by tensors without dimensions in one trace.

    `is_free` tells whether a tensor's number is another one at each run.
    """

    def __init__(self, recorder: Recorder, is_free: Callable[[torch.Tensor], bool]) -> None:
        self._recorder = recorder
        self._is_free = is_free
        self._copies: list[Copied] = []

    def replaced(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any] | None:
        """What to call in the place of a read or a write at such an index."""
        if function is not READ and function is not WRITE:
            return None
        items = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
        if not any(map(self._is_place, items)) or any(isinstance(item, list) for item in items):
            return None
        return self._read if function is READ else self._write

    def check(self, leaves: Sequence[Any]) -> None:
        """Refuse what shows that a copy is no view; `leaves` is what is handed on."""
        handed_on = {storage_key(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
        for copied in self._copies:
            source = self._recorder.state_of(copied.source).memory
            is_seen = bool(source.inputs) or storage_key(copied.source) in handed_on
            if (is_seen and storage_key(copied.copy) in handed_on) or copied.shows(self._recorder, handed_on):
                refuse("number", copied.place)

    def _is_place(self, item: Any) -> bool:
        is_index = isinstance(item, torch.Tensor) and item.dim() == 0 and item.dtype in PLACES
        return is_index and self._is_free(item)

    def _read(self, tensor: torch.Tensor, given: Any) -> torch.Tensor:
        items = given if isinstance(given, tuple) else (given,)
        base, rest = tensor, list(items)
        for number, item in enumerate(items):
            if self._is_place(item):
                base = _at(base, _dimension(tensor, items, number), item)
                rest[number] = 0
        found: torch.Tensor = READ(base, tuple(rest))
        if storage_key(found) == storage_key(base):
            self._copies.append(copied_of(found, tensor, items, self._recorder))
        return found

    def _write(self, tensor: torch.Tensor, given: Any, value: Any) -> None:
        items = given if isinstance(given, tuple) else (given,)
        if self._is_put_back(tensor, items, value):
            value = value.clone()
        self._put(tensor, tensor, items, list(items), value)

    def _put(
        self, target: torch.Tensor, whole: torch.Tensor, items: tuple[Any, ...], rest: list[Any], value: Any
    ) -> None:
        """Write at the first such index by reading what is there, writing into that, and writing it back."""
        number = next((place for place, item in enumerate(rest) if self._is_place(item)), None)
        if number is None:
            WRITE(target, tuple(rest), value)
            return
        dimension, index = _dimension(whole, items, number), rest[number]
        rest[number] = 0
        row = _at(target, dimension, index)
        self._put(row, whole, items, rest, value)
        places: tuple[Any, ...] = (*[WHOLE] * dimension, index.to(torch.int64).reshape(1))
        WRITE(target, places, row)

    def _is_put_back(self, tensor: torch.Tensor, items: tuple[Any, ...], value: Any) -> bool:
        """Whether a copy goes where it came from, as after `x[i] += y`: what was written into it is there then."""
        for place, copied in enumerate(self._copies):
            if copied.copy is value and copied.source is tensor and _are_equal(items, copied.items):
                del self._copies[place]
                return True
        return False


def _are_equal(items: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(items) == len(others) and all(
        one is other or (type(one) is type(other) and not isinstance(one, torch.Tensor) and one == other)
        for one, other in zip(items, others, strict=True)
    )


def _at(tensor: torch.Tensor, dimension: int, index: torch.Tensor) -> torch.Tensor:
    """A copy of one place of a dimension, which stays; a number out of range raises as eager does."""
    items: tuple[Any, ...] = (*[WHOLE] * dimension, index.to(torch.int64).reshape(1))
    return READ(tensor, items)


def _dimension(tensor: torch.Tensor, items: Sequence[Any], number: int) -> int:
    """Which dimension of a tensor an item of an index is of."""
    rest = tensor.dim() - sum(_count(item) for item in items)
    return sum(rest if item is Ellipsis else _count(item) for item in items[:number])


def _count(item: Any) -> int:
    """How many dimensions an item takes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.dim() if isinstance(item, torch.Tensor) and item.dtype in MASKS else 1
