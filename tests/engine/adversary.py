"""Run an engine's threads one at a time, and let a seed decide after each line which goes on.

A lock that nobody will open again is known at once, without a timeout: no thread can go on. The engine's own modules
get their locks and threads from here; everything else of the process is as it was.
"""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from weft.engine import engine as engine_module
from weft.engine import limit, workers

ENGINE = str(Path(engine_module.__file__).parent)
MOST_STEPS = 400_000


class Stuck(BaseException):
    """No thread can go on: raised in all of them."""


class Turn:
    """One thread: the gate at which it waits for its turn, and the lock that it needs before it can go on."""

    def __init__(self) -> None:
        self.gate = _thread.allocate_lock()
        self.gate.acquire()
        self.needs: Lock | None = None


class Adversary:
    """Who runs, and who comes next."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        # How often threads change, and how unequal they are: a starved one meets a state long gone.
        self.often = self.random.choice([0.03, 0.2, 0.6])
        self.favourites = self.random.random() < 0.5
        self.turns: dict[int, Turn] = {_thread.get_ident(): Turn()}
        self.waiting: list[Turn] = []
        self.current = self.turns[_thread.get_ident()]
        self.stuck = False
        self.steps = 0
        self.former = sys.gettrace()

    def able(self) -> list[Turn]:
        """List the threads that could go on."""
        return [turn for turn in self.turns.values() if turn.needs is None or not turn.needs.held]

    def yield_turn(self, ended: bool = False) -> None:
        """Let some thread go on, perhaps this one; where none can, all are told so."""
        own = self.current
        able = self.able()
        if not able and self.turns:
            self.stuck = True
            able = list(self.turns.values())
        if not able:
            return
        chosen = able[0] if self.favourites and self.random.random() < 0.7 else self.random.choice(able)
        if chosen is own:
            self._go_on()
            return
        self.current = chosen
        chosen.gate.release()
        if not ended:
            own.gate.acquire()
            self._go_on()

    def _go_on(self) -> None:
        self.steps += 1
        if self.stuck or self.steps > MOST_STEPS:
            self.stuck = True
            raise Stuck

    def step(self) -> None:
        """Note a point at which another thread may go on."""
        if self.random.random() < self.often:
            self.yield_turn()

    def need(self, lock: Lock) -> None:
        """Wait until a lock is open."""
        while lock.held:
            self.current.needs = lock
            try:
                self.yield_turn()
            finally:
                self.current.needs = None

    def start(self, function: Callable[..., object], arguments: tuple[Any, ...] = ()) -> int:
        """Start a thread, which begins when its turn comes."""
        turn = Turn()

        def run() -> None:
            turn.gate.acquire()
            sys.settrace(self.trace)
            try:
                if not self.stuck:
                    function(*arguments)
            except Stuck:
                pass
            finally:
                sys.settrace(None)
                del self.turns[_thread.get_ident()]
                self.yield_turn(ended=True)

        identity = _thread.start_new_thread(run, ())
        self.turns[identity] = turn
        return identity

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Change threads between lines of the engine: a trace function, which hands on to who traced before."""
        former = self.former(frame, event, argument) if self.former is not None else None
        if not frame.f_code.co_filename.startswith(ENGINE):
            return former

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            if former is not None:
                former(frame, event, argument)
            if event == "line" and not self.stuck:
                self.step()
            return line

        return line

    def finish(self) -> None:
        """Let all other threads end."""
        while len(self.turns) > 1:
            others = [turn for turn in self.able() if turn is not self.current]
            if not others:
                raise Stuck
            self.current.needs, own = None, self.current
            self.current = self.random.choice(others)
            self.current.gate.release()
            own.gate.acquire()


class Lock:
    """A lock whose waits the adversary knows."""

    def __init__(self, adversary: Adversary) -> None:
        self.adversary = adversary
        self.held = False

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock."""
        self.adversary.step()
        if self.held and not blocking:
            return False
        self.adversary.need(self)
        self.held = True
        return True

    def release(self) -> None:
        """Open the lock."""
        if not self.held:
            raise RuntimeError("release unlocked lock")
        self.held = False

    def locked(self) -> bool:
        """Tell whether it is held."""
        return self.held

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class ReentrantLock(Lock):
    """One that its holder may take again."""

    def __init__(self, adversary: Adversary) -> None:
        super().__init__(adversary)
        self.owner: int | None = None
        self.count = 0

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock once more."""
        if self.owner != _thread.get_ident():
            if not super().acquire(blocking):
                return False
            self.owner = _thread.get_ident()
        self.count += 1
        return True

    def release(self) -> None:
        """Open the lock, once it was released as often as taken."""
        self.count -= 1
        if not self.count:
            self.owner = None
            super().release()

    def _is_owned(self) -> bool:
        return self.owner == _thread.get_ident()


@contextmanager
def adversary(seed: int) -> Iterator[Adversary]:
    """Let engines that are made inside run under an adversary."""
    found = Adversary(seed)
    with pytest.MonkeyPatch.context() as patch:
        for module in (engine_module, limit, workers):
            patch.setattr(module, "allocate_lock", lambda: Lock(found))
        patch.setattr(workers, "start_new_thread", found.start)
        patch.setattr(engine_module, "threading", SimpleNamespace(RLock=lambda: ReentrantLock(found)))
        sys.settrace(found.trace)
        try:
            yield found
        finally:
            sys.settrace(found.former)
            found.stuck = found.stuck or len(found.turns) > 1
            while len(found.turns) > 1:  # those left wait for what will not come: they end by being told so
                other = next(turn for turn in found.turns.values() if turn is not found.current)
                own, found.current = found.current, other
                other.gate.release()
                own.gate.acquire()
