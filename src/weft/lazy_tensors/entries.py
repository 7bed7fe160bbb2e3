"""What no interceptor is shown (autograd, parameters, transforms, programs) -> the same, given ordinary tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import nn

from weft.errors import UnsupportedError
from weft.lazy_tensors.questions import tensors_in
from weft.lazy_tensors.session import SESSION
from weft.lazy_tensors.tensor import LazyTensor
from weft.trace.encoder import replace_forward
from weft.trace.interception.modes import TRANSFORMS, compile_nothing_under, has_function_modes, without_modes

_REPLACED: list[Any] = []


class HoldsState(Protocol):
    """A program's owner: what it reaches from its root may be lazy tensors."""

    root: Any

    def _state(self, root: Any) -> Any: ...


def intercept_entries(kind: type, calls: Iterable[tuple[type, str]], traces: Iterable[tuple[type, str]]) -> None:
    """Let what no interceptor sees take lazy tensors; done once, at the first lazy block.

    Backwards, functions of autograd and programs run code that expects ordinary tensors, and may read or write what is
    queued: modes of this kind, which would queue what that code calls, are off meanwhile. What `torch.compile` made
    runs as the lazy code that it was made of: a second compiler would only see stand-ins.

    `calls` and `traces` are the methods, each with its class, that call programs and that trace them.
    """
    if _REPLACED:
        return

    def at_once(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not has_function_modes() and not any(
            tensor.__class__ is LazyTensor for tensor in tensors_in((args, kwargs))
        ):
            return function(*args, **kwargs)
        SESSION.finish_and_tell()  # that code may read or write what is queued
        with without_modes(kind):
            return SESSION.now(function, args, kwargs, changes=True)

    torch.autograd.backward = _around(torch.autograd.backward, at_once)
    apply = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]
    torch.autograd.Function.apply = classmethod(_around(apply, _without_self(at_once)))  # type: ignore[assignment]
    for module, name in ((torch.jit, "trace"), (torch.jit, "trace_module")):
        setattr(module, name, _around(getattr(module, name), at_once))
    for program, name in calls:
        call = _around(getattr(program, name), _again_without_lazy_state)
        setattr(program, name, _around(call, _without_self(at_once)))
    for program, name in traces:
        setattr(program, name, _around(getattr(program, name), _without_lazy_state))
    for owner in (nn.Parameter, nn.Buffer):
        setattr(owner, "__new__", staticmethod(_around(owner.__new__, _settled)))  # noqa: B010
    for module, name in TRANSFORMS:
        setattr(module, name, _around(getattr(module, name), _settled))
    compile_nothing_under(kind)
    replace_forward()


def _around(function: Callable[..., Any], caller: Callable[[Callable[..., Any], Any, Any], Any]) -> Callable[..., Any]:
    """A function whose calls are made by `caller`."""
    _REPLACED.append(function)

    @functools.wraps(function)
    def around(*args: Any, **kwargs: Any) -> Any:
        return caller(function, args, kwargs)

    return around


def _without_self(caller: Callable[..., Any]) -> Callable[..., Any]:
    """The same for methods: only what follows the first argument is looked at."""
    return lambda function, args, kwargs: caller(functools.partial(function, args[0]), args[1:], kwargs)


def _again_without_lazy_state(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a program; where it refuses a lazy tensor that its module holds, do so again with the ordinary one there."""
    try:
        return function(*args, **kwargs)
    except UnsupportedError:
        if not _settle_state(args[0]):
            raise
    return function(*args, **kwargs)


def _without_lazy_state(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    _settle_state(args[0])
    return function(*args, **kwargs)


def _settle_state(program: HoldsState) -> bool:
    """Put the ordinary tensor in the place of each lazy one that a program would reach; tell whether there was any."""
    found = False
    for slot in list(program._state(program.root).slots.values()):
        tensor = slot.get()
        if tensor.__class__ is not LazyTensor or isinstance(slot.container, tuple):
            continue
        found = True
        slot.put(SESSION.settled(tensor))
    return found


def _settled(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Make a parameter, say, of the ordinary tensor that a lazy one stands for: it shares its memory."""
    if any(tensor.__class__ is LazyTensor for tensor in tensors_in((args, kwargs))):
        args, kwargs = SESSION.settled(list(args)), SESSION.settled(kwargs)
    return function(*args, **kwargs)
