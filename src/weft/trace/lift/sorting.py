"""PyTorch operators that find the first numbers of an order -> small ops."""

from __future__ import annotations

import torch

from weft.trace.lift.arguments import Arguments, Rules
from weft.trace.lift.expression import Expression

MOST_SORTED = 17
MOST_OF_ONE = 64


def is_selected(extent: int, count: int) -> bool:
    """Whether PyTorch finds the first `count` of so many by nth_element, and sorts them by insertion."""
    return 0 < count <= MOST_SORTED and count <= extent < count * MOST_OF_ONE


def top(arguments: Arguments) -> tuple[Expression, ...]:
    """The largest or smallest along a dimension, and where they are."""
    x = arguments.tensor("self")
    if x.rank == 0:
        return x, arguments.full(0, torch.int64)
    dimension, count = arguments.dimension("dim", x.rank), arguments.literal("k")
    arguments.require(x.dtype is not torch.bool and x.kind.size > 0, "of truth values or nothing")
    arguments.require(is_selected(x.shape[dimension], count), "that PyTorch finds in another way")
    moved = x.transpose(dimension, x.rank - 1)
    keeps = {"largest": bool(arguments.literal("largest")), "sorted": bool(arguments.literal("sorted"))}
    places = moved.build("top_places", count=count, **keeps)
    values = moved.build("gather", places, dimension=x.rank - 1)
    return values.transpose(dimension, x.rank - 1), places.transpose(dimension, x.rank - 1)


SORTING: Rules = {"aten.topk.default": top}
