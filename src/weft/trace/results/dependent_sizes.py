"""Find the results of operators whose sizes depend on values: they are constants, or may only be handed out.

A mask that code writes down (`~torch.eye(n, dtype=torch.bool)`) says while tracing how many elements it leaves. So does
a tensor of counts, of which `repeat_interleave` makes as many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from weft.ir.library import has_effect, name_of
from weft.ir.types import UnsizedType
from weft.trace.interception.capture import Operator, outside_tracing, tree_flatten, tree_map_only

Elements = Callable[[torch.Tensor], torch.Tensor | None]
INDEX, SELECT = "aten.index.Tensor", "aten.masked_select.default"
MASKS = (torch.bool, torch.uint8)


class SizesOfConstants:
    """Calls operators on what is known: `elements` tells it, `constant` makes a stand-in, `record` calls another."""

    def __init__(self, elements: Elements, constant: Callable[[torch.Tensor], Any], record: Callable[..., Any]) -> None:
        self._elements = elements
        self._constant = constant
        self._record = record

    def result(self, operator: Operator, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """The result of a call, on stand-ins; None where its size is not known."""
        target = name_of(operator)
        tensors = [leaf for leaf in tree_flatten((arguments, keywords))[0] if isinstance(leaf, torch.Tensor)]
        known = {id(tensor): self._elements(tensor) for tensor in tensors}
        if all(found is not None for found in known.values()) and not has_effect(target):
            given, named = tree_map_only(torch.Tensor, lambda tensor: known[id(tensor)], (arguments, keywords))
            with outside_tracing():
                found = operator(*given, **named)
            return tree_map_only(torch.Tensor, self._constant, found)
        if target == SELECT:
            values, mask = torch.broadcast_tensors(*arguments)
            return self._indexed(values, [mask], known | {id(mask): self._elements(mask)})
        return self._indexed(arguments[0], arguments[1], known) if target == INDEX else None

    def _indexed(self, values: torch.Tensor, indices: Sequence[Any], known: dict[int, Any]) -> Any:
        """An index in which each mask is told as the places that it leaves, in each dimension."""
        places: list[torch.Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in MASKS:
                places.append(index)
                continue
            mask = known[id(index)]
            if mask is None:
                return None
            with outside_tracing():
                found = mask.nonzero().unbind(1)
            places += map(self._constant, found)
        return self._record(torch.ops.aten.index.Tensor, (values, places), {})


# A program's sizes are fixed when it is traced, so such a result can go nowhere but out: whatever else touches it is
# refused. `torch.unique` is used in this way, as a last step; masks and index lists are not, and stay refused.

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
