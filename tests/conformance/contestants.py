"""A name -> what is examined: Weft, eager itself, or eager with one deliberate fault that must be caught."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from tests.conformance.cases import Contestant
from tests.conformance.fresh import fresh
from torch.utils import _pytree as pytree

import weft
from weft.errors import UnsupportedError


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

CONTESTANTS: dict[str, Contestant] = {"hybridize": hybridize, "identity": lambda target: target, **FAULTS}
