"""List the names that the code of a function mentions, and what global and closed-over ones stand for."""

from __future__ import annotations

import builtins
import dis
import sys
import types
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partialmethod, singledispatch, singledispatchmethod, wraps
from inspect import getattr_static
from operator import attrgetter
from typing import Any, TypeVar

import torch

from weft.owners import Owner, owner_of
from weft.trace.python_state.containers import attributes, has_attributes, look

# What asks for attributes by names that it is told, and what tells all there are.
BY_NAME = frozenset({"getattr", "hasattr", "setattr", "delattr"})
OF_ALL = frozenset(
    {"vars", "dir", "__dict__", "__getattribute__", "attrgetter", "methodcaller", "getmembers", "asdict"}
)
LIBRARIES = frozenset({"torch", "weft", "numpy", "math", "functools", "builtins", "typing", "collections", "warnings"})
# Of whose classes nothing is asked but what is mentioned.
PLAIN_PACKAGES = frozenset({"builtins", "abc", "typing", "types", "enum", "argparse", "dataclasses", "contextlib"})
NAMESPACES = frozenset({"globals", "vars", "eval", "exec", "locals"})
# By instruction: how many low bits of its argument are flags, and not the number of the name.
_READS_NAME = {dis.opmap["LOAD_GLOBAL"]: int(sys.version_info >= (3, 11)), dis.opmap["LOAD_NAME"]: 0}
_CALLS = frozenset({"CALL", "CALL_FUNCTION", "PRECALL"})
_BINDS_NAME = {dis.opmap["STORE_GLOBAL"], dis.opmap["DELETE_GLOBAL"]}
OF_BUILTINS = vars(builtins)
# Names by which code may tell which tensors of modules are the very same one.
TELLS_APART = frozenset(
    {"parameters", "named_parameters", "buffers", "named_buffers", "state_dict", "_parameters", "_buffers", "id"}
)
MOST_CODE = 4096  # pieces of which answers are kept
DISPATCHER: Any = getattr(singledispatch(len), "__code__")  # noqa: B009 - of functions that have a `registry`
UNMENTIONED = """
    call getattr getattribute get getitem contains len iter bool eq ne lt le gt ge hash enter exit index int float
    add radd sub rsub mul rmul matmul rmatmul truediv rtruediv floordiv rfloordiv mod pow rpow neg pos abs
    setitem delitem setattr delattr set delete missing next reversed and or xor rand ror rxor invert divmod round
    iadd isub imul imatmul itruediv ifloordiv imod ipow iand ior ixor str repr format complex
"""
# Methods that run without being mentioned.
IMPLICIT = frozenset({"forward", *(f"__{name}__" for name in UNMENTIONED.split())})
OF_FUNCTIONS = frozenset({"backward", "setup_context", "vjp"})  # of an `autograd.Function`, which `apply` leads to
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
        elif name in OF_BUILTINS and getattr(OF_BUILTINS[name], "__module__", None) != "builtins":
            yield OF_BUILTINS, name, name, OF_BUILTINS[name]
    for name in imported(code):
        module = sys.modules.get(name)
        if module is not None and not is_library(module):
            yield sys.modules, name, name, module
            yield from _in_python_module(module, name, mentioned(code), {id(module)})
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        value = look(cell, None)
        yield cell, None, name, value  # MISSING: a name of the enclosing function that is not bound yet


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


def steps_of(code: types.CodeType, *names: str) -> list[dis.Instruction]:
    """The instructions of a piece of code, without that in it; none where it has none of these names.

    To take code apart takes a hundred times as long as to look for a byte, and little code has what is asked for.
    """
    kinds = code.co_code[::2]
    return [*dis.get_instructions(code)] if any(dis.opmap.get(name, -1) in kinds for name in names) else []


@kept
def compares_identity(code: types.CodeType) -> bool:
    """Whether a piece of code asks whether two things are the same, and none of them is a constant such as None."""
    before = None
    for instruction in steps_of(code, "IS_OP"):
        if instruction.opname == "IS_OP" and not (before is not None and before.opname == "LOAD_CONST"):
            return True
        before = instruction
    return any(compares_identity(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))


@kept
def asks_kinds(code: types.CodeType) -> bool:
    """Whether a piece of code tells by `is` or by a pattern whether a thing is True, or of a class.

    What stands for a number while code is traced is no bool and no int then.
    """
    before = None
    for instruction in steps_of(code, "IS_OP", "MATCH_CLASS"):
        if instruction.opname == "MATCH_CLASS" or (instruction.opname == "IS_OP" and _is_bool(before)):
            return True
        before = instruction
    return any(asks_kinds(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))


def _is_bool(step: dis.Instruction | None) -> bool:
    return step is not None and step.opname == "LOAD_CONST" and isinstance(step.argval, bool)


@kept
def imported(code: types.CodeType) -> frozenset[str]:
    """The Python modules that a piece of code imports by itself, and all that they are in."""
    inner = [imported(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    own = {found.argval for found in steps_of(code, "IMPORT_NAME") if found.opname == "IMPORT_NAME"}
    return frozenset(own).union(*inner)


@kept
def asks_by_computed_names(code: types.CodeType) -> bool:
    """Whether a piece of code may ask for attributes whose names are not written in it."""
    inner = any(asks_by_computed_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    if inner or not OF_ALL.isdisjoint(code.co_names):
        return True
    if BY_NAME.isdisjoint(code.co_names):
        return False
    steps = [*dis.get_instructions(code)]
    return any(
        step.argval in BY_NAME and not _is_told_a_constant(steps[place + 1 :])
        for place, step in enumerate(steps)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )


def _is_told_a_constant(steps: list[dis.Instruction]) -> bool:
    """Whether the second argument of the call whose arguments these instructions compute is written in the code."""
    depth, is_constant = 0, False
    for step in steps:
        if step.opname in _CALLS and depth == step.argval:
            return is_constant
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            return False
        before, depth = depth, depth + dis.stack_effect(step.opcode, step.arg)
        if depth <= 2:
            is_constant = before == 1 and depth == 2 and step.opname == "LOAD_CONST" and isinstance(step.argval, str)
    return False


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


def implicit_names(kind: type) -> frozenset[str]:
    """The names of methods of a class that run without being mentioned."""
    return IMPLICIT | OF_FUNCTIONS if issubclass(kind, torch.autograd.Function) else IMPLICIT


def is_library(thing: Callable[..., Any] | Any) -> bool:
    """Whether a function, class or Python module belongs to a library whose names nobody rebinds."""
    if isinstance(thing, types.ModuleType):
        name = thing.__name__
    elif isinstance(thing, (types.FunctionType, types.BuiltinFunctionType, type)):
        name = str(thing.__module__ or "")  # of some classes in C it is a descriptor
    else:
        return False
    package = name.partition(".")[0]
    # An object of a class of the standard library, such as a namespace, may hold the user's settings.
    return package in LIBRARIES or (not isinstance(thing, type) and package in sys.stdlib_module_names)


@cache
def is_installed(name: Any) -> bool:
    """Whether a Python module was installed, and is not what the user is working on."""
    if not isinstance(name, str):
        return True  # of a class in C
    file = getattr(sys.modules.get(name), "__file__", None)
    return name.partition(".")[0] in sys.stdlib_module_names or (file is not None and owner_of(file) is not Owner.USER)


def user_bases(kind: type) -> list[type]:
    """A class, and those that it is derived from, that are the user's: installed ones keep their attributes."""
    return [base for base in kind.__mro__ if not (is_library(base) or is_installed(base.__module__))]


def _package(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]  # of some classes in C it is no text


def is_foreign(kind: type) -> bool:
    """Whether code that is not walked may run on objects of a class: it may ask for attributes that nobody mentions."""
    return any(
        (is_library(base) or is_installed(base.__module__)) and _package(base) not in PLAIN_PACKAGES
        for base in kind.__mro__
    )


def asked_names(thing: Any) -> list[str]:
    """The names that an attrgetter or a methodcaller asks for."""
    _, (first, *others), *_ = thing.__reduce__()
    names = [first, *others] if isinstance(thing, attrgetter) else [first]
    return [name for name in names if isinstance(name, str)]


def wrapped_in(thing: Any) -> Any:
    """What a wrapper is around; None if a thing is none. It is found without running code of the user's."""
    kinds = (*type(thing).__mro__, *(thing.__mro__ if isinstance(thing, type) else ()))
    if any("__wrapped__" in vars(kind) for kind in kinds):
        return getattr_static(thing, "__wrapped__", None)  # a tenth of the speed: it knows about descriptors
    return None if isinstance(thing, type) or not has_attributes(thing) else attributes(thing).get("__wrapped__")


def in_class(kind: type, name: str) -> Any:
    """What a class has under a name, as it stands there: no descriptor of the user's is asked."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def function_of(found: Any) -> types.FunctionType | None:
    """The function that is behind what a class has under a name; None if there is none."""
    found = found.fget if isinstance(found, property) else found
    found = found.func if isinstance(found, (cached_property, partialmethod)) else found
    found = found.dispatcher if isinstance(found, singledispatchmethod) else found
    found = getattr(found, "__func__", found)
    if found is not None and not isinstance(found, types.FunctionType):
        found = wrapped_in(found)
    return found if isinstance(found, types.FunctionType) else None
