"""A name -> what is examined: Weft, eager itself, or eager with one deliberate fault that must be caught."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from tests.conformance.cases import Contestant
from tests.conformance.fresh import fresh
from torch.utils import _pytree as pytree

import weft
from weft.errors import ExecutionError, UnsupportedError
from weft.lazy_tensors import backoff as lazy_backoff
from weft.lazy_tensors import segment_plan as lazy_plan

REHEARSALS = 3


def around(change: Callable[..., Any]) -> Contestant:
    """Make a contestant that calls `change(function, *args, **kwargs)` in place of a function or a module's forward."""

    def contestant(target: Any) -> Any:
        if isinstance(target, torch.nn.Module):
            target.forward = functools.partial(change, target.forward)
            return target
        return functools.partial(change, target)

    return contestant


def one_ulp_off(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Change the last bit of every floating value of the result."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float32, torch.float64) and leaf.numel():
            with torch.no_grad():
                leaf.copy_(torch.nextafter(leaf, torch.full_like(leaf, torch.inf)))
        return leaf

    return pytree.tree_map(change, function(*args, **kwargs))


def results_copied(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Give copies of the results, so that no view is a view any more."""

    def change(leaf: Any) -> Any:
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(change, function(*args, **kwargs))


def arguments_copied(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Work on copies of the arguments, so that no mutation arrives."""
    args, kwargs = fresh((args, kwargs))
    return function(*args, **kwargs)


def other_stride(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Lay matrices out in the other order."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() == 2:
            return leaf.t().clone(memory_format=torch.contiguous_format).t()
        return leaf

    return pytree.tree_map(change, function(*args, **kwargs))


def other_stream(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Draw one random number too many."""
    torch.rand(1)
    return function(*args, **kwargs)


def other_error(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Raise another type of exception than the function does."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise OSError(str(error)) from error


def detached(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Lose the gradients."""
    with torch.no_grad():
        return function(*args, **kwargs)


def unsupported(_function: Callable[..., Any], *_args: Any, **_kwargs: Any) -> Any:
    """Support nothing."""
    fact = "nothing is supported here"
    raise UnsupportedError(fact)


def hybridize(target: Any) -> Any:
    """Examine Weft."""
    return weft.hybridize(target)


def compiled(target: Any) -> Any:
    """Examine Weft behind PyTorch's own tracer."""
    return torch.compile(target, backend="weft")


@contextlib.contextmanager
def lazy_throughout() -> Iterator[None]:
    """Let lazy code always queue, and compile short segments too: samples are small, and are looked at all the time."""
    never = mock.patch.object(lazy_backoff, "MOST_LOST", float("inf"))
    with never, mock.patch.object(lazy_plan, "COMPILED_AFTER", 0.0):
        yield


@lazy_throughout()
def lazily(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call it as lazy code, after calls on copies by which its operators are learned and compiled."""
    random_state = torch.get_rng_state()
    state = getattr(getattr(function, "__self__", None), "state_dict", dict)()
    kept = {name: value.clone() for name, value in state.items() if isinstance(value, torch.Tensor)}
    with contextlib.suppress(Exception):  # the last call below raises what is to be raised
        for _ in range(REHEARSALS):
            copied_args, copied_kwargs = fresh((args, kwargs))
            with weft.lazy():
                weft.wait(function(*copied_args, **copied_kwargs))
    with torch.no_grad():
        for name, value in kept.items():
            state[name].copy_(value)
    torch.set_rng_state(random_state)
    try:
        with weft.lazy():
            result = function(*args, **kwargs)
        return weft.wait(result)
    except ExecutionError as error:
        raise error.__cause__ or error from None


FAULTS: dict[str, Contestant] = {
    change.__name__: around(change)
    for change in (
        one_ulp_off,
        results_copied,
        arguments_copied,
        other_stride,
        other_stream,
        other_error,
        detached,
        unsupported,
    )
}

CONTESTANTS: dict[str, Contestant] = {
    "hybridize": hybridize,
    "lazy": around(lazily),
    "compile": compiled,
    "identity": lambda target: target,
    **FAULTS,
}
