"""Name what is composed, and give it attributes, as the `with` blocks around it say."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType

from typing_extensions import Self


class _Naming(threading.local):
    """Who gives names to what has none, and which attributes nodes get."""

    def __init__(self) -> None:
        self.managers: list[NameManager] = [NameManager()]
        self.scopes: list[AttrScope] = []


class NameManager:
    """Give numbered names: `dot0`, `dot1`."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def get(self, name: str | None, hint: str) -> str:
        """The given name, or a new one."""
        if name:
            return name
        count = self._counts.get(hint, 0)
        self._counts[hint] = count + 1
        return f"{hint}{count}"

    def __enter__(self) -> Self:
        naming.managers.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        naming.managers.pop()


class Prefix(NameManager):
    """Give numbered names that begin with a prefix."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        """The given name, or a new one, with the prefix."""
        return self._prefix + super().get(name, hint)


class AttrScope:
    """Give attributes to all that is composed in a `with` block."""

    def __init__(self, **attributes: str) -> None:
        if any(not isinstance(value, str) for value in attributes.values()):
            raise ValueError("Attributes need to be a string, for multiple attributes use comma to separate")
        self.attributes = attributes

    def __enter__(self) -> Self:
        naming.scopes.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        naming.scopes.pop()


naming = _Naming()
KNOWN = {"ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage"}


def scoped_attributes(given: Mapping[str, str] | None) -> dict[str, str]:
    """What a node is given, and what the blocks around it give; names that MXNet knows get underscores around them."""
    found: dict[str, str] = {}
    for scope in naming.scopes:
        found.update(scope.attributes)
    found.update(given or {})
    return {(f"__{key}__" if key in KNOWN else key): value for key, value in found.items()}


def is_note(name: str) -> bool:
    """Whether an attribute is a note, and no parameter of an operator."""
    return name.startswith("__") and name.endswith("__")
