"""Calls of PyTorch operators and paths of views -> what they give, as plain PyTorch code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.errors import UsageError
from weft.ir import library
from weft.ir.calls import HOLE, Argument, Call, Operand, Path, WrittenArgument, flat_results, map_arguments
from weft.ir.graph import Value
from weft.ir.types import TupleType


def filled(operands: Sequence[Any], written: Sequence[torch.Tensor] = ()) -> Callable[[Argument], Any]:
    """Make the function that puts tensors and numbers in the place of what stands for them."""

    def fill(leaf: Argument) -> Any:
        if isinstance(leaf, Operand):
            return operands[leaf.index]
        return written[leaf.index] if isinstance(leaf, WrittenArgument) else leaf

    return fill


def _run(call: Call, fill: Callable[[Argument], Any]) -> Any:
    operator = library.resolve(call.target)
    arguments = map_arguments(call.arguments, fill)
    keywords = {name: map_arguments(argument, fill) for name, argument in call.keywords}
    return operator(*arguments, **keywords)


def run_library(value: Value, *operands: Any) -> Any:
    """What an operator that writes nothing gives."""
    result = _run(value.attributes["call"], filled(operands))
    return tuple(flat_results(result)) if isinstance(value.type, TupleType) else result


def run_update(value: Value, *operands: Any) -> Any:
    """Run an operator that writes on private copies: its fresh results, then the copies."""
    call: Call = value.attributes["call"]
    copies = {place.base: private_copy(operands[place.base]) for place in call.written}
    written = [take_path(copies[place.base], place.path) for place in call.written]
    result = _run(call, filled(operands, written))
    fresh = [leaf for leaf in flat_results(result) if not any(_is_one_memory(leaf, tensor) for tensor in written)]
    results = (*fresh, *copies.values())
    return results if isinstance(value.type, TupleType) else results[0]


def take_path(tensor: torch.Tensor, path: Path) -> torch.Tensor:
    """The view of a tensor that a path leads to."""
    for step in path:
        arguments, keywords = _step_arguments(tensor, step.arguments), dict(_step_arguments(tensor, step.keywords))
        whole = library.resolve(step.target)(*arguments, **keywords)
        tensor = whole if step.item is None else flat_results(whole)[step.item]
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"the view step {step.target} gives {type(tensor).__name__}, not a tensor")
    return tensor


def _step_arguments(tensor: torch.Tensor, arguments: Any) -> Any:
    return map_arguments(arguments, lambda leaf: tensor if leaf is HOLE or leaf == HOLE else leaf)


def private_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own that looks like the tensor in every way: sizes, strides, offset, gaps.

    The whole storage is copied, because a view taken of the copy may reach what lies between or around the elements.
    """
    storage = tensor.untyped_storage().clone()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    copy = copy.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    copy = copy.conj() if tensor.is_conj() else copy
    return copy._neg_view() if tensor.is_neg() else copy


def _is_one_memory(leaf: Any, tensor: torch.Tensor) -> bool:
    if leaf is tensor:
        return True
    if not isinstance(leaf, torch.Tensor):
        return False
    address = leaf.untyped_storage().data_ptr()
    return address != 0 and address == tensor.untyped_storage().data_ptr()
