"""Documents and messages -> standard output and standard error, in colour where a terminal and rich are there."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from weft.document.blocks import Document, Line, Style, Tone, lines_of
from weft.errors import ExecutionError

WIDEST = 80
COLOURS: dict[Tone, str] = {"plain": "", "strong": "bold", "faint": "dim", "good": "green", "bad": "bold red"}


class OutputError(ExecutionError):
    """The result is there, and nowhere to write it."""


def style_of(*, ascii_only: bool) -> Style:
    """Choose how to write: 80 columns or less, and ASCII where it is asked for or standard output has no more."""
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns) if sys.stdout.isatty() else WIDEST
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
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines_of(result, style))


def say(message: str) -> None:
    """Tell the person something that is not the result."""
    encoding = sys.stderr.encoding or "ascii"
    with contextlib.suppress(OSError):  # where messages cannot be written, nobody can be told of it
        print(message.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr, flush=True)


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
    for line in lines:
        console.print(Text.assemble(*((span.text, COLOURS[span.tone]) for span in line)))


def _is_unicode(encoding: str | None) -> bool:
    return (encoding or "").lower().replace("-", "") in {"utf8", "utf16", "utf32", "gb18030"}
