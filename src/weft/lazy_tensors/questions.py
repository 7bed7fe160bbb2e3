"""What is asked of calls, results and threads without waiting for anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from sys import _getframe
from types import CodeType, FrameType
from typing import Any

import torch
from torch import is_autocast_enabled, is_inference_mode_enabled

from weft.engine.workers import WORKING
from weft.lazy_tensors.learning import flat
from weft.lazy_tensors.table import LOOKING
from weft.lazy_tensors.tensor import LazyTensor
from weft.owners import Owner, owner_of
from weft.runtime.lazy_calls import native_strangers
from weft.trace.interception.capture import running_autograd_number, traced_elsewhere, tree_map_only, without_functions

strangers = native_strangers()


def as_given(result: Any, reals: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> Any:
    """A result in which arguments that are handed back are the very objects that were given."""
    if isinstance(result, torch.Tensor):
        return next((tensor for real, tensor in zip(reals, given, strict=True) if real is result), result)
    if type(result) in (tuple, list) and any(isinstance(item, torch.Tensor) for item in flat(result)):
        return type(result)(as_given(item, reals, given) for item in result)
    return result


def called(function: Callable[..., Any], args: Any, kwargs: Any, given: Any, reals: Any) -> Any:
    """Call a function with these tensors in the place of those given."""
    if any(tensor.__class__ is LazyTensor for tensor in given):
        by_id = {id(tensor): real for tensor, real in zip(given, reals, strict=True)}
        if not kwargs and len(given) == len(args):  # as most calls are: tensors, and nothing else
            args = reals
        else:
            args, kwargs = tree_map_only(LazyTensor, lambda tensor: by_id[id(tensor)], (args, kwargs))
    return as_given(function(*args, **kwargs), reals, given)


def tensors_in(item: Any, *, noted: bool = False) -> Iterator[torch.Tensor]:
    """The tensors of nested arguments; if `noted`, without those of lists and tuples whose memory nobody has noted."""
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, (tuple, list)):
        if not (noted and strangers(item)):
            for entry in item:
                yield from tensors_in(entry, noted=noted)
    elif isinstance(item, dict):
        for entry in item.values():
            yield from tensors_in(entry, noted=noted)


def look_at(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Answer a question about a tensor that needs no elements."""
    tensor = args[0]
    if tensor.__class__ is not LazyTensor:
        return function(*args, **kwargs)
    value = tensor.value
    if value.real is not None:
        return function(value.real, *args[1:], **kwargs)
    name = LOOKING[function]
    if name:
        return getattr(value.look, name)
    with without_functions():
        return function(*args, **kwargs)


def user_place() -> tuple[CodeType, int]:
    """The code and instruction of the user's that called into PyTorch."""
    return place_of(_getframe(2))  # whoever asks is of Weft itself


def is_users(code: CodeType) -> bool:
    """Whether code is the user's: neither Weft's own nor PyTorch's."""
    return owner_of(code.co_filename) not in (Owner.WEFT, Owner.TORCH)


def place_of(frame: FrameType) -> tuple[CodeType, int]:
    """The code and instruction of the user's that this frame belongs to, or was called from."""
    while True:
        code = frame.f_code
        if is_users(code) or frame.f_back is None:
            return code, frame.f_lasti
        frame = frame.f_back


def in_task() -> bool:
    """Whether this code runs in a task of the engine."""
    return getattr(WORKING, "worker", None) is not None


def is_like_a_worker() -> bool:
    """Whether operators do on this thread, which runs no task, what they would do on one of the engine's."""
    if is_autocast_enabled("cpu") or is_inference_mode_enabled() or running_autograd_number() is not None:
        return False
    return not traced_elsewhere(()) and not in_task()


def each_tensor(change: Callable[[torch.Tensor], torch.Tensor], thing: Any) -> Any:
    """Nested values with what a change makes of each tensor in its place; none of lists and tuples of strangers."""
    if isinstance(thing, torch.Tensor):
        return change(thing)
    if type(thing) in (list, tuple):
        return type(thing)(thing if strangers(thing) else [each_tensor(change, item) for item in thing])
    if type(thing) is dict:
        return {key: each_tensor(change, item) for key, item in thing.items()}
    if isinstance(thing, (list, tuple, dict)) and any(True for _ in tensors_in(thing)):
        # Named ones, such as torch.max gives.
        return tree_map_only(torch.Tensor, change, thing)
    return thing
