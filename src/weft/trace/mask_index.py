"""Index by masks (`x[mask]`, `x[:, mask] = y`, `masked_select`) through the places that they leave, as PyTorch does.

How many places a mask leaves is found out once, by `nonzero`; all that is read or written by it is then a gather or a
scatter, with a gradient of the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch

from weft.trace.interception.capture import is_stand_in

READ = torch.Tensor.__getitem__
WRITE = torch.Tensor.__setitem__
SELECTS = (torch.masked_select, torch.Tensor.masked_select)
MASKS = (torch.bool, torch.uint8)


def with_places(
    function: Callable[..., Any], arguments: Sequence[Any], is_known: Callable[[torch.Tensor], bool]
) -> Callable[..., Any] | None:
    """What to call in the place of a read, or a write of a tensor, by masks that are not known beforehand."""
    if function in SELECTS:
        mask = arguments[1] if len(arguments) == 2 else None
        return _select if _is_mask(mask) and mask.dtype is torch.bool and not is_known(mask) else None
    if function is not READ and not (function is WRITE and _is_many(arguments[2])):
        return None
    items = _items(arguments[1])
    masks = [item for item in items if _is_mask(item)]
    if not masks or any(isinstance(item, list) for item in items) or all(map(is_known, masks)):
        return None
    return None if _places(arguments[0], items, count=True) is None else (_read if function is READ else _write)


def _is_many(value: Any) -> bool:
    """Whether a value that is written may be as large as a mask says; what has one element fills."""
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _is_mask(item: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(item, torch.Tensor) and item.dtype in MASKS and item.dim() > 0 and is_stand_in(item)


def _items(given: Any) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else (given,)


def _places(tensor: torch.Tensor, items: tuple[Any, ...], *, count: bool = False) -> tuple[Any, ...] | None:
    """An index with each mask as the places that it leaves; None where a mask is not of the tensor's sizes.

    With `count`, it is only looked at.
    """
    rest = tensor.dim() - sum(map(_dimensions, items))
    found: list[Any] = []
    dimension = 0
    for item in items:
        if _is_mask(item):
            if tuple(item.shape) != tuple(tensor.shape[dimension : dimension + item.dim()]):
                return None
            found += [None] * item.dim() if count else item.nonzero().unbind(1)
        else:
            found.append(item)
        dimension += rest if item is Ellipsis else _dimensions(item)
    return tuple(found)


def _dimensions(item: Any) -> int:
    """How many dimensions of what is indexed an item stands for."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.dim() if isinstance(item, torch.Tensor) and item.dtype in MASKS else 1


def _select(tensor: torch.Tensor, mask: torch.Tensor, **others: Any) -> Any:
    if others:
        return torch.masked_select(tensor, mask, **others)
    if tuple(tensor.shape) != tuple(mask.shape):
        tensor, mask = torch.broadcast_tensors(tensor, mask)
    return _read(tensor, mask)


def _read(tensor: torch.Tensor, given: Any) -> Any:
    return READ(tensor, _places(tensor, _items(given)))


def _write(tensor: torch.Tensor, given: Any, value: Any) -> None:
    WRITE(tensor, _places(tensor, _items(given)), value)
