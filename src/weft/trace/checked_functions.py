"""Functions of PyTorch that look at data only of real tensors -> the same with that look as an operator of the program.

Under a tracer `one_hot` leaves out its check of classes, and gives a row of zeros for one that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional

from weft.trace.interception.capture import is_plain_stand_in

NOT_GIVEN = -1  # as many classes as the largest one says, which a program cannot know


def _one_hot(tensor: torch.Tensor, num_classes: int = NOT_GIVEN) -> torch.Tensor:
    if num_classes != NOT_GIVEN and is_plain_stand_in(tensor):
        if num_classes <= 0:
            empty = "Can not infer total number of classes from empty tensor."
            raise RuntimeError("Class values must be smaller than num_classes." if tensor.numel() else empty)
        torch.ops.weft.check_one_hot(tensor, num_classes)
    return functional.one_hot(tensor, num_classes)


CHECKED: Mapping[Any, Callable[..., Any]] = MappingProxyType({functional.one_hot: _one_hot})


def with_check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give what to call in the place of a function."""
    return CHECKED.get(function, function)
