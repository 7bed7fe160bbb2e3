"""A model and its inputs -> every place of it that cannot run as a program, all at once.

A trace ends at the first such place. So the model also runs imperatively once, watched, which shows every place that
leaves the world of tensors; and the modules inside of one that cannot be traced are traced alone, which shows the rest.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from weft.api.hybrid import program
from weft.api.steps.step import Step
from weft.errors import UnsupportedError
from weft.ir.graph import Place
from weft.owners import Owner, owner_of
from weft.trace.forbidden import kind_of_refusal
from weft.trace.refusals import refusal

# Their results are as large as the values of a tensor say.
DYNAMIC = frozenset(
    {
        torch.nonzero,
        torch.Tensor.nonzero,
        torch.argwhere,
        torch.masked_select,
        torch.Tensor.masked_select,
        torch.unique,
        torch.Tensor.unique,
        torch.bincount,
        torch.Tensor.bincount,
    }
)
Calls = dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]]


def obstacles(thing: Callable[..., Any], inputs: tuple[Any, ...]) -> list[UnsupportedError]:
    """List what is in the way, each place once; none if the model can be traced as it is."""
    if isinstance(thing, Step):
        whole = _refusal_of(thing, inputs, {})  # it needs gradients, and cannot run imperatively
        return [] if whole is None else [whole]
    with torch.no_grad():
        whole = _refusal_of(thing, inputs, {})
        if whole is None:
            return []
        watch = _Watch()
        calls: Calls = {}
        with _recorded(thing, calls), watch:
            thing(*inputs)
        found = [whole, *watch.found.values()]
        if isinstance(thing, nn.Module):
            found += [error for child in thing.children() for error in _inside(child, calls)]
    # By place and kind: a trace may name the operator too, so it says more and comes first.
    return list({(error.where, error.fix): error for error in reversed(found)}.values())[::-1]


class _Watch(TorchFunctionMode):
    """Notes where functions are called that no program can hold, and lets them run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str, int], UnsupportedError] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kind = kind_of_refusal(func) or ("data-dependent shape" if _is_dynamic(func, args) else None)
        place = _place() if kind is not None else None
        if kind is not None and place is not None:
            key = (kind, place.filename, place.line)
            self.found.setdefault(key, refusal(kind, place))
        return func(*args, **(kwargs or {}))


def _is_dynamic(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    if function is torch.Tensor.__getitem__:
        indices = arguments[1] if isinstance(arguments[1], tuple) else arguments[1:2]
        return any(isinstance(index, torch.Tensor) and index.dtype is torch.bool for index in indices)
    return function in DYNAMIC or (function is torch.where and len(arguments) == 1)


def _place() -> Place | None:
    """The innermost line that is neither PyTorch's nor this file's."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename != __file__ and owner_of(frame.filename) is not Owner.TORCH:
            return Place(frame.filename, frame.lineno or 1, frame.name)
    return None


@contextlib.contextmanager
def _recorded(thing: Callable[..., Any], calls: Calls) -> Iterator[None]:
    """Note what every module inside is called with first."""

    def note(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        calls.setdefault(module, (arguments, keywords))

    modules = thing.modules() if isinstance(thing, nn.Module) else ()
    handles = [module.register_forward_pre_hook(note, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _inside(module: nn.Module, calls: Calls) -> list[UnsupportedError]:
    """What is in the way in a module and those inside of it; one that can be traced has nothing inside."""
    arguments, keywords = calls.get(module, ((), {}))
    if module in calls:
        error = _refusal_of(module, arguments, keywords)
        if error is None:
            return []
        return [error, *(each for child in module.children() for each in _inside(child, calls))]
    return [each for child in module.children() for each in _inside(child, calls)]


def _refusal_of(
    thing: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> UnsupportedError | None:
    try:
        program(thing, *arguments, **keywords)
    except UnsupportedError as error:
        return error
    return None
