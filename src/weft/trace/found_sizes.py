"""Say how large results are whose sizes an operator finds out: a number that it counts, within a bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch

from weft.ir.library import name_of
from weft.trace.interception.capture import Operator

LEAST = 1  # of a size that varies: where nothing is found, operators do other things, or raise
LEAST_OF_ARGUMENTS = 2  # sizes of 1 are broadcast, and nothing is computed of sizes of 0
TRACED_FROM = 2  # a program for many sizes is made where there are so many: of one, there is no order in memory
ROOM = 2  # times as large as it is, a size may become in the same program
SMALLEST_ROOM = 16
Shape = Sequence[Any]


def _no_bound(_: Any) -> None:
    return None


def _first(_: Any) -> int:
    return 0


def _list(given: Any, count: Any) -> Sequence[Shape]:
    del given
    return [(count,)]


@dataclass(frozen=True, slots=True)
class Finding:
    """The results of an operator: their shapes, for a count; which dimension of the first one it is; its bound.

    All are functions of the operator's arguments by name; `order` are the dimensions of the first result, the outermost
    in memory first, where they do not lie in rows.
    """

    shapes: Callable[[Any, Any], Sequence[Shape]] = _list
    bound: Callable[[Any], Any] = _no_bound
    dimension: Callable[[Any], int] = _first
    order: Callable[[Any], Sequence[int] | None] = _no_bound


def _of_unique(given: Any, count: Any) -> Sequence[Shape]:
    inverse, counts = getattr(given, "return_inverse", False), getattr(given, "return_counts", False)
    whole = tuple(given.self.shape)
    return (count,), whole if inverse else (0,), (count,) if counts else (0,)


def _of_unique_rows(given: Any, count: Any) -> Sequence[Shape]:
    shape, dimension = list(given.self.shape), _dimension(given)
    rows = shape[dimension]
    shape[dimension] = count
    inverse, counts = getattr(given, "return_inverse", False), getattr(given, "return_counts", False)
    return tuple(shape), (rows,) if inverse else (0,), (count,) if counts else (0,)


def _dimension(given: Any) -> int:
    rank: int = given.self.dim()
    return int(given.dim) % max(rank, 1)


def _selected(given: Any) -> Any:
    shapes = (reversed(given.self.shape), reversed(given.mask.shape))
    found = 1
    for size, other in zip_longest(*shapes, fillvalue=1):
        found *= other if size == 1 else size
    return found


def _elements(given: Any) -> Any:
    return given.self.numel()


def _places_of(given: Any, count: Any) -> Sequence[Shape]:
    return [(count, given.self.dim())]


def _in_columns(_: Any) -> Sequence[int]:
    return (1, 0)


def _rows(given: Any) -> Any:
    return given.self.shape[_dimension(given)]


def _rows_first(given: Any) -> Sequence[int]:
    first = _dimension(given)
    return (first, *(at for at in range(given.self.dim()) if at != first))


FINDINGS: Mapping[str, Finding] = MappingProxyType(
    {
        "aten.nonzero.default": Finding(_places_of, _elements, order=_in_columns),
        "aten.masked_select.default": Finding(_list, _selected),
        "aten._unique2.default": Finding(_of_unique, _elements),
        "aten.unique_consecutive.default": Finding(_of_unique, _elements),
        "aten.unique_dim.default": Finding(_of_unique_rows, _rows, _dimension, _rows_first),
        "aten.repeat_interleave.Tensor": Finding(),
        "aten.bincount.default": Finding(),
    }
)


def finding_of(operator: Operator, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Finding, Any] | None:
    """How an operator's results depend on a count, with its arguments by name; None of another operator."""
    found = FINDINGS.get(name_of(operator))
    if found is None:
        return None
    names = (parameter.name for parameter in operator._schema.arguments)
    return found, SimpleNamespace(**dict(zip(names, arguments, strict=False)) | dict(keywords))


def lies_in(tensor: torch.Tensor, order: Sequence[int] | None) -> bool:
    """Whether a tensor has no gaps in memory, with its dimensions in this order."""
    return (tensor if order is None else tensor.permute(tuple(order))).is_contiguous()


def room_for(count: int, bound: int | None) -> int:
    """How large a size may become in a program that is made where it is `count`."""
    room = max(1 << (ROOM * count - 1).bit_length(), SMALLEST_ROOM)
    return room if bound is None or bound > ROOM * room else max(bound, TRACED_FROM)
