"""`weft ckpt`: what checkpoint files hold, whether they are sound, how they differ; conversion and tidying up."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from weft.cli.outcome import CLAIM_FAILED, EXECUTION, OK, Outcome
from weft.cli.progress import Progress
from weft.counted import counted
from weft.errors import UsageError
from weft.report import checkpoints as pages
from weft.train.checkpoints.converting import clean, convert
from weft.train.checkpoints.examining import DAMAGED, SOUND, UNREAD, Examined, difference, examine, files_of

FAILED = {DAMAGED, UNREAD}


@dataclass(frozen=True, slots=True)
class Action:
    """What one action takes (how many files; with which option), the Python that does it, and what it does."""

    files: int | None
    option: str | None
    code: str
    run: Callable[[Namespace, list[Path], Progress], Outcome]


def code(given: Namespace) -> str:
    """Give the Python call that does the same."""
    action, files = _checked(given)
    values = {"first": str(files[0]), "second": str(files[-1]), "files": [str(path) for path in files]}
    return "from pathlib import Path\n\n" + action.code.format(
        **{name: repr(value) for name, value in values.items()}, to=repr(given.to), keep=given.keep
    )


def run(given: Namespace, progress: Progress) -> Outcome:
    """Do what is asked for."""
    action, files = _checked(given)
    return action.run(given, files, progress)


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


def _examined(places: list[Path], progress: Progress) -> list[Examined]:
    """Look at files one after the other; the share that is told is that of all bytes."""
    files = files_of(places)
    sizes = [path.stat().st_size for path in files]
    all_of_them = f"reading {counted(len(files), 'file')}" if len(files) > 1 else ""
    found: list[Examined] = []
    for path, before in zip(files, accumulate(sizes, initial=0), strict=False):

        def told(what: str, done: int, _: int, before: int = before) -> None:
            progress.share(all_of_them or what, before + done, sum(sizes))

        found.append(examine(path, told))
    return found


def _inspect(_: Namespace, files: list[Path], progress: Progress) -> Outcome:
    found = _examined(files, progress)
    status = EXECUTION if any(each.state in FAILED for each in found) else OK
    return Outcome(pages.contents(found), {"files": [pages.contents_data(each) for each in found]}, status)


def _verify(_: Namespace, files: list[Path], progress: Progress) -> Outcome:
    found = _examined(files, progress)
    states = {each.state for each in found}
    status = EXECUTION if states & FAILED else CLAIM_FAILED if states != {SOUND} else OK
    return Outcome(pages.verdicts(found), {"files": [pages.verdict_data(each) for each in found]}, status)


def _diff(_: Namespace, files: list[Path], progress: Progress) -> Outcome:
    found = difference(files[0], files[1], progress.share)
    return Outcome(pages.differences(found), pages.difference_data(found), OK if found.same else CLAIM_FAILED)


def _convert(given: Namespace, files: list[Path], progress: Progress) -> Outcome:
    found = convert(files[0], Path(given.to), progress.share)
    return Outcome(pages.conversion(found), pages.conversion_data(found))


def _clean(given: Namespace, files: list[Path], progress: Progress) -> Outcome:
    found = clean(files[0], given.keep, progress.share)
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
