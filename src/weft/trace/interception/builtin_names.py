"""Let traced code find, under the name of a builtin, one that knows of stand-ins.

`type(x)`, `isinstance(n, int)` and `id(x)` ask nobody: of a stand-in they tell of the stand-in itself. What `print`
says is put off. In the modules of traced functions that mention such a name, another object stands under it while they
are traced: of what is no stand-in it says what the builtin says, so that other threads that run the same module do not
notice.
So it is with `float(x)` where PyTorch's batch norm divides by the count of batches, whose share of an average is a
tensor then.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from threading import Lock, local
from types import CodeType, FrameType, FunctionType, MappingProxyType
from typing import Any

import torch
from torch.overrides import handle_torch_function

from weft.trace.interception.capture import ArgumentStandIn, is_stand_in, real_stand_in
from weft.trace.interception.modes import has_function_modes
from weft.trace.interception.number_divisions import divided
from weft.trace.interception.number_texts import CLASSES
from weft.trace.interception.printed import print_later
from weft.trace.interception.refusals import refuse
from weft.trace.interception.user_lines import is_of_user, user_place


class ClassOf:
    """The builtin `type`, which gives the class of what a stand-in stands for."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The class of a thing, or a new class."""
        if len(arguments) == 1 and not keywords:
            return class_of(arguments[0])
        return type(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(type, name)

    def __instancecheck__(self, thing: object) -> bool:
        return isinstance(thing, type)

    def __subclasscheck__(self, kind: type) -> bool:
        return issubclass(kind, type)

    def __mro_entries__(self, _: tuple[Any, ...]) -> tuple[type, ...]:
        return (type,)

    def __getitem__(self, kind: Any) -> Any:
        return type[kind]

    def __or__(self, other: Any) -> Any:
        return type | other

    __ror__ = __or__

    def __eq__(self, other: object) -> bool:
        return other is type or isinstance(other, ClassOf)

    def __hash__(self) -> int:
        return hash(type)

    def __repr__(self) -> str:
        return repr(type)


def class_of(thing: Any) -> type:
    """The class of a thing as eager code sees it."""
    if is_stand_in(thing):
        return vars(thing).get("weft_real_class", torch.Tensor)  # type: ignore[no-any-return]
    kind = type(thing)
    return CLASSES.get(kind, kind)


def is_instance(thing: Any, kinds: Any) -> bool:
    """The builtin `isinstance`, for which what stands for a number is of the class of that."""
    kind = CLASSES.get(type(thing))
    return isinstance(thing, kinds) or (kind is not None and issubclass(kind, kinds))


class StandInIdentity(int):
    """The identity of a stand-in, which tells it from others while code is traced, and means nothing later."""


class GivenIdentity(StandInIdentity):
    """The identity of what stands for an argument: whether it is one of those that are known each call decides anew."""

    def __eq__(self, other: object) -> bool:
        if type(other) is int and other > SMALLEST_IDENTITY:
            refuse("identity", user_place())
        return int.__eq__(self, other)

    def __hash__(self) -> int:
        if any(known() for known in getattr(_known, "identities", ())):
            refuse("identity", user_place())
        return int.__hash__(self)


def identity_of(thing: Any) -> int:
    """The builtin `id`, which marks identities that must not be kept."""
    found = id(thing)
    if not is_stand_in(thing):
        return found
    return GivenIdentity(found) if type(thing) is ArgumentStandIn else StandInIdentity(found)


def holds_identities(containers: Iterable[Any]) -> bool:
    """Whether some containers have numbers as keys, or in sets, that may be identities."""
    found = (one for one in containers if isinstance(one, (dict, set, frozenset)))
    return any(type(key) is int and key > SMALLEST_IDENTITY for one in found for key in list(one))


class BatchCount:
    """A count of batches that is another one at each run."""

    def __init__(self, count: torch.Tensor) -> None:
        self._count = count

    def __rtruediv__(self, one: float) -> torch.Tensor:
        return one / self._count


def number_of(thing: Any) -> Any:
    """The builtin `float` for batch norm, which leaves the count of batches in its tensor."""
    found = real_stand_in(thing) if isinstance(thing, torch.Tensor) else thing
    return BatchCount(found) if is_stand_in(found) else float(found)


OF_BATCH_NORM: Mapping[str, Any] = MappingProxyType({"float": number_of})


def whole_of(*given: Any, **keywords: Any) -> Any:
    """The builtin `int`, of what stands for a number, or for a tensor, what stands for its whole part."""
    if len(given) == 1 and not keywords:
        if isinstance(given[0], (torch.SymInt, torch.SymFloat)):
            return torch.sym_int(given[0])
        if is_stand_in(given[0]):
            return given[0].__int__()
    return int(*given, **keywords)


def fraction_of(*given: Any) -> Any:
    """The builtin `float`, of what stands for a number, or for a tensor, what stands for it as a fraction."""
    if len(given) == 1 and isinstance(given[0], (torch.SymInt, torch.SymFloat)):
        return torch.sym_float(given[0])
    if len(given) == 1 and is_stand_in(given[0]):
        return given[0].__float__()
    return float(*given)


def is_asked_by_name() -> bool:
    """Whether what stands under the name of a builtin asks, which may give what stands for a number.

    The builtin itself wants a number.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_of_user(frame):
        if frame.f_code in ASKING:
            return True
        frame = frame.f_back
    return False


ASKING = (whole_of.__code__, fraction_of.__code__)


def length_of(*given: Any) -> Any:
    """The builtin `len`, which gives the first size of a stand-in, whatever stands for that."""
    if len(given) == 1 and is_stand_in(given[0]) and given[0].dim():
        return given[0].shape[0]
    return len(*given)


class Extreme:
    """The builtin `max`, or `min`, of numbers of which some are stood for."""

    def __init__(self, builtin: Any) -> None:
        self._builtin = builtin

    def __call__(self, *given: Any, **keywords: Any) -> Any:
        """What decides nothing by its numbers, where that can be."""
        if keywords or not given or isinstance(given[0], torch.Tensor):
            return self._builtin(*given, **keywords)
        numbers = list(given[0]) if len(given) == 1 else [*given]
        kinds = {*map(type, numbers)}
        if len(numbers) > 1 and torch.SymInt in kinds and kinds <= {int, torch.SymInt} and has_function_modes():
            return handle_torch_function(self._builtin, (), numbers)  # for the trace that runs to say
        return self._builtin(numbers)

    def __repr__(self) -> str:
        return repr(self._builtin)


NAMES: Mapping[str, Any] = MappingProxyType(
    {"type": ClassOf(), "id": identity_of, "isinstance": is_instance, "print": print_later}
)
# What stands for these stands there only where all code of a module calls them: else it may ask which they are.
CALLED: Mapping[str, Any] = MappingProxyType(
    {
        "float": fraction_of,
        "int": whole_of,
        "len": length_of,
        "divmod": divided,
        "max": Extreme(max),
        "min": Extreme(min),
    }
)
CALLERS = ("map", "filter", "reduce")  # which call what they are given first
STAND_INS = (*NAMES.values(), *CALLED.values(), *OF_BATCH_NORM.values())
_OF_NAMES = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
_WITH_NULL = 1  # of an argument of LOAD_GLOBAL: a call follows
SMALLEST_IDENTITY = 1 << 16  # no object lies below
_KINDS_OF_NAMES = frozenset(dis.opmap[name] for name in _OF_NAMES if name in dis.opmap)
_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_lock = Lock()
_known = local()  # `identities`: for each trace of this thread, what tells whether its code reaches some
_in_use: dict[int, int] = {}  # how many traces have put the names into a namespace, by its identity


def is_builtin_name(thing: Any) -> bool:
    """Whether a thing stands under the name of a builtin while code is traced."""
    return any(thing is known for known in STAND_INS)


@contextmanager
def builtin_names(
    namespaces: Iterable[dict[str, Any]],
    naming: Mapping[int, frozenset[str]] = MappingProxyType({}),
    identities: Callable[[], bool] = bool,
) -> Iterator[None]:
    """While entered, global names of these namespaces that would be builtins know of stand-ins.

    `naming` says which of `CALLED` code of a namespace does something else with than to call them; `identities` tells
    whether code reaches identities of tensors.
    """
    batch_norm = vars(torch.nn.modules.batchnorm)
    spaces = [*(space for space in namespaces if space is not batch_norm), batch_norm]
    with _lock:
        for space in spaces:
            _in_use[id(space)] = _in_use.get(id(space), 0) + 1
            for name, known in _names_of(space).items():
                space.setdefault(name, known)
            others = CALLED.keys() if space is not batch_norm else frozenset[str]()
            for name in others - _named(space) - naming.get(id(space), frozenset()) if others else ():
                space.setdefault(name, CALLED[name])
    outer = getattr(_known, "identities", ())
    _known.identities = (*outer, identities)
    try:
        yield
    finally:
        _known.identities = outer
        with _lock:
            for space in spaces:
                _in_use[id(space)] -= 1
                if not _in_use[id(space)]:
                    del _in_use[id(space)]
                    _take_away(space)


def _names_of(space: dict[str, Any]) -> Mapping[str, Any]:
    return OF_BATCH_NORM if space is vars(torch.nn.modules.batchnorm) else NAMES


def _take_away(space: dict[str, Any]) -> None:
    for name, known in (*_names_of(space).items(), *CALLED.items()):
        if space.get(name) is known:
            del space[name]


def _named(space: dict[str, Any]) -> frozenset[str]:
    """Which of these builtins code of a module does something else with than to call them."""
    codes: list[CodeType] = []
    for thing in list(space.values()):
        members = list(vars(thing).values()) if isinstance(thing, type) else [thing]
        for member in members:
            found = member.fget if isinstance(member, property) else member
            found = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
            found = inspect.unwrap(found) if isinstance(found, FunctionType) else found
            # What is imported has its names from where it was written.
            codes += [found.__code__] if isinstance(found, FunctionType) and found.__globals__ is space else []
    return frozenset().union(*map(uncalled_names, codes))


@cache
def uncalled_names(code: CodeType) -> frozenset[str]:
    """Which of these builtins a piece of code names without a call; all of them where that cannot be told."""
    if sys.version_info < (3, 11):
        return frozenset(CALLED)
    inner = [uncalled_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    steps = [None, *dis.get_instructions(code), None] if _may_name(code) else []
    own = {
        step.argval
        for before, step, after in zip(steps, steps[1:], steps[2:], strict=False)
        if step is not None
        and step.argval in CALLED
        and step.opname in _OF_NAMES  # methods of tensors have these names, too
        and not (step.opname == "LOAD_GLOBAL" and step.arg is not None and step.arg & _WITH_NULL)
        and not (before is not None and before.argval in CALLERS)
        and not _is_key(code, after)
    }
    return frozenset(own).union(*inner)


def _may_name(code: CodeType) -> bool:
    """Whether a piece of code may name one of these builtins without a call: most calls them, which is soon seen."""
    wanted = {place for place, name in enumerate(code.co_names) if name in CALLED}
    high, raw = 0, code.co_code if wanted else b""
    for kind, low in zip(raw[::2], raw[1::2], strict=True):
        argument = low | high
        high = argument << 8 if kind == dis.EXTENDED_ARG else 0
        if kind == _LOAD_GLOBAL:
            if argument >> 1 in wanted and not argument & _WITH_NULL:
                return True
        elif kind in _KINDS_OF_NAMES and argument in wanted:
            return True
    return False


def _is_key(code: CodeType, after: dis.Instruction | None) -> bool:
    """Whether what is loaded before a step is given to a call as its `key`: the step loads the names of keywords."""
    if after is None or after.opname not in ("KW_NAMES", "LOAD_CONST") or after.arg is None:
        return False
    names = code.co_consts[after.arg]
    return isinstance(names, tuple) and names[-1:] == ("key",)
