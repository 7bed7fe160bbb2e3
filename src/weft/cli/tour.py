"""`weft tour`: the chapter, run on this machine."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from weft.cli.outcome import CLAIM_FAILED, OK, Outcome
from weft.cli.progress import Progress
from weft.cli.terminal import style_of
from weft.errors import UsageError
from weft.report.page import page
from weft.tour.tour import tour
from weft.whole_file import write_atomically

BEYOND_ASCII = {"zh"}


def code(given: Namespace) -> str:
    """Give the Python call that does the same."""
    words = [f"{given.lang!r}"] if given.lang != "en" else []
    words += [f"only={given.stop!r}"] if given.stop else []
    call = f"tour({', '.join(words)})"
    if given.html is None:
        return f"from weft.tour.tour import tour\n\nprint({call})"
    return (
        "from pathlib import Path\n\nfrom weft.report.page import page\nfrom weft.tour.tour import tour\n\n"
        f"found = {call}\n"
        "print(found)\n"
        f"Path({given.html!r}).write_text(page(found.title, found.document(), found.language), encoding='utf-8')"
    )


def run(given: Namespace, progress: Progress) -> Outcome:
    """Make the tour, and write the page where it is asked for."""
    _check_readable(given)
    found = tour(given.lang, given.stop, progress.say)
    if given.html is not None:
        text = page(found.title, found.document(), found.language)
        write_atomically(Path(given.html), [text.encode("utf-8")])
    return Outcome(found.document(), found.as_dict(), OK if found.holds else CLAIM_FAILED)


def _check_readable(given: Namespace) -> None:
    """Refuse a language that standard output has no characters for: nobody reads escapes. JSON is for programs."""
    if given.lang in BEYOND_ASCII and given.ascii and not given.json:
        unable = style_of(ascii_only=False).ascii
        raise UsageError(
            f"--lang {given.lang} cannot be written in ASCII",
            why=f"standard output is in {sys.stdout.encoding}" if unable else "--ascii asks for no other characters",
            fix="PYTHONIOENCODING=utf-8, or --lang en" if unable else "leave --ascii out, or choose --lang en",
        )
