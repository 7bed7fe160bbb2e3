"""How a long command goes -> one line that is rewritten on a terminal, else a line each time."""

from __future__ import annotations

import shutil
import sys
import time

from typing_extensions import Self

from weft.cli.terminal import say

ERASE = "\r\033[K"
QUIET = 2.0  # seconds that a command may take without a word
OFTEN = 0.2  # seconds between two rewritings


class Progress:
    """Tells on standard error how it goes; on a terminal the line disappears at the end."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._start = self._told = time.monotonic()
        self._what, self._tenth = "", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            print(ERASE, end="", file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """Tell what happens now."""
        if self._live:
            width = shutil.get_terminal_size().columns - 1  # what is wrapped cannot be taken away
            print(f"{ERASE}{line[:width]}", end="", file=sys.stderr, flush=True)
        else:
            say(line)

    def share(self, what: str, done: int, total: int) -> None:
        """Tell how much of something is done, once the command takes long; not on a terminal only at each tenth."""
        now, tenth = time.monotonic(), 10 * done // max(total, 1)
        before, self._what, self._tenth = (self._tenth if what == self._what else 0), what, tenth
        wanted = now - self._told >= OFTEN if self._live else before < tenth and done < total
        if wanted and now - self._start >= QUIET:
            self._told = now
            self.say(f"{what}: {100 * done // max(total, 1)} %")
