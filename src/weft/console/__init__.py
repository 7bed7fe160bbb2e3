"""The command `weft`: each of its commands is a call of Python that `--show-code` prints."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

CTRL_C = 130  # the exit status, as a shell counts it


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line; `words` are those behind `weft`, by default those of this process."""
    try:
        # Imported here, by its name: Ctrl-C while Python imports all of it is answered as at any other time.
        status: int = importlib.import_module("weft.console.command_line").main(words)
    except KeyboardInterrupt:
        if sys.stderr is not None:
            begin = "\n" if sys.stderr.isatty() else ""  # after the ^C that a terminal echoes
            print(f"{begin}weft: interrupted; nothing had begun", file=sys.stderr)
        return CTRL_C
    return status
