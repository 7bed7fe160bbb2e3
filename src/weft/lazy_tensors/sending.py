"""What each thread has recorded -> segments that are pushed to the engine, or that run on the thread that waits."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter, sleep
from typing import Any

from weft.engine import Engine, SerialEngine
from weft.errors import ExecutionError
from weft.lazy_tensors.cores import waiting
from weft.lazy_tensors.gradients import Gradients
from weft.lazy_tensors.looks import Looks
from weft.lazy_tensors.questions import in_task, is_like_a_worker
from weft.lazy_tensors.recording import Recording, Segment
from weft.lazy_tensors.settings import flushes_denormals
from weft.lazy_tensors.tasks import after_readers, engine, idle, lane, push_segment, run_here
from weft.lazy_tensors.values import Memories
from weft.trace.interception.capture import without_functions

FIRST_SECONDS = 5e-3  # of work that is recorded before the first task of a series is pushed; doubled at each
MOST_SECONDS = 1.0
SETTLING = 2e-4  # in which a worker counts as done what it has told to be so


class _Own(threading.local):
    """What each thread has for itself."""

    recording: Recording | None = None
    patience: float = FIRST_SECONDS
    looks: Looks | None = None  # of the lazy block that it is in


class Recordings:
    """What is recorded and not yet pushed, by all threads of the process."""

    gradients: Gradients

    def __init__(self) -> None:
        self.memories = Memories()
        self.own: _Own = _Own()
        # Held while operators are noted and tasks are pushed; whoever holds it waits for nothing.
        self.lock: AbstractContextManager[Any] = threading.RLock()
        self._recordings: dict[Recording, None] = {}

    def recording(self) -> Recording:
        """The recording of this thread."""
        found = self.own.recording
        if found is None or found.closed:
            runner = engine()
            # The engine to debug with runs each operator at its call.
            most = -1.0 if isinstance(runner, SerialEngine) else runner.limits.bytes / 4
            found = Recording(lane(), most, self.own.patience, self.gradients.epoch)
            found.flushes = flushes_denormals()
            self.own.recording = found
            self._recordings[found] = None
        return found

    def end_recording(self) -> None:
        """Push what this thread has recorded: what follows belongs to another device."""
        if self.own.recording is not None:
            self.flush(self.own.recording)

    def flush(self, recording: Recording, *, waits: bool = False) -> None:
        """Push what a recording holds; what is short, and waited for next, runs here where nothing else is queued."""
        runner = engine()
        if waits and isinstance(runner, Engine) and runner.is_quiet() and is_like_a_worker():
            # On the other side: a worker that links tasks, or another thread that is here; both for a short time.
            with runner.turn:
                segment = self._close(recording, here=True)
                if segment is not None:
                    with waiting(), without_functions():  # nobody is to be shown its operators
                        run_here(runner, segment)
            runner.advance()
            return
        with self.lock:
            size = 0 if recording.closed else recording.size()
        runner.make_room(size)  # not under the lock, which tasks may need to make room
        self._close(recording)

    def _close(self, recording: Recording, *, here: bool = False) -> Segment | None:
        """Push what a recording holds; gives it instead if it can run on this thread, which has the engine's turn."""
        with self.lock:
            if recording.closed:
                return None
            recording.closed = True
            self._recordings.pop(recording, None)
            if not recording.places:
                return None
            here = here and engine().is_quiet()
            if recording.gradients:
                self.gradients.flush(here=here)
            alive = recording.alive()
            self.gradients.note_leaves(recording, alive)
            count = len(recording.places)
            segment = recording.segment(alive)
            if self.own.looks is not None and recording is self.own.recording:
                self.own.looks.sent(segment.plan, count, segment.seconds)
            if here and segment.is_short():
                return segment
            push_segment(segment, self.gradients.order)
            return None

    def nothing_left(self) -> bool:
        """Tell whether nothing is recorded or queued, and no thread that waits runs anything."""
        runner = engine()
        # In this order: a recording that runs on such a thread is taken from here after the turn is.
        return not self._recordings and runner.is_quiet() and not (isinstance(runner, Engine) and runner.turn.locked())

    def flush_all(self, *, waits: bool = False) -> None:
        """Push everything that was recorded, by any thread."""
        for recording in list(self._recordings):
            self.flush(recording, waits=waits)
        self.gradients.flush()
        self._be_impatient()

    def _be_impatient(self) -> None:
        """Somebody waits: begin anew with small tasks."""
        self.own.patience = FIRST_SECONDS
        if self.own.recording is not None:
            self.own.recording.most_seconds = FIRST_SECONDS
        if self.own.looks is not None:
            self.own.looks.waited()

    def finish(self) -> None:
        """Wait until everything queued is done, failed or not."""
        self.flush_all(waits=True)
        if in_task():
            after_readers(self.memories.all())  # not everything: that includes this task itself
            return
        with waiting():
            engine().finish_all()
        with self.lock:
            # Another thread may have queued something since: what it names is still to be known.
            if not self._recordings and idle():
                self.memories.forget()
                self.gradients.forget()

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Around what raises failures: once one is told, tensors that it kept from being changed are as before.

        What was queued before that is skipped, if it depends on them, however far the workers have come by now.
        """
        try:
            yield
        except ExecutionError:
            if not in_task():  # a task would wait for itself; whoever waits for the task is told again
                self.finish()
                engine().failures.recover()
                self.memories.forget()
                self.gradients.forget(failed=True)
            raise

    def runs_at_once(self, looks: Looks) -> bool:
        """Tell whether the next operator runs at once, of a block that looks too often: it waits for nothing then.

        Where anything is recorded, queued or spoilt, it is queued as ever, and so ordered with that.
        """
        if looks.calls <= 1:  # behind a look
            self._close_unused()
        if not self.is_settled():
            return False
        looks.rest -= 1
        self.gradients.epoch += 1  # what runs at once may change what autograd graphs reach
        return True

    def _close_unused(self) -> None:
        """Push what threads that have ended left, and drop a recording of this one that has nothing in it."""
        for recording in list(self._recordings):
            own = recording is self.own.recording
            if not recording.places if own else recording.thread not in sys._current_frames():
                self._close(recording)
        last = perf_counter() + SETTLING
        while not idle() and perf_counter() < last:  # the worker that has just told us of its task still counts it
            sleep(0)

    def is_settled(self) -> bool:
        """Tell whether operators need not be ordered with anything: nothing is recorded, queued or spoilt."""
        if not self._is_done():
            return False
        if self.memories.any() or self.gradients.any():
            with self.lock:
                if not self._is_done():
                    return False
                self.gradients.flush(here=True)
                self.memories.forget()
                self.gradients.forget()
        return not self.memories.any() and not self.gradients.any()  # what is left has failed

    def _is_done(self) -> bool:
        """Tell whether all is done, failed or not, and nobody records tasks or debugs them."""
        runner = engine()
        if self._recordings or not isinstance(runner, Engine) or runner.timeline is not None:
            return False
        return idle() and not runner.inbox and not runner.turn.locked()  # in this order: see `nothing_left`
