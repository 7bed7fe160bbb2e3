"""`weft env`: versions and settings, to paste into an issue."""

from __future__ import annotations

from argparse import Namespace

from weft.cli.outcome import Outcome
from weft.cli.progress import Progress
from weft.report.environment import environment


def code(given: Namespace) -> str:
    """Give the Python call that does the same."""
    del given
    return "from weft.report.environment import environment\n\nprint(environment())"


def run(given: Namespace, progress: Progress) -> Outcome:
    """Look at this installation."""
    del given
    progress.stage("looking at this installation")
    found = environment()
    return Outcome(found.document(), found.as_dict())
