"""Looks at values that come too often for lazy code to gain anything -> pauses, in which operators run as without it.

To queue an operator, and to be shown it at all, takes longer than most operators take on a few numbers. Where each
look waits for little work, that is a loss. What is lost is added up; past a bound the mode that intercepts functions is
taken off the stack, and after a while put back to see whether the code still looks so often.

Only the main thread pauses. No interceptor is there in a pause to end it, so a thread that watches the clock asks the
interpreter to call `_Turn` between two instructions, as it calls handlers of signals: for no other thread it does so.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol
from weakref import ref

from weft.api.lazy.plan import Plan
from weft.api.lazy.questions import in_task, is_called_by_user
from weft.trace.capture import running_autograd_number, traced_elsewhere
from weft.trace.modes import insert_function_mode, place_of_function_mode, remove_function_mode

NOTING_SECONDS = 5e-6  # what an operator takes to be intercepted and noted
SENDING_SECONDS = 1e-4  # what it takes to send a segment off and to wait for it
EAGER_SECONDS = 2e-6  # what an operator takes of its own, where no run has told
OURS_SECONDS = 1e-6  # what Python adds to it in a segment that runs by operators
WORTH_IT = 1.1  # so much longer than without it lazy code may take
MOST_LOST = 6e-4  # before a pause
MOST_HABITS = 1000
FEW_SEGMENTS = 2  # between two looks; where there are more, Python and the engine work side by side
SHORTEST, LONGEST = 0.01, 0.16  # pauses; each that was right is followed by one of twice its length
END_SECONDS = 0.02  # that another thread waits for the end of a pause, before it does without
MOST_END_SECONDS = 1.0  # and for what it has spawned: it might need something of this very thread
AGAIN = 1e-3  # after which a turn that came at a bad moment is tried again


class Queue(Protocol):
    """What pauses need of the session."""

    def settle(self) -> bool:
        """Tell whether nothing is left that operators would have to wait for, without waiting for anything."""

    def resumed(self) -> None:
        """Operators are queued again."""


class _Habit:
    """What looks have cost in the blocks of one place in the user's code: the next one will be like the last."""

    __slots__ = ("length", "lost", "until")

    def __init__(self) -> None:
        self.lost = 0.0
        self.length = SHORTEST  # of the next pause
        self.until = 0.0  # when the last one ends


class _Life:
    """What a thread has while it is in a lazy block, and no longer than it lives, whoever began it."""


class _Own(threading.local):
    life: _Life | None = None


_OWN = _Own()


class Pauses:
    """Whether the lazy block of the main thread pauses, and what looks in it have cost so far."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.paused = False
        self._ended = threading.Event()  # no pause is there
        self._ended.set()
        self._mode: Any = None  # that of the main thread's lazy block
        self._place = 0  # of the mode among others
        self._habits: dict[Any, _Habit] = {}
        self._habit = _Habit()  # of the block of the main thread
        self._others: set[ref[_Life]] = set()  # those of other threads that have begun lazy blocks
        self.calls = 0  # that were intercepted since the last look
        self._sent: list[tuple[Plan, int, float]] = []  # since then: plans, their operators, and their estimated work
        self.wanted = False
        self._held = 0  # calls of code that must not be interrupted by a turn
        self._watch = _Watch(self)

    def begin(self, mode: Any, place: Any = None) -> None:
        """A lazy block of this thread has begun, at this place; it pauses at once if those before it would still."""
        if not self._is_mine():
            _OWN.life = _Life()
            self._others.add(ref(_OWN.life, self._others.discard))
            self.end()
            return
        self._mode = mode
        self._habit = self._habit_of(place)
        self._sent.clear()
        if self._habit.until > time.monotonic() and not self._is_elsewhere() and self._queue.settle():
            self._pause()

    def ended(self) -> None:
        """The lazy block of this thread has ended."""
        if not self._is_mine():
            _OWN.life = None
            return
        if self.wanted:
            self._lasts()  # no turn came in the block: the next one at this place begins with the pause
        self.paused = self.wanted = False
        self._ended.set()
        self._mode = None
        self._sent.clear()

    def _lasts(self) -> None:
        """From now on pauses are due, for a while."""
        habit = self._habit
        habit.lost = MOST_LOST / 2  # behind it, one look that loses as much as before begins the next
        habit.until = time.monotonic() + habit.length
        habit.length = min(2 * habit.length, LONGEST)

    def _habit_of(self, place: Any) -> _Habit:
        if place is None:
            return _Habit()
        if len(self._habits) >= MOST_HABITS:
            self._habits.clear()
        return self._habits.setdefault(place, _Habit())

    def sent(self, plan: Plan, count: int, seconds: float) -> None:
        """A segment of so many operators, with so much estimated work, was sent off."""
        if self._mode is None or len(self._sent) > FEW_SEGMENTS or not self._is_mine():
            return
        self._sent.append((plan, count, seconds))

    def waited(self) -> None:
        """Somebody looked at something that had to be sent off first."""
        if not self._sent or not self._is_mine():
            return
        few = len(self._sent) <= FEW_SEGMENTS
        habit = self._habit
        habit.lost = max(habit.lost + self._loss(), 0.0) if few else 0.0
        self._sent.clear()
        self.calls = 0
        if habit.lost > MOST_LOST:
            if not self.wanted:
                self.wanted = True
                self._watch.ask(0.0)
        elif habit.lost == 0.0:
            habit.length = SHORTEST

    def _loss(self) -> float:
        """How much longer all since the last look has taken than it would have without lazy code."""
        notes = max(self.calls, sum(count for _, count, _ in self._sent)) * NOTING_SECONDS + SENDING_SECONDS
        eager = ours = 0.0
        for plan, count, seconds in self._sent:
            measured = plan.operator_seconds - count * OURS_SECONDS
            alone = measured if measured > 0.0 else seconds + count * EAGER_SECONDS
            eager += alone
            ours += plan.program_seconds or alone
        for plan, _, _ in self._sent:
            plan.loses = notes > eager * WORTH_IT
        return notes + ours - eager * WORTH_IT

    def end(self) -> None:
        """Work is queued in another way than by operators: they have to be ordered with it again."""
        if self.paused:
            if self._is_mine():
                self._resume()
                return
            self._watch.ask(0.0)
            # On the other side: the main thread, when it comes to code of the user's. It may wait for this thread.
            self._ended.wait(END_SECONDS)

    def outlast(self, ready: Callable[[], bool]) -> None:
        """Wait until the pause has ended, or what another thread queued in it is done: nothing else orders the two.

        For who holds a lock, say, that the main thread waits for: behind it, an operator may come before its turn does.
        """
        if not self.paused or self._is_mine() or in_task():
            return
        last = time.monotonic() + MOST_END_SECONDS
        # On the other side: the main thread, which may wait for this one, and the workers.
        while not ready() and not self._ended.wait(AGAIN) and time.monotonic() < last:
            pass

    @contextmanager
    def held(self) -> Iterator[None]:
        """No turn in the block, of the thread that pauses: what runs there takes ordinary tensors alone."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def here(self) -> bool:
        """Whether this thread's lazy block pauses."""
        return self.paused and self._is_mine()

    def _is_elsewhere(self) -> bool:
        """Whether another thread is in a lazy block; one that began a block for good may be gone."""
        return bool(self._others)

    def _is_mine(self) -> bool:
        return threading.get_ident() == threading.main_thread().ident

    def turn(self, frame: FrameType | None) -> None:
        """Begin or end a pause, if the code that was interrupted is the user's; else a little later."""
        if self._mode is None or not (self.paused or self.wanted) or not self._is_mine():
            return
        usual = is_called_by_user(frame) and not self._held
        if not usual or traced_elsewhere(()) or running_autograd_number() is not None or not self._turned():
            self._watch.ask(AGAIN)

    def _turned(self) -> bool:
        if self.paused:
            self._resume()
            return True
        if place_of_function_mode(self._mode) is None:
            return False  # a call is being handled, or runs without it
        habit = self._habit
        if self._is_elsewhere():
            self.wanted = False
            habit.lost = 0.0  # they may have work in flight that operators must be ordered with
            return True
        if not self._queue.settle():
            return False  # it will behind one of the next looks, unless others have work in flight
        self.wanted = False
        self._lasts()
        self._pause()
        return True

    def _pause(self) -> None:
        place = place_of_function_mode(self._mode)
        assert place is not None, "the mode is on the stack"
        self._place = place
        self._ended.clear()
        self.paused = True
        remove_function_mode(self._mode)
        self._watch.ask_for(self._habit.until)

    def _resume(self) -> None:
        insert_function_mode(self._mode, self._place)
        self.paused = False
        self._queue.resumed()
        self._ended.set()
        self._sent.clear()
        self.calls = 0
        self._habit.lost = MOST_LOST / 2
        self._habit.until = 0.0


class _Watch:
    """A thread that lets the main thread take a turn at some time."""

    def __init__(self, pauses: Pauses) -> None:
        self._turn = _Turn(pauses)
        self._due: float | None = None
        self._gate = threading.Lock()
        self._gate.acquire()
        self._thread: threading.Thread | None = None

    def ask(self, seconds: float) -> None:
        """Ask for a turn in so many seconds, and for none that was asked for before."""
        self.ask_for(time.monotonic() + seconds)

    def ask_for(self, due: float) -> None:
        """Ask for a turn at some time to come, and for none that was asked for before."""
        if due == self._due and self._thread is not None and self._thread.is_alive():
            return  # it will be
        self._due = due
        if self._thread is None or not self._thread.is_alive():  # a child process has none
            self._thread = threading.Thread(target=self._run, name="weft pauses", daemon=True)
            self._thread.start()
        # On the other side: the thread that watches, which holds nothing. It looks at `_due` after it has passed.
        with suppress(RuntimeError):  # it is open already
            self._gate.release()

    def _run(self) -> None:
        done: float | None = None
        while True:
            due = self._due
            rest = 0.0 if due is None or due == done else due - time.monotonic()
            if due is None or due == done:
                self._gate.acquire()
            elif rest > 0:
                self._gate.acquire(timeout=rest)
            elif _add_pending_call(_IS_TRUE, self._turn) == 0:
                done = due
            else:
                time.sleep(AGAIN)  # others have asked for so much that there is no room


class _Turn:
    """What the interpreter calls in the main thread, between two of its instructions."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses

    def __bool__(self) -> bool:
        """Take the turn; a KeyboardInterrupt in it goes to the code that was interrupted."""
        self._pauses.turn(sys._getframe(1))
        return False


# SAFETY: the interpreter calls the function with the object in the main thread, which has the interpreter's lock then.
# It takes one object and gives 0, or -1 with an exception set, as such a function must. The session holds the object
# for as long as the process lives.
_add_pending_call: Any = ctypes.pythonapi.Py_AddPendingCall
_add_pending_call.argtypes = (ctypes.c_void_p, ctypes.py_object)
_add_pending_call.restype = ctypes.c_int
_IS_TRUE = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
