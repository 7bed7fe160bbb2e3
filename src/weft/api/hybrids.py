"""Find what runs the programs of a module or function, also of one that is not hybridized."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import nn

from weft.api.hybrid import Hybrid, HybridFunction, ModuleForward
from weft.api.hybrid_options import HybridOptions
from weft.errors import UsageError
from weft.programs.program import Program
from weft.tracebacks import shows_less


def hybrid_of(thing: Any) -> Hybrid:
    """What runs the programs of a module or function; made for the occasion if it is not hybridized."""
    if isinstance(thing, Hybrid):
        return thing
    if isinstance(thing, nn.Module):
        found = thing.__dict__.get("forward")
        return found if isinstance(found, ModuleForward) else ModuleForward(thing)
    if not callable(thing):
        raise UsageError(f"{thing!r} is neither a module nor a function")
    return HybridFunction(thing)


def checked(thing: Any, calls: int) -> Hybrid:
    """What runs a module's or function's programs, and makes its next calls by eager PyTorch too.

    It has programs of its own, but for a step, whose state there is once.
    """
    if isinstance(thing, nn.Module):
        return ModuleForward(thing, HybridOptions(check=calls))
    if isinstance(thing, (HybridFunction, FunctionType)):
        return HybridFunction(getattr(thing, "function", thing), HybridOptions(check=calls))
    found = hybrid_of(thing)
    found.check_next(calls)
    return found


@shows_less
def program(thing: Callable[..., Any], *arguments: Any, **keywords: Any) -> Program:
    """The program that a module or function runs for these arguments; traced if it has not been yet."""
    return hybrid_of(thing).program(arguments, keywords)
