"""Write results to standard output and messages to standard error, and tell there how a long command goes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import Self

from weft.document.blocks import Document, Line, Style, Tone, lines_of
from weft.errors import ExecutionError
from weft.underway import heard_by

WIDEST = 80
COLOURS: dict[Tone, str] = {"plain": "", "strong": "bold", "faint": "dim", "good": "green", "bad": "bold red"}
ERASE = "\r\033[K"
QUIET = 2.0  # seconds that a command may take without a word
OFTEN = 0.2  # seconds between two rewritings
LOOK = 1.0  # seconds between two looks at a stage that nobody can say the share of
SELDOM = 10.0  # seconds after which such a stage is told again where lines stay


class OutputError(ExecutionError):
    """The result is there, and nowhere to write it."""


def style_of(*, ascii_only: bool) -> Style:
    """Choose how to write: 80 columns or less, and ASCII where it is asked for or standard output has no more.

    The columns are those of the terminal, or what COLUMNS says.
    """
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    return Style(max(width, 40), ascii_only or not _is_unicode(sys.stdout.encoding))


def show(result: Document | str, style: Style) -> None:
    """Print a result."""
    try:
        if isinstance(result, Document) and sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
            _show_in_colour(lines_of(result, style))
        else:
            print(text_of(result, style))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror or error}") from error


def text_of(result: Document | str, style: Style) -> str:
    """Give a result as plain lines."""
    if isinstance(result, str):
        return result
    return _plain(lines_of(result, style))


def _plain(lines: Sequence[Line]) -> str:
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def say(message: str) -> None:
    """Tell the person something that is not the result."""
    encoding = sys.stderr.encoding or "ascii"
    with contextlib.suppress(OSError):  # where messages cannot be written, nobody can be told of it
        print(message.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr, flush=True)


def fresh_line() -> None:
    """Begin a line after what a terminal echoes of Ctrl-C."""
    if sys.stderr.isatty():
        say("")


def open_streams() -> None:
    """Give a process that was started with closed streams others, which forget what is written."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # open to the end


def forget_output() -> None:
    """Have what standard output still holds go nowhere: Python would complain of it once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_in_colour(lines: Sequence[Line]) -> None:
    from rich.console import Console  # noqa: PLC0415  # the extra `cli`: everything works without it
    from rich.text import Text  # noqa: PLC0415  # as above

    # Lines are laid out already; rich knows NO_COLOR and what the terminal can do.
    console = Console(highlight=False, soft_wrap=True)
    if console.no_color:  # rich would leave bold
        print(_plain(lines))
        return
    for line in lines:
        console.print(Text.assemble(*((span.text, COLOURS[span.tone]) for span in line)))


def _is_unicode(encoding: str | None) -> bool:
    return (encoding or "").lower().replace("-", "") in {"utf8", "utf16", "utf32", "gb18030"}


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
