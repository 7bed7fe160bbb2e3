"""Let traced code find, under the name of a builtin, one that knows of stand-ins.

`type(x)` and `id(x)` ask nobody: of a stand-in they tell of the stand-in itself. What `print` says is put off. In the
modules of traced functions that mention such a name, another object stands under it while they are traced: of what is
no stand-in it says what the builtin says, so that other threads that run the same module do not notice.
So it is with `float(x)` where PyTorch's batch norm divides by the count of batches, whose share of an average is a
tensor then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from types import MappingProxyType
from typing import Any

import torch

from weft.trace.interception.capture import is_stand_in, real_stand_in
from weft.trace.interception.printed import print_later

CLASSES: Mapping[type, type] = MappingProxyType({torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool})


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
        return vars(thing).get("real_class", torch.Tensor)  # type: ignore[no-any-return]
    kind = type(thing)
    return CLASSES.get(kind, kind)


class StandInIdentity(int):
    """The identity of a stand-in, which tells it from others while code is traced, and means nothing later."""


def identity_of(thing: Any) -> int:
    """The builtin `id`, which marks identities that must not be kept."""
    found = id(thing)
    return StandInIdentity(found) if is_stand_in(thing) else found


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
NAMES: Mapping[str, Any] = MappingProxyType({"type": ClassOf(), "id": identity_of, "print": print_later})
_lock = Lock()
_in_use: dict[int, int] = {}  # how many traces have put the names into a namespace, by its identity


def is_builtin_name(thing: Any) -> bool:
    """Whether a thing stands under the name of a builtin while code is traced."""
    return type(thing) is ClassOf or thing is identity_of or thing is number_of or thing is print_later


@contextmanager
def builtin_names(namespaces: Iterable[dict[str, Any]]) -> Iterator[None]:
    """While entered, global names of these namespaces that would be builtins know of stand-ins."""
    batch_norm = vars(torch.nn.modules.batchnorm)
    spaces = [*(space for space in namespaces if space is not batch_norm), batch_norm]
    with _lock:
        for space in spaces:
            _in_use[id(space)] = _in_use.get(id(space), 0) + 1
            for name, known in _names_of(space).items():
                space.setdefault(name, known)
    try:
        yield
    finally:
        with _lock:
            for space in spaces:
                _in_use[id(space)] -= 1
                if not _in_use[id(space)]:
                    del _in_use[id(space)]
                    _take_away(space)


def _names_of(space: dict[str, Any]) -> Mapping[str, Any]:
    return OF_BATCH_NORM if space is vars(torch.nn.modules.batchnorm) else NAMES


def _take_away(space: dict[str, Any]) -> None:
    for name, known in _names_of(space).items():
        if space.get(name) is known:
            del space[name]
