"""Watch the signs of life of every rank in a shared store, and say which one failed, where, and in which step."""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from torch.distributed import PrefixStore  # type: ignore[attr-defined] # public, but not said to be

from weft.errors import source_line
from weft.owners import Owner, owner_of
from weft.train.processes.parent import parent_is_gone

# Threads that wait for another one which runs the user's code: by identity, from who waits to who works.
HELPERS: dict[int, int] = {}


def line_of_error(error: BaseException) -> str | None:
    """Name the last line of the user's that an error came through."""
    return _line([(frame, line) for frame, line in _walk_traceback(error.__traceback__)][::-1])


def line_of_thread(identity: int) -> str | None:
    """Name the line of the user's that a thread is in now, or that whom it waits for is in."""
    return _line_now(HELPERS.get(identity, identity)) or _line_now(identity)


def _line_now(identity: int) -> str | None:
    # Asked for in passing: the table has this very frame, and held by it would be a circle of all that threads compute
    # with, which the collector would take apart in any order, or keep for long.
    return _line(_walk_stack(sys._current_frames().get(identity)))


def _walk_stack(frame: FrameType | None) -> Iterable[tuple[FrameType, int]]:
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _walk_traceback(traceback: TracebackType | None) -> Iterable[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _line(places: Iterable[tuple[FrameType, int]]) -> str | None:
    """The first of these places, innermost first, that is the user's."""
    for frame, line in places:
        name = frame.f_code.co_filename
        if not name.startswith("<") and owner_of(name) is Owner.USER:
            return source_line(name, line)
    return None


PERIOD = 0.1  # seconds between two signs of life
SILENCE = 1.2  # seconds without a sign of life after which a rank counts as gone,
BUSY_SILENCE = 60.0  # or where its process is seen to run: the machine may be busy, or long work holds the interpreter
FAILURE = "failure"
NOBODY = -1  # the rank of a failure that no rank has caused


@dataclass(frozen=True)
class RankFailure:
    """What is known of the rank that ended the run."""

    rank: int
    step: int
    reason: str
    line: str | None = None
    told: bool = False  # by the rank itself, which knows its step; the others know the last one that it said


@dataclass
class Sign:
    """What a rank says of itself: a number that grows, its step, what it does, and where in the user's code it is."""

    beat: int = 0
    step: int = 0
    doing: str = "starting"
    line: str | None = None
    process: int = 0
    machine: str = ""


class RankWatch:
    """A thread that says that this rank is alive, and looks after the others.

    Nothing is decided in it but by what the store says: a rank's first failure is a key that all read.
    """

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.sign = Sign(process=os.getpid(), machine=this_machine())
        self.failure: RankFailure | None = None
        self._store = store
        self._main = threading.main_thread().ident or 0
        self._parent = os.getppid()
        self._others = [other for other in range(world) if other != rank]
        self._seen = {other: (Sign(), time.monotonic()) for other in self._others}
        # Held to write or read the store, by the watching thread and by whoever reports; neither waits for the other
        # longer than one exchange with the store takes.
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._say()
        self._thread = threading.Thread(target=self._watch, name="weft-rank-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch; every rank must have said its first sign."""
        now = time.monotonic()
        self._seen = {other: (Sign(), now) for other in self._others}
        self._thread.start()

    def tell(self) -> None:
        """Give a sign of life now, if the last one is not quite new: what comes may end this process."""
        if self.sign.line is None or time.monotonic() - self._said > PERIOD / 4:
            with self._lock:
                self._say()

    def report(self, failure: RankFailure) -> None:
        """Tell all ranks of a failure; the first one that is told counts."""
        with self._lock:
            self.failure = self.failure or publish(self._store, failure)

    def end(self) -> None:
        """Say that this rank leaves, so that whoever still waits for it knows why."""
        self._ended.set()
        self.sign.doing = "ended"
        with self._lock:
            try:
                self._say()
            except RuntimeError:
                return  # whoever held the store has left before

    def find(self, seconds: float) -> RankFailure | None:
        """Wait until it is known which rank failed, for so long at most."""
        limit = time.monotonic() + seconds
        while self.failure is None and time.monotonic() < limit:
            threading.Event().wait(PERIOD / 4)
        return self.failure

    def late(self, step: int) -> RankFailure:
        """Name a rank that others have waited for in vain: the one that is furthest behind."""
        signs = {other: sign for other, (sign, _) in self._seen.items()}
        slowest = min(signs, key=lambda other: (signs[other].doing == "waiting", signs[other].step))
        sign = signs[slowest]
        return RankFailure(
            slowest, step, f"it is alive but does not come to the sum of the others: {sign.doing}", sign.line
        )

    def busy_elsewhere(self) -> bool:
        """Tell whether a rank does what may take long, such as writing a checkpoint."""
        return any(sign.doing == "saving" for sign, _ in self._seen.values())

    def _watch(self) -> None:
        while not self._ended.wait(PERIOD):
            if parent_is_gone(self._parent):
                os._exit(1)
            try:
                with self._lock:
                    if self._ended.is_set():
                        return
                    self._say()
                    self._look()
            except RuntimeError as error:  # the store's connection: its holder has ended or does not answer
                holder = RankFailure(0, self.sign.step, f"the store of the process group does not answer: {error}")
                self.failure = self.failure or holder
                return

    def _say(self) -> None:
        self.sign.beat += 1
        # Between the user's lines the last one stays: whoever is killed there was last seen in it.
        self.sign.line = line_of_thread(self._main) or self.sign.line
        self._said = time.monotonic()
        self._store.set(f"sign{self.rank}", json.dumps(asdict(self.sign)))

    def _look(self) -> None:
        found = read_failure(self._store)
        if found is not None:
            self.failure = self.failure or found
        texts = self._store.multi_get([f"sign{other}" for other in self._others])
        now = time.monotonic()
        for other, text in zip(self._others, texts, strict=True):
            sign = Sign(**json.loads(text))
            before, since = self._seen[other]
            if sign.beat != before.beat:
                self._seen[other] = (sign, now)
            elif self.failure is None and is_gone(sign, now - since):
                self.failure = publish(self._store, silent(other, sign))


def is_gone(sign: Sign, silence: float) -> bool:
    """Whether the process of a rank that has been silent for so many seconds counts as gone."""
    return silence > SILENCE and (silence > BUSY_SILENCE or sign.doing == "ended" or not is_seen_running(sign))


def is_seen_running(sign: Sign) -> bool:
    """Whether a rank's process can be seen from here, and is neither stopped nor ended."""
    if sign.machine != this_machine():
        return False
    try:
        after_name = Path(f"/proc/{sign.process}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False
    return after_name.split()[0] not in "TtZXx"


def this_machine() -> str:
    """Name what has one table of processes: a machine, or a container on it."""
    table = Path("/proc/self/ns/pid")
    return f"{platform.node()} {table.readlink() if table.exists() else ''}".strip()


def silent(rank: int, sign: Sign) -> RankFailure:
    """Say what a rank that gives no sign of life was last seen doing."""
    if sign.doing == "ended":
        return RankFailure(rank, sign.step, "it has ended, and the others have not", None)
    if is_seen_running(sign):
        why = f"process {sign.process} runs, but has given no sign of life for {BUSY_SILENCE:.0f} seconds"
        return RankFailure(rank, sign.step, why, sign.line)
    return RankFailure(rank, sign.step, f"process {sign.process} was killed or is stopped: no sign of life", sign.line)


def publish(store: Any, failure: RankFailure) -> RankFailure:
    """Put a failure into the store unless there is one; gives the one that is there then."""
    text: bytes = store.compare_set(FAILURE, "", json.dumps(asdict(failure)))
    return RankFailure(**json.loads(text)) if text else failure


def read_failure(store: Any) -> RankFailure | None:
    """Give the failure that is in the store."""
    return RankFailure(**json.loads(store.get(FAILURE))) if store.check([FAILURE]) else None


def signs(store: Any, world: int) -> dict[int, Sign]:
    """Give the last sign of each rank that has given one."""
    said = [rank for rank in range(world) if store.check([f"sign{rank}"])]
    return {rank: Sign(**json.loads(store.get(f"sign{rank}"))) for rank in said}


def own_part(store: Any) -> Any:
    """Give Weft's part of a store."""
    return PrefixStore("weft", store)
