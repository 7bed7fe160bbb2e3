"""Keep the programs of one object by the signatures of their calls: those that came last, and not too many."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from weft.api.rare_calls import MOST_PROGRAMS
from weft.guards.guarded import Guarded
from weft.programs.program import Program
from weft.trace.signature import Key, key_distance


class KeptPrograms(OrderedDict[Key, list[Guarded[Program]]]):
    """The programs of each signature, or its paths; callers hold the object's lock."""

    _has_told = False

    def find(self, key: Key, leaves: Sequence[Any]) -> Guarded[Program] | None:
        """The program of a signature that relies on nothing that has changed."""
        for guarded in self.get(key, ()):
            if guarded.holds(leaves):
                self.move_to_end(key)
                return guarded
        return None

    def nearest(self, key: Key) -> Key:
        """The signature that differs least from one, and came last."""
        return min(reversed(self), key=lambda known: key_distance(known, key))

    def drop_oldest(self) -> bool:
        """Forget the program that has come longest ago, where there are too many; whether that is so the first time."""
        # The paths of a signature are one: they share segments and an entry.
        if sum(1 if found[0].outcomes else len(found) for found in self.values()) <= MOST_PROGRAMS:
            return False
        key, oldest = next(iter(self.items()))
        if len(oldest) > 1 and not oldest[0].outcomes:
            oldest.pop(0)
        else:
            del self[key]
        told, self._has_told = self._has_told, True
        return not told
