"""`weft devices`: what this machine has to compute with."""

from __future__ import annotations

import sys
import threading
from argparse import Namespace

from weft.cli.outcome import Outcome
from weft.cli.progress import Progress
from weft.cli.terminal import show, style_of
from weft.errors import UsageError
from weft.report.survey import survey

SECONDS = 2.0
CLEAR = "\033[H\033[2J"


def code(given: Namespace) -> str:
    """Give the Python call that does the same."""
    call = f"print(survey({'speed=False' if given.no_speed else ''}))"
    if given.watch:
        again = f"while True:\n    {call}\n    time.sleep({SECONDS})"
        return f"import time\n\nfrom weft.report.survey import survey\n\n{again}"
    return f"from weft.report.survey import survey\n\n{call}"


def run(given: Namespace, progress: Progress) -> Outcome:
    """Survey the devices; while somebody watches, again and again until Ctrl-C."""
    if given.watch and (given.once or given.json):
        raise UsageError("--watch goes on, --once and --json give one result", fix="leave one of them out")
    progress.stage("looking at the devices" if given.no_speed else "measuring the devices")
    found = survey(speed=not given.no_speed)
    if given.watch:
        progress.end()
    nobody = threading.Event()  # nobody sets it: only Ctrl-C ends the wait
    while given.watch:
        if sys.stdout.isatty():
            print(CLEAR, end="")
        show(found.document(), style_of(ascii_only=given.ascii))
        nobody.wait(SECONDS)
        # Speed does not change; what is measured again would disturb what is watched.
        found = survey(speed=not given.no_speed)
    return Outcome(found.document(), found.as_dict())
