"""`weft doctor`: what is well on this machine and with a model, and what is not."""

from __future__ import annotations

from argparse import Namespace
from functools import partial

from weft.bench.subject import call, load_subject
from weft.cli.outcome import CLAIM_FAILED, OK, UNSUPPORTED, Outcome
from weft.cli.progress import Progress
from weft.report.diagnosis import Diagnosis, diagnose


def code(given: Namespace) -> str:
    """Give the Python call that does the same."""
    if given.TARGET is None:
        return "from weft.report.diagnosis import diagnose\n\nprint(diagnose())"
    sizes = f", {given.input!r}" if given.input else ""
    check = ", check=True" if given.check else ""
    return (
        "from weft.bench.subject import load_subject\nfrom weft.report.diagnosis import diagnose\n\n"
        f"subject = load_subject({given.TARGET!r}{sizes})\nprint(diagnose(subject.thing, *subject.inputs{check}))"
    )


def run(given: Namespace, progress: Progress) -> Outcome:
    """Look at the machine, and at the model if one is named."""
    found: Diagnosis
    if given.TARGET is None:
        progress.stage("looking at this machine")
        found = diagnose()
    else:
        subject = load_subject(given.TARGET, given.input)
        call(subject)
        progress.stage("looking at this machine")
        found = subject.caller(partial(diagnose, check=given.check), subject.thing, *subject.inputs)
    return Outcome(found.document(), found.as_dict(), _status(found))


def _status(found: Diagnosis) -> int:
    if not found.well:
        return CLAIM_FAILED
    return UNSUPPORTED if found.model is not None and found.model.obstacles else OK
