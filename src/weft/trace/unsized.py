"""Operators whose results have a size that only a run knows, and may be handed out all the same.

A program's sizes are fixed when it is traced, so such a result can go nowhere but out: whatever else touches it is
refused. `torch.unique` is used in this way, as a last step; masks and index lists are not, and stay refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from weft.ir.types import UnsizedType

# By operator: how many results, and which have the dtype of the argument (the others count or number elements: int64).
UNSIZED: Mapping[str, tuple[bool, ...]] = MappingProxyType(
    {
        "aten._unique2.default": (True, False, False),
        "aten.unique_consecutive.default": (True, False, False),
        "aten.unique_dim.default": (True, False, False),
        "aten.unique_dim_consecutive.default": (True, False, False),
    }
)


def unsized_types(target: str, operand: torch.Tensor) -> tuple[UnsizedType, ...]:
    """The types of an operator's results."""
    return tuple(UnsizedType(operand.dtype if alike else torch.int64, operand.device) for alike in UNSIZED[target])
