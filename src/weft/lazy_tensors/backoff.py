"""Back off from queuing, exponentially, in lazy blocks that read values too often to gain from it.

To queue an operator, and to push the segment that a read waits for, takes longer than most operators take on a few
numbers. Where each read waits for little work, that is a loss. What is lost is added up; past a bound the block runs
its next operators at their calls, and then queues again, to see whether the code still reads so often.

The first call of each kind waits for everything, too. A loop meets those once, and nobody has looked: so many of them
are no loss. Where every call is a new one, sizes never repeat, and they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from weft.lazy_tensors.segment_plan import SegmentPlan
from weft.lazy_tensors.tasks import Place, place_text, user_place

logger = logging.getLogger("weft")
NOTING_SECONDS = 5e-6  # what an operator takes to be intercepted and noted
PUSHING_SECONDS = 1e-4  # what it takes to push a segment and to wait for it
EAGER_SECONDS = 2e-6  # what an operator takes of its own, where no run has told
OURS_SECONDS = 1e-6  # what Python adds to it in a segment that runs by operators
WORTH_IT = 1.1  # so much longer than without it lazy code may take
MOST_LOST = 6e-4  # before operators run at once
FEWEST, MOST = 4_000, 64_000  # operators that then do; each time that it was right twice as many
FEW_SEGMENTS = 2  # between two reads; where there are more, Python and the engine work side by side
FIRST_CALLS = 1000  # that a block may meet: a loop with Adam and clipping has some 450 where parameters have 60 shapes
MOST_PLACES = 1000


class EagerBackoff:
    """What reads have cost in the lazy blocks of one place in the user's code: the next one will be like the last."""

    __slots__ = (
        "_first_calls",
        "_is_free",
        "_segments",
        "_told",
        "calls",
        "eager_calls",
        "lost_seconds",
        "next_eager_calls",
        "place",
    )

    def __init__(self, place: Place) -> None:
        self.place = place
        self._told = False
        self._first_calls = FIRST_CALLS  # that may still be met for nothing
        self._is_free = False  # whether what is waited for now is one of them
        # Since the last read: plans, operators, estimated work.
        self._segments: list[tuple[SegmentPlan, int, float]] = []
        self.calls = 0  # that were intercepted since the last read
        self.lost_seconds = 0.0
        self.eager_calls = 0  # operators that are still to be run at once
        self.next_eager_calls = FEWEST  # how many the next time

    def pushed(self, plan: SegmentPlan, count: int, seconds: float) -> None:
        """A segment of so many operators, with so much estimated work, was pushed."""
        if len(self._segments) <= FEW_SEGMENTS:
            self._segments.append((plan, count, seconds))

    def waited(self) -> None:
        """Somebody read something that had to be pushed first."""
        if not self._segments:
            return
        if self._is_free:
            self.forget()
            return
        few = len(self._segments) <= FEW_SEGMENTS
        self.lost_seconds = max(self.lost_seconds + self._loss(), 0.0) if few else 0.0
        self.forget()
        if self.lost_seconds > MOST_LOST and not self.eager_calls:
            self._run_at_once()
        elif self.lost_seconds == 0.0:
            self.next_eager_calls = FEWEST

    @contextmanager
    def first_call(self) -> Iterator[None]:
        """Around the first call of its kind, which waits for all before it."""
        self._first_calls -= 1
        self._is_free = self._first_calls >= 0
        try:
            yield
        finally:
            self._is_free = False

    def forget(self) -> None:
        """Forget what was called and pushed since the last read."""
        self._segments.clear()
        self.calls = 0

    def _run_at_once(self) -> None:
        self.eager_calls = self.next_eager_calls
        self.next_eager_calls = min(2 * self.next_eager_calls, MOST)
        self.lost_seconds = MOST_LOST / 2  # behind them, a few reads that lose as much as before begin it anew
        if not self._told:
            self._told = True
            logger.warning(
                "weft: the lazy block at %s runs its operators at once: it looks at values so often that queuing costs "
                "more than it gains, the last time at %s",
                place_text(*self.place),
                place_text(*user_place()),
            )

    def _loss(self) -> float:
        """How much longer all since the last read has taken than it would have without lazy code."""
        notes = max(self.calls, sum(count for _, count, _ in self._segments)) * NOTING_SECONDS + PUSHING_SECONDS
        eager = ours = 0.0
        for plan, count, seconds in self._segments:
            measured = plan.operator_seconds - count * OURS_SECONDS
            alone = measured if measured > 0.0 else seconds + count * EAGER_SECONDS
            eager += alone
            ours += plan.program_seconds or alone
        for plan, _, _ in self._segments:
            plan.loses = notes > eager * WORTH_IT
        return notes + ours - eager * WORTH_IT


_backoffs: dict[Place, EagerBackoff] = {}


def take_backoff(place: Place) -> EagerBackoff:
    """Take what is known of the blocks of a place; another thread that is in one meanwhile begins anew."""
    return _backoffs.pop(place, None) or EagerBackoff(place)


def keep_backoff(backoff: EagerBackoff) -> None:
    """Note what is known of the blocks of a place, as one of them has ended."""
    backoff.forget()
    if len(_backoffs) >= MOST_PLACES:
        _backoffs.clear()
    _backoffs[backoff.place] = backoff
