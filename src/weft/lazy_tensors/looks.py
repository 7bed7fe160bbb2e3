"""Find lazy blocks whose looks at values cost more than queuing gains, and tell how many operators to run at once.

To queue an operator, and to send off the segment that a look waits for, takes longer than most operators take on a few
numbers. Where each look waits for little work, that is a loss. What is lost is added up; past a bound the block runs
its next operators at their calls, and then queues again, to see whether the code still looks so often.
"""

from __future__ import annotations

import logging

from weft.lazy_tensors.plan import Plan
from weft.lazy_tensors.questions import user_place
from weft.lazy_tensors.recording import Place, place_text

logger = logging.getLogger("weft")
NOTING_SECONDS = 5e-6  # what an operator takes to be intercepted and noted
SENDING_SECONDS = 1e-4  # what it takes to send a segment off and to wait for it
EAGER_SECONDS = 2e-6  # what an operator takes of its own, where no run has told
OURS_SECONDS = 1e-6  # what Python adds to it in a segment that runs by operators
WORTH_IT = 1.1  # so much longer than without it lazy code may take
MOST_LOST = 6e-4  # before operators run at once
FEWEST, MOST = 4_000, 64_000  # operators that then do; each time that it was right twice as many
FEW_SEGMENTS = 2  # between two looks; where there are more, Python and the engine work side by side
MOST_PLACES = 1000


class Looks:
    """What looks have cost in the lazy blocks of one place in the user's code: the next one will be like the last."""

    __slots__ = ("_segments", "_told", "calls", "following", "lost", "place", "rest")

    def __init__(self, place: Place) -> None:
        self.place = place
        self._told = False
        self._segments: list[tuple[Plan, int, float]] = []  # since the last look: plans, operators, estimated work
        self.calls = 0  # that were intercepted since the last look
        self.lost = 0.0
        self.rest = 0  # operators that are still to be run at once
        self.following = FEWEST  # how many the next time

    def sent(self, plan: Plan, count: int, seconds: float) -> None:
        """A segment of so many operators, with so much estimated work, was sent off."""
        if len(self._segments) <= FEW_SEGMENTS:
            self._segments.append((plan, count, seconds))

    def waited(self) -> None:
        """Somebody looked at something that had to be sent off first."""
        if not self._segments:
            return
        few = len(self._segments) <= FEW_SEGMENTS
        self.lost = max(self.lost + self._loss(), 0.0) if few else 0.0
        self.forget()
        if self.lost > MOST_LOST and not self.rest:
            self._run_at_once()
        elif self.lost == 0.0:
            self.following = FEWEST

    def forget(self) -> None:
        """Forget what was called and sent off since the last look."""
        self._segments.clear()
        self.calls = 0

    def _run_at_once(self) -> None:
        self.rest = self.following
        self.following = min(2 * self.following, MOST)
        self.lost = MOST_LOST / 2  # behind them, a few looks that lose as much as before begin it anew
        if not self._told:
            self._told = True
            logger.warning(
                "weft: the lazy block at %s runs its operators at once: it looks at values so often that queuing costs "
                "more than it gains, the last time at %s",
                place_text(*self.place),
                place_text(*user_place()),
            )

    def _loss(self) -> float:
        """How much longer all since the last look has taken than it would have without lazy code."""
        notes = max(self.calls, sum(count for _, count, _ in self._segments)) * NOTING_SECONDS + SENDING_SECONDS
        eager = ours = 0.0
        for plan, count, seconds in self._segments:
            measured = plan.operator_seconds - count * OURS_SECONDS
            alone = measured if measured > 0.0 else seconds + count * EAGER_SECONDS
            eager += alone
            ours += plan.program_seconds or alone
        for plan, _, _ in self._segments:
            plan.loses = notes > eager * WORTH_IT
        return notes + ours - eager * WORTH_IT


_known: dict[Place, Looks] = {}


def looks_of(place: Place) -> Looks:
    """Take what is known of the blocks of a place; another thread that is in one meanwhile begins anew."""
    return _known.pop(place, None) or Looks(place)


def keep(looks: Looks) -> None:
    """Note what is known of the blocks of a place, as one of them has ended."""
    looks.forget()
    if len(_known) >= MOST_PLACES:
        _known.clear()
    _known[looks.place] = looks
