"""The signature of a call for which there is no program -> whether it comes often enough to be worth one.

A program costs as much as dozens of imperative calls. While an object has few signatures each gets its program at once.
Once as many programs were dropped as are kept, most signatures come once or twice (texts of every length, one token
more at each call): then they run imperatively until they have come a few times, ever more often as programs go on being
dropped, so that making programs takes a bounded part of all time.
"""

from collections import OrderedDict
from collections.abc import Hashable

MOST_PROGRAMS = 32  # that are kept for one object
PROGRAMS_AT_ONCE = 2 * MOST_PROGRAMS
MOST_REMEMBERED = 1024
FIRST_NEEDED = 2  # times that a signature must come; twice as many after each further few programs
PROGRAMS_TO_DOUBLE = 8
MOST_DOUBLED = 10


class RareCalls:
    """Counts the signatures that came without getting a program."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Hashable, int] = OrderedDict()
        self._programs = 0
        self.calls = 0  # that ran imperatively

    @property
    def needed(self) -> int:
        """How many times a signature must come; 1 is at once."""
        if self._programs < PROGRAMS_AT_ONCE:
            return 1
        doubled = (self._programs - PROGRAMS_AT_ONCE) // PROGRAMS_TO_DOUBLE
        return FIRST_NEEDED << min(doubled, MOST_DOUBLED)

    def deserves(self, key: Hashable) -> bool:
        """Whether a signature that has come once more gets a program now."""
        count = self._seen.pop(key, 0) + 1
        if count >= self.needed:
            self._programs += 1
            return True
        self.calls += 1
        self._seen[key] = count
        if len(self._seen) > MOST_REMEMBERED:
            self._seen.popitem(last=False)
        return False
