"""Decide which Python numbers among the arguments a program takes as inputs, and which it is made for.

A number is first written into the program. When it alone has changed at the next call, it becomes an input; unless the
program turned out to depend on its value. Then it may be a size that varies (see varying.py), or each value gets a
program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.trace.signature import Key, can_be_free, leaf_key, number_of

FREE = "any"


class FreeNumbers:
    """Remembers, for each way arguments are nested, which positions hold free numbers and which must not."""

    def __init__(self) -> None:
        self._free: dict[Any, frozenset[int]] = {}
        self._fixed: dict[Any, frozenset[int]] = {}

    def free(self, structure: Any) -> frozenset[int]:
        """The positions of numbers that are inputs."""
        return self._free.get(structure, frozenset())

    def of_call(self, structure: Any, leaves: Sequence[Any]) -> frozenset[int]:
        """Those of a call: what is in the place of a number may be none, or none that can be an input."""
        return frozenset(position for position in self.free(structure) if _can_be_free(leaf_key(leaves[position])))

    def fixed(self, structure: Any) -> frozenset[int]:
        """The positions of numbers that have decided something."""
        return self._fixed.get(structure, frozenset())

    def apply(self, structure: Any, leaves: tuple[Key, ...]) -> tuple[Key, ...]:
        """Leave the value of free numbers out of a key."""
        free = self._free.get(structure) if self._free else None
        if not free:
            return leaves
        return tuple(
            (key[0], FREE) if position in free and _can_be_free(key) else key for position, key in enumerate(leaves)
        )

    def compare(self, before: Key, now: Key) -> None:
        """Free the numbers that differ between two calls, where nothing but numbers differs."""
        if before[0] != now[0] or before[2] != now[2]:
            return
        changed = [index for index, (old, new) in enumerate(zip(before[1], now[1], strict=True)) if old != new]
        if all(before[1][index][0] is now[1][index][0] and _can_be_free(now[1][index]) for index in changed):
            fixed = self._fixed.get(now[0], frozenset())
            self._free[now[0]] = self.free(now[0]) | (frozenset(changed) - fixed)

    def fix(self, structure: Any, positions: frozenset[int]) -> None:
        """Never free these again: a program depended on their value."""
        if positions:
            self._fixed[structure] = self._fixed.get(structure, frozenset()) | positions
            self._free[structure] = self.free(structure) - positions


def _can_be_free(key: Key) -> bool:
    number = number_of(key)
    return number is not None and can_be_free(number)
