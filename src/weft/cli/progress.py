"""How a long command goes -> one line that is rewritten on a terminal, else a line each time."""

from __future__ import annotations

import sys

from typing_extensions import Self

from weft.cli.terminal import say

ERASE = "\r\033[K"


class Progress:
    """Tells on standard error how it goes; on a terminal the line disappears at the end."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            print(ERASE, end="", file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """Tell what happens now."""
        if self._live:
            print(f"{ERASE}{line}", end="", file=sys.stderr, flush=True)
        else:
            say(line)
