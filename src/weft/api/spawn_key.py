"""A call in the background -> its kind: of calls of one kind, what one was seen to write holds for the others.

Functions made by one piece of code are one kind only if what they call is too: a decorator's wrappers share their code.
Modules, and other objects that are called, are kinds of their own.
"""

from __future__ import annotations

import functools
import itertools
import types
from typing import Any

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from weft.trace.python_state.containers import look

BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
DEEPEST = 4  # functions in functions; a function that refers to itself has no end
_numbers = itertools.count()
_tokens = WeakIdKeyDictionary()  # equal objects are not one


def kind_of_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give what calls of one kind have in common."""
    given = [thing for thing in (*args, *kwargs.values()) if isinstance(thing, nn.Module | types.FunctionType)]
    return (_kind(function), len(args), tuple(kwargs), *map(_kind, given))


def _kind(thing: Any, depth: int = 0) -> Any:
    if depth == DEEPEST:
        return type(thing)
    if isinstance(thing, functools.partial):
        return (functools.partial, *(_kind(part, depth + 1) for part in (thing.func, *thing.args) if callable(part)))
    if isinstance(thing, types.MethodType):
        return (_kind(thing.__func__, depth + 1), _kind(thing.__self__, depth + 1))
    if isinstance(thing, types.FunctionType):
        return (thing.__code__, *(_kind(part, depth + 1) for part in _captured(thing)))
    if isinstance(thing, BUILTIN):
        return (type(thing), thing.__qualname__)
    if isinstance(thing, nn.Module):
        return (_token(thing), thing.training)
    return _token(thing)


def _captured(function: types.FunctionType) -> list[Any]:
    """What may be called among what a function has from around it."""
    found = (look(cell, None) for cell in function.__closure__ or ())
    return [thing for thing in found if callable(thing) and not isinstance(thing, type)]


def _token(thing: Any) -> Any:
    """A number of an object's own; of objects that cannot be told apart, their type."""
    try:
        return _tokens.setdefault(thing, next(_numbers))
    except TypeError:
        return type(thing)
