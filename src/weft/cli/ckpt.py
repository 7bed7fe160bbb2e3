"""`weft ckpt`: what checkpoint files hold, whether they are sound, how they differ; conversion and tidying up."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weft.cli.outcome import CLAIM_FAILED, EXECUTION, OK, Outcome
from weft.counted import counted
from weft.errors import UsageError
from weft.report import checkpoints as pages
from weft.train.checkpoints.converting import clean, convert
from weft.train.checkpoints.examining import DAMAGED, SOUND, UNREAD, difference, examine, files_of

FAILED = {DAMAGED, UNREAD}


@dataclass(frozen=True, slots=True)
class Action:
    """What one action takes (how many files; with which option), the Python that does it, and what it does."""

    files: int | None
    option: str | None
    code: str
    run: Callable[[Namespace, list[Path]], Outcome]


def code(given: Namespace) -> str:
    """Give the Python call that does the same."""
    action, files = _checked(given)
    values = {"first": str(files[0]), "second": str(files[-1]), "files": [str(path) for path in files]}
    return "from pathlib import Path\n\n" + action.code.format(
        **{name: repr(value) for name, value in values.items()}, to=repr(given.to), keep=given.keep
    )


def run(given: Namespace) -> Outcome:
    """Do what is asked for."""
    action, files = _checked(given)
    return action.run(given, files)


def _checked(given: Namespace) -> tuple[Action, list[Path]]:
    action, files = ACTIONS[given.ACTION], [Path(name) for name in given.FILE]
    if action.files is not None and len(files) != action.files:
        raise UsageError(f"weft ckpt {given.ACTION} takes {counted(action.files, 'file')}, not {len(files)}")
    for option in ("to", "keep"):
        if getattr(given, option) is not None and action.option != option:
            raise UsageError(f"weft ckpt {given.ACTION} does not take --{option}")
    if given.ACTION == "convert" and given.to is None:
        raise UsageError("weft ckpt convert needs a name for the new file", fix="--to model.safetensors")
    return action, files


def _inspect(_: Namespace, files: list[Path]) -> Outcome:
    found = [examine(path) for path in files_of(files)]
    status = EXECUTION if any(each.state in FAILED for each in found) else OK
    return Outcome(pages.contents(found), {"files": [pages.contents_data(each) for each in found]}, status)


def _verify(_: Namespace, files: list[Path]) -> Outcome:
    found = [examine(path) for path in files_of(files)]
    states = {each.state for each in found}
    status = EXECUTION if states & FAILED else CLAIM_FAILED if states != {SOUND} else OK
    return Outcome(pages.verdicts(found), {"files": [pages.verdict_data(each) for each in found]}, status)


def _diff(_: Namespace, files: list[Path]) -> Outcome:
    found = difference(*files)
    return Outcome(pages.differences(found), pages.difference_data(found), OK if found.same else CLAIM_FAILED)


def _convert(given: Namespace, files: list[Path]) -> Outcome:
    found = convert(files[0], Path(given.to))
    return Outcome(pages.conversion(found), pages.conversion_data(found))


def _clean(given: Namespace, files: list[Path]) -> Outcome:
    found = clean(files[0], given.keep)
    return Outcome(pages.cleaning(found), pages.cleaning_data(found), CLAIM_FAILED if found.damaged else OK)


ACTIONS = {
    "inspect": Action(
        None,
        None,
        "from weft.report.checkpoints import contents\n"
        "from weft.train.checkpoints.examining import examine, files_of\n\n"
        "print(contents([examine(path) for path in files_of([Path(name) for name in {files}])]))",
        _inspect,
    ),
    "verify": Action(
        None,
        None,
        "from weft.report.checkpoints import verdicts\n"
        "from weft.train.checkpoints.examining import examine, files_of\n\n"
        "print(verdicts([examine(path) for path in files_of([Path(name) for name in {files}])]))",
        _verify,
    ),
    "diff": Action(
        2,
        None,
        "from weft.report.checkpoints import differences\nfrom weft.train.checkpoints.examining import difference\n\n"
        "print(differences(difference(Path({first}), Path({second}))))",
        _diff,
    ),
    "convert": Action(
        1,
        "to",
        "from weft.report.checkpoints import conversion\nfrom weft.train.checkpoints.converting import convert\n\n"
        "print(conversion(convert(Path({first}), Path({to}))))",
        _convert,
    ),
    "clean": Action(
        1,
        "keep",
        "from weft.report.checkpoints import cleaning\nfrom weft.train.checkpoints.converting import clean\n\n"
        "print(cleaning(clean(Path({first}), {keep})))",
        _clean,
    ),
}
