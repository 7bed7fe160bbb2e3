"""How a long command goes -> one line that is rewritten on a terminal, else a line each time."""

from __future__ import annotations

import shutil
import sys
import threading
import time

from typing_extensions import Self

from weft.console.terminal import say
from weft.underway import heard_by

ERASE = "\r\033[K"
QUIET = 2.0  # seconds that a command may take without a word
OFTEN = 0.2  # seconds between two rewritings
LOOK = 1.0  # seconds between two looks at a stage that nobody can say the share of
SELDOM = 10.0  # seconds after which such a stage is told again where lines stay


class Progress:
    """Tells on standard error how it goes; on a terminal the line disappears at the end.

    Where shares are known, `share` tells them. Else `stage` names what is done, and a thread tells it with the seconds.
    """

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._start = self._told = time.monotonic()
        self._what, self._tenth = "", 0
        self._stage = self._stage_told = ""
        self._shown = False
        # Held to choose a line and write it. The other side is the thread below, which waits for nothing else.
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._clock: threading.Thread | None = None
        self._heard = heard_by(self.stage)

    def __enter__(self) -> Self:
        self._heard.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._heard.__exit__(None, None, None)
        self.end()

    def end(self) -> None:
        """Tell nothing more by itself: the command is done, or tells how it goes in its own way."""
        self._ended.set()
        if self._clock is not None:
            self._clock.join()
            self._clock = None
        with self._lock:
            self._stage = ""
            if self._live and self._shown:
                print(ERASE, end="", file=sys.stderr, flush=True)
            self._shown = False

    def stage(self, what: str) -> None:
        """Name what is done from now on, where nobody knows how long it takes; an empty name is not told."""
        with self._lock:
            self._stage = what
        if self._clock is None and not self._ended.is_set():
            self._clock = threading.Thread(target=self._watch, name="weft progress", daemon=True)
            self._clock.start()

    def say(self, line: str) -> None:
        """Tell what happens now."""
        with self._lock:
            self._stage = ""
            self._write(line)

    def share(self, what: str, done: int, total: int) -> None:
        """Tell how much of something is done, once the command takes long; not on a terminal only at each tenth."""
        now, tenth = time.monotonic(), 10 * done // max(total, 1)
        before, self._what, self._tenth = (self._tenth if what == self._what else 0), what, tenth
        wanted = now - self._told >= OFTEN if self._live else before < tenth and done < total
        if wanted and now - self._start >= QUIET:
            self._told = now
            self.say(f"{what}: {100 * done // max(total, 1)} %")

    def _watch(self) -> None:
        """Tell stages until the end: soon where the line is rewritten, else what is new, and seldom again."""
        pause = QUIET
        while not self._ended.wait(pause):
            pause = LOOK
            with self._lock:
                self._tell_stage(time.monotonic())

    def _tell_stage(self, now: float) -> None:
        again = self._live or self._stage != self._stage_told or now - self._told >= SELDOM
        if self._stage and again:
            self._told, self._stage_told = now, self._stage
            self._write(f"{self._stage}: {now - self._start:.0f} s")

    def _write(self, line: str) -> None:
        self._shown = True
        if self._live:
            width = shutil.get_terminal_size().columns - 1  # what is wrapped cannot be taken away
            print(f"{ERASE}{line[:width]}", end="", file=sys.stderr, flush=True)
        else:
            say(line)
