"""Put programs in the place of a module's forward, or of a function, and find what runs the programs of one."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import FunctionType
from typing import Any, TypeVar, overload

from torch import nn

from weft.api.declared_sizes import refuse_unknown
from weft.api.hybrid import Hybrid, ModuleForward
from weft.api.hybrid_function import HybridFunction
from weft.api.hybrid_options import HybridOptions, refuse_active, refuse_compiled, refuse_unknown_options, refuse_wrong
from weft.compile.precision import FULL
from weft.errors import UsageError, named
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
        raise UsageError(f"{named(thing)} is neither a module nor a function")
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


DECORATED: Any = object()  # what follows the parentheses of `@weft.hybridize(...)`
Thing = TypeVar("Thing", bound=Callable[..., Any])


@overload
def hybridize(
    thing: Thing,
    active: bool = True,
    *,
    whole: bool | None = None,
    python: str = "once",
    fallback: str | None = None,
    check: int = 0,
    precision: str = FULL,
    sizes: Mapping[Any, Any] | None = None,
) -> Thing: ...


@overload
def hybridize(
    *,
    active: bool = True,
    whole: bool | None = None,
    python: str = "once",
    fallback: str | None = None,
    check: int = 0,
    precision: str = FULL,
    sizes: Mapping[Any, Any] | None = None,
) -> Callable[[Thing], Thing]: ...


@shows_less
def hybridize(thing: Any = DECORATED, active: bool = True, **options: Any) -> Any:
    """Run a module or a function as whole programs: traced at the first call of each signature, then run natively.

    A module is changed in place and given back; a function is replaced (use the result, or decorate with it).
    `active=False` restores what was there before. Code that no program can be made of, as it looks at values, say, is
    run by Python at each call, and `weft.explain` says why; with `whole=True` it raises UnsupportedError, and with
    `fallback="eager"` it warns once. What whole programs print they print once, when they are made; with `python="run"`
    code that prints or logs is run by Python too. The first `check` calls are made by eager PyTorch too, and compared
    in all that they give and change; MismatchError tells what differs. Calls without gradients compute products with
    weights, convolutions and attentions of float32 in another `precision`, where one is given: "bfloat16", "float16" or
    "int8". `sizes` names sizes that vary, as `{"x": {0: "batch", 1: ("length", 1, 512)}}`: equal names are equal sizes,
    a range is a promise, and the first call already makes a program for many sizes. A call that breaks a promise is a
    UsageError.
    """
    if not isinstance(active, bool):
        refuse_active(active)
    refuse_unknown_options(options, [field.name for field in fields(HybridOptions)])
    found = HybridOptions(**options)
    if thing is DECORATED:
        return functools.partial(hybridize, active=active, **options)
    if isinstance(thing, (classmethod, property)):
        return _hybridize_inside(thing, active, options)
    if isinstance(thing, nn.Module):
        return _hybridize_module(thing, active, found)
    if isinstance(thing, HybridFunction):
        thing = thing.function
    refuse_wrong(thing)
    refuse_unknown(found.sizes, thing)
    return HybridFunction(thing, found) if active else thing


def _hybridize_inside(thing: Any, active: bool, options: Mapping[str, Any]) -> Any:
    """Hybridize the function that a class method, or a property, calls; the rest stays as it is."""
    if isinstance(thing, classmethod):
        return type(thing)(hybridize(thing.__func__, active, **options))
    return thing.getter(hybridize(thing.fget, active, **options))


def _hybridize_module(module: nn.Module, active: bool, options: HybridOptions) -> nn.Module:
    before = module.__dict__.get("forward")
    refuse_compiled(module)
    if before is not None and not isinstance(before, ModuleForward):
        raise UsageError(
            f"{type(module).__name__} has a forward of its own instance",
            why="someone replaced module.forward, and hybridize would have to replace it again",
            fix="hybridize before wrapping, or remove the instance's forward",
        )
    refuse_unknown(options.sizes, type(module).forward)
    if before is not None:
        del module.forward
    if active:
        module.forward = ModuleForward(module, options)
        let_copies_have_their_own()
    return module


def _copied(module: nn.Module) -> nn.Module:
    """Copy a module as `copy.copy` does: with its attributes, but with programs of its own."""
    reduced = module.__reduce_ex__(4)
    if isinstance(reduced, str):
        return module
    made: nn.Module = copy._reconstruct(module, None, *reduced)  # type: ignore[attr-defined]
    forward = made.__dict__.get("forward")
    if isinstance(forward, ModuleForward) and forward.root is not made:
        made.forward = ModuleForward(made, forward.options)
    return made


def let_copies_have_their_own() -> None:
    """Let `copy.copy` of a hybridized module run the copy: all attributes are the same, `forward` among them."""
    if not hasattr(nn.Module, "__copy__"):
        nn.Module.__copy__ = _copied  # type: ignore[attr-defined]
