"""Documents and messages -> standard output and standard error, in colour where a terminal and rich are there."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence

from weft.document import Document, Line, Style, Tone, lines_of

WIDEST = 80
COLOURS: dict[Tone, str] = {"plain": "", "strong": "bold", "faint": "dim", "good": "green", "bad": "bold red"}


def style_of(*, ascii_only: bool) -> Style:
    """Choose how to write: 80 columns or less, and ASCII where it is asked for or standard output has no more."""
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns) if sys.stdout.isatty() else WIDEST
    return Style(max(width, 40), ascii_only or not _is_unicode(sys.stdout.encoding))


def show(result: Document | str, style: Style) -> None:
    """Print a result."""
    if isinstance(result, str):
        print(result)
        return
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        _show_in_colour(lines_of(result, style))
    else:
        print(text_of(result, style))


def text_of(result: Document | str, style: Style) -> str:
    """Give a result as plain lines."""
    if isinstance(result, str):
        return result
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines_of(result, style))


def say(message: str) -> None:
    """Tell the person something that is not the result."""
    encoding = sys.stderr.encoding or "ascii"
    print(message.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr, flush=True)


def _show_in_colour(lines: Sequence[Line]) -> None:
    from rich.console import Console  # noqa: PLC0415  # the extra `cli`: everything works without it
    from rich.text import Text  # noqa: PLC0415  # as above

    # Lines are laid out already; rich knows NO_COLOR and what the terminal can do.
    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        console.print(Text.assemble(*((span.text, COLOURS[span.tone]) for span in line)))


def _is_unicode(encoding: str | None) -> bool:
    return (encoding or "").lower().replace("-", "") in {"utf8", "utf16", "utf32", "gb18030"}
