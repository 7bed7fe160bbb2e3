"""Stand in the place of a function, and of a method of each object.

What runs a method's programs is kept with its object, so that both end together: a table beside the class would keep
each object for ever, as its programs hold it. So it is an attribute of the object, as `forward` is one of a hybridized
module. Copies and pickles of an object have none, and get their own.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, MutableMapping
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

from weft.api.hybrid import Hybrid
from weft.api.hybrid_options import DEFAULTS, HybridOptions
from weft.trace.interception.capture import traced_elsewhere
from weft.trace.python_state.facts import BOUND_METHODS


class BoundMethods:
    """What runs the methods of one object, by the functions that they are of.

    As an attribute it tells no object from another, so that no program is made for it.
    """

    __slots__ = ("methods", "owner")

    def __init__(self, owner: Any = None) -> None:
        self.owner = owner
        self.methods: dict[HybridFunction, Hybrid] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoundMethods)

    def __hash__(self) -> int:
        return hash(BoundMethods)

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundMethods, ()


class HybridFunction(Hybrid):
    """Stands in the place of a function; as a method, each instance gets programs of its own."""

    def __init__(self, function: Callable[..., Any], options: HybridOptions = DEFAULTS) -> None:
        super().__init__(function, function, getattr(function, "__name__", type(function).__name__), options)
        functools.update_wrapper(self, function)
        self._of_classes: WeakKeyDictionary[type, Hybrid] = WeakKeyDictionary()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        own = getattr(instance, "__dict__", None)
        table: MutableMapping[Any, Hybrid]
        key: Any = self
        if isinstance(instance, type):
            table, key = self._of_classes, instance
        elif type(own) is dict:
            held = own.get(BOUND_METHODS)
            if held is None or held.owner is not instance:  # copy.copy has given it that of another
                if traced_elsewhere(()):  # which would take a new attribute for what the code does
                    return self.function.__get__(instance, owner)
                held = own[BOUND_METHODS] = BoundMethods(instance)
            table = held.methods
        else:  # there is no place for it: then the object is an argument
            return MethodType(self, instance)
        found = table.get(key)
        if found is None:
            method = self.function.__get__(instance, owner)
            found = table.setdefault(key, Hybrid(method, method, self.name, self.options))
        return found

    def __prepare_scriptable__(self) -> Callable[..., Any]:
        """What torch.jit.script compiles in the place of this."""
        return self.function

    def __deepcopy__(self, memo: dict[int, Any]) -> HybridFunction:
        function = copy.deepcopy(self.function, memo)  # a function is itself; a method is one of its object's copy
        return self if function is self.function else HybridFunction(function, self.options)

    def __reduce__(self) -> str | tuple[Any, ...]:
        found: Any = sys.modules.get(getattr(self.function, "__module__", None) or "")
        for part in (name := getattr(self.function, "__qualname__", "")).split("."):
            found = getattr(found, part, None)
        # Found by name, as a plain function is, where it stands in the place of that.
        return name if found is self else (HybridFunction, (self.function, self.options))
