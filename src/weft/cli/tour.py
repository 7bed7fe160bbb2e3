"""`weft tour`: the chapter, run on this machine."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from weft.api.program_writing import write_atomically
from weft.cli.outcome import CLAIM_FAILED, OK, Outcome
from weft.cli.progress import Progress
from weft.report.page import page
from weft.tour.tour import tour


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


def run(given: Namespace) -> Outcome:
    """Make the tour, and write the page where it is asked for."""
    with Progress() as progress:
        found = tour(given.lang, given.stop, progress.say)
    if given.html is not None:
        text = page(found.title, found.document(), found.language)
        write_atomically(Path(given.html), [text.encode("utf-8")])
    return Outcome(found.document(), found.as_dict(), OK if found.holds else CLAIM_FAILED)
