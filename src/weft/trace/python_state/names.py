"""List the names that the code of a function mentions, and what global and closed-over ones stand for."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any, TypeVar

from weft.owners import Owner, owner_of
from weft.trace.python_state.containers import MISSING, look

LIBRARIES = frozenset({"torch", "weft", "numpy", "math", "functools", "builtins", "typing", "collections", "warnings"})
NAMESPACES = frozenset({"globals", "vars", "eval", "exec", "locals"})
# By instruction: how many low bits of its argument are flags, and not the number of the name.
_READS_NAME = {dis.opmap["LOAD_GLOBAL"]: int(sys.version_info >= (3, 11)), dis.opmap["LOAD_NAME"]: 0}
_BINDS_NAME = {dis.opmap["STORE_GLOBAL"], dis.opmap["DELETE_GLOBAL"]}
MOST_CODE = 4096  # pieces of which answers are kept
Place = tuple[Any, Any, str, Any]  # a container, a key in it, the path, what is there
Answer = TypeVar("Answer")


def kept(question: Callable[[types.CodeType], Answer]) -> Callable[[types.CodeType], Answer]:
    """Answer a question about code once: it never changes. It is known by identity, as comparing code takes longer."""
    known: dict[int, tuple[types.CodeType, Answer]] = {}

    @wraps(question)
    def answer(code: types.CodeType) -> Answer:
        found = known.get(id(code))  # of this code: an entry holds its own
        if found is None:
            if len(known) >= MOST_CODE:
                known.clear()
            found = known[id(code)] = code, question(code)
        return found[1]

    return answer


def reached(function: types.FunctionType) -> Iterator[Place]:
    """The global and closed-over names that a function mentions, and what it mentions of Python modules."""
    code, place = function.__code__, function.__globals__
    for name in global_names(code):
        if name in place:
            value = place[name]
            yield place, name, name, value
            if isinstance(value, types.ModuleType):
                yield from _in_python_module(value, name, mentioned(code), {id(value)})
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        value = look(cell, None)
        if value is not MISSING:  # else: a name of the enclosing function that is not bound yet
            yield cell, None, name, value


def given(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Place]:
    """What a function is given before it is called: defaults of arguments, those of a partial one."""
    for number, value in enumerate(arguments):
        yield arguments, number, f"argument {number}", value
    for name, value in keywords.items():
        yield keywords, name, f"argument {name}", value


def _in_python_module(module: types.ModuleType, path: str, names: frozenset[str], seen: set[int]) -> Iterator[Place]:
    """What is mentioned of a module of the user's, and of modules in it."""
    if is_library(module):
        return
    for name in sorted(names & vars(module).keys()):
        value = vars(module)[name]
        yield vars(module), name, f"{path}.{name}", value
        if isinstance(value, types.ModuleType) and id(value) not in seen:
            seen.add(id(value))
            yield from _in_python_module(value, f"{path}.{name}", names, seen)


@kept
def mentioned(code: types.CodeType) -> frozenset[str]:
    """The names in a piece of code, and its texts that may be names: getattr(settings, "scale")."""
    inner = [mentioned(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    texts = [constant for constant in code.co_consts if isinstance(constant, str) and constant.isidentifier()]
    return frozenset(code.co_names).union(texts, *inner)


@kept
def compares_identity(code: types.CodeType) -> bool:
    """Whether a piece of code asks whether two things are the same, and none of them is a constant such as None."""
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IS_OP" and not (before is not None and before.opname == "LOAD_CONST"):
            return True
        before = instruction
    return any(compares_identity(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))


@kept
def global_names(code: types.CodeType) -> tuple[str, ...]:
    """The global names that a piece of code reads; all that it mentions, if it asks for the dictionary of them."""
    argument, extended, read = 0, 0, set[str]()
    for kind, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument = low | extended
        extended = argument << 8 if kind == dis.EXTENDED_ARG else 0
        if kind in _READS_NAME:
            read.add(code.co_names[argument >> _READS_NAME[kind]])
    own = mentioned(code) if read & NAMESPACES else read
    inner = [global_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return tuple(sorted({*own}.union(*inner)))


@kept
def binds_globals(code: types.CodeType) -> bool:
    """Whether a piece of code puts something in global names, or takes some away."""
    inner = any(binds_globals(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return inner or any(kind in _BINDS_NAME for kind in code.co_code[::2])


def is_library(thing: Callable[..., Any] | Any) -> bool:
    """Whether a function, class or Python module belongs to a library whose names nobody rebinds."""
    if isinstance(thing, types.ModuleType):
        name = thing.__name__
    elif isinstance(thing, (types.FunctionType, types.BuiltinFunctionType, type)):
        name = thing.__module__ or ""
    else:
        return False
    package = name.partition(".")[0]
    # An object of a class of the standard library, such as a namespace, may hold the user's settings.
    return package in LIBRARIES or (not isinstance(thing, type) and package in sys.stdlib_module_names)


@cache
def is_installed(name: str) -> bool:
    """Whether a Python module was installed, and is not what the user is working on."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return name.partition(".")[0] in sys.stdlib_module_names or (file is not None and owner_of(file) is not Owner.USER)
