"""Report what checkpoint files hold, whether they are sound and how they differ: `weft ckpt`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from weft.console.outcome import CLAIM_FAILED, EXECUTION, OK, Outcome
from weft.console.terminal import Progress
from weft.document.blocks import Block, Code, Document, Heading, Paragraph, StyledText, Table, Tone, facts
from weft.errors import UsageError, counted
from weft.train.checkpoints.content import summary
from weft.train.checkpoints.converting import Cleaned, Converted, clean, convert
from weft.train.checkpoints.examining import (
    DAMAGED,
    SOUND,
    UNCHECKED,
    UNREAD,
    Examined,
    FileDifference,
    difference,
    examine,
    files_of,
)

MOST_ROWS = 200
MOST_CHANGED = 20
TONES: dict[str, Tone] = {SOUND: "good", UNCHECKED: "strong", UNREAD: "bad", DAMAGED: "bad"}
FAILED = {DAMAGED, UNREAD}


def contents(files: Sequence[Examined]) -> Document:
    """Show what files hold: a table of tensors each."""
    return Document(tuple(block for each in files for block in _content_blocks(each)))


def contents_data(found: Examined) -> dict[str, Any]:
    """Give what a file holds as data."""
    data = verdict_data(found)
    if found.content is None:
        return data
    tensors = [
        {"name": name, "dtype": dtype, "shape": shape, "same_as": tie}
        for name, dtype, shape, tie in _rows(found.content.tensors)
    ]
    parts = sorted(found.content.parts)
    return {
        **data,
        "made_by": found.content.made_by,
        "parts": parts,
        "random": found.content.random is not None,
        "tensors": tensors,
    }


def verdicts(files: Sequence[Examined]) -> Document:
    """Show a row a file: sound or not, and why not."""
    rows = tuple((str(each.path), StyledText(each.state, TONES[each.state]), each.problem or "") for each in files)
    counts = {state: sum(each.state == state for each in files) for state in TONES}
    total = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    told = Paragraph(f"{counted(len(files), 'file')}: {total}", "strong")
    return Document((Table(("file", "state", ""), rows), told))


def verdict_data(found: Examined) -> dict[str, Any]:
    """Give the verdict on a file as data."""
    state = {"path": str(found.path), "kind": found.kind, "bytes": found.size, "state": found.state}
    return state | ({"problem": found.problem} if found.problem else {})


def differences(found: FileDifference) -> Document:
    """Show how two files differ: names, then values, the largest difference first."""
    blocks: list[Block] = [Code(str(found.report))]
    if found.changed:
        shown = sorted(found.changed, key=lambda each: -each.largest)[:MOST_CHANGED]
        rows = tuple((each.name, f"{each.largest:.3g}", f"{each.relative:.3g}") for each in shown)
        blocks.append(Table(("tensor", "largest", "relative"), rows, frozenset({1, 2})))
    if len(found.changed) > MOST_CHANGED:
        blocks.append(Paragraph(f"and {len(found.changed) - MOST_CHANGED} more"))
    parted = f"{counted(found.equal, 'tensor')} equal, {len(found.changed)} different"
    return Document((*blocks, Paragraph("the same model" if found.same else parted, "strong")))


def difference_data(found: FileDifference) -> dict[str, Any]:
    """Give how two files differ as data."""
    report = {
        name: list(getattr(found.report, name)) for name in ("matched", "renamed", "missing", "unexpected", "shape")
    }
    changed = [{"name": each.name, "largest": each.largest, "relative": each.relative} for each in found.changed]
    return {"same": found.same, **report, "equal": found.equal, "changed": changed}


def conversion(found: Converted) -> Document:
    """Say what was written."""
    text = f"written and verified: {found.path}, {counted(found.tensors, 'tensor')}"
    if found.renamed:
        text += f"; {counted(found.renamed, 'name')} without the wrapper now"
    notes = (Paragraph(f"left out: {', '.join(found.left_out)}"),) if found.left_out else ()
    return Document((Paragraph(text), *notes))


def conversion_data(found: Converted) -> dict[str, Any]:
    """Give what was written as data."""
    return {
        "written": str(found.path),
        "tensors": found.tensors,
        "renamed": found.renamed,
        "left_out": list(found.left_out),
    }


def cleaning(found: Cleaned) -> Document:
    """Say what went and what stays."""
    rows = [
        ("left by killed writers, removed", found.orphans, "plain"),
        ("older checkpoints, removed", found.removed, "plain"),
        ("kept", found.kept, "good"),
        ("damaged, kept", found.damaged, "bad"),
    ]
    named = [(title, StyledText(", ".join(path.name for path in paths), tone)) for title, paths, tone in _named(rows)]
    return Document(
        (facts(named) if named else Paragraph("there is no checkpoint of weft.Checkpoints in it; nothing was removed"),)
    )


def cleaning_data(found: Cleaned) -> dict[str, Any]:
    """Give what went and what stays as data."""
    return {name: [str(path) for path in getattr(found, name)] for name in ("orphans", "removed", "kept", "damaged")}


def _named(rows: Any) -> list[tuple[str, Any, Tone]]:
    return [row for row in rows if row[1]]


def _content_blocks(found: Examined) -> list[Block]:
    state = StyledText(found.state, TONES[found.state])
    rows = [("file", StyledText(f"{found.kind}, {found.size:,} bytes")), ("state", state)]
    if found.content is None:
        return [Heading(str(found.path)), facts([*rows, ("why", found.problem or "")])]
    content = found.content
    tensors, elements = summary(content.tensors)
    rows.append(
        ("model", StyledText(f"{counted(tensors, 'tensor')}, {elements:,} number{'' if elements == 1 else 's'}"))
    )
    if content.parts:
        rows.append(("besides", StyledText(", ".join(sorted(content.parts)))))
    if content.random is not None:
        rows.append(("random states", StyledText("of Python, NumPy and PyTorch")))
    if content.made_by:
        rows.append(("made by", StyledText(", ".join(f"{name} {text}" for name, text in content.made_by.items()))))
    listed = _rows(content.tensors)
    shown = tuple((name, dtype, str(shape), f"= {tie}" if tie else "") for name, dtype, shape, tie in listed)
    table = Table(("tensor", "type", "shape", ""), shown[:MOST_ROWS])
    more = [Paragraph(f"and {len(shown) - MOST_ROWS} more; --json lists all")] if len(shown) > MOST_ROWS else []
    return [Heading(str(found.path)), facts(rows), table, *more]


def _rows(tensors: dict[str, Any]) -> list[tuple[str, str, list[int], str | None]]:
    """A row a name: type, shape, and the name before it that is the same tensor."""
    owners: dict[int, str] = {}
    rows = []
    for name, value in tensors.items():
        owner = owners.setdefault(id(value), name)
        kind, shape = type(value).__name__, []
        if isinstance(value, torch.Tensor):
            kind, shape = str(value.dtype).removeprefix("torch."), list(value.shape)
        rows.append((name, kind, shape, None if owner == name else owner))
    return rows


@dataclass(frozen=True, slots=True)
class Action:
    """What one action takes (how many files; with which option), the Python that does it, and what it does."""

    files: int | None
    option: str | None
    code: str
    run: Callable[[Namespace, list[Path], Progress], Outcome]


def ckpt_call(given: Namespace) -> str:
    """Give the Python call that does the same."""
    action, files = _checked(given)
    values = {"first": str(files[0]), "second": str(files[-1]), "files": [str(path) for path in files], "to": given.to}
    written = {name: repr(value) for name, value in values.items()}
    force = ", force=True" if given.force else ""
    return "from pathlib import Path\n\n" + action.code.format(**written, keep=given.keep, force=force)


def ckpt_run(given: Namespace, progress: Progress) -> Outcome:
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
    if given.force and given.ACTION != "convert":
        raise UsageError(f"weft ckpt {given.ACTION} does not take --force", why="it writes over nothing")
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
    return Outcome(contents(found), {"files": [contents_data(each) for each in found]}, status)


def _verify(_: Namespace, files: list[Path], progress: Progress) -> Outcome:
    found = _examined(files, progress)
    states = {each.state for each in found}
    status = EXECUTION if states & FAILED else CLAIM_FAILED if states - {SOUND, UNCHECKED} else OK
    return Outcome(verdicts(found), {"files": [verdict_data(each) for each in found]}, status)


def _diff(_: Namespace, files: list[Path], progress: Progress) -> Outcome:
    found = difference(files[0], files[1], progress.share)
    return Outcome(differences(found), difference_data(found), OK if found.same else CLAIM_FAILED)


def _convert(given: Namespace, files: list[Path], progress: Progress) -> Outcome:
    found = convert(files[0], Path(given.to), progress.share, force=given.force)
    return Outcome(conversion(found), conversion_data(found))


def _clean(given: Namespace, files: list[Path], progress: Progress) -> Outcome:
    found = clean(files[0], given.keep, progress.share)
    return Outcome(cleaning(found), cleaning_data(found), CLAIM_FAILED if found.damaged else OK)


ACTIONS = {
    "inspect": Action(
        None,
        None,
        "from weft.console.report.checkpoints import contents\n"
        "from weft.train.checkpoints.examining import examine, files_of\n\n"
        "print(contents([examine(path) for path in files_of([Path(name) for name in {files}])]))",
        _inspect,
    ),
    "verify": Action(
        None,
        None,
        "from weft.console.report.checkpoints import verdicts\n"
        "from weft.train.checkpoints.examining import examine, files_of\n\n"
        "print(verdicts([examine(path) for path in files_of([Path(name) for name in {files}])]))",
        _verify,
    ),
    "diff": Action(
        2,
        None,
        "from weft.console.report.checkpoints import differences\n"
        "from weft.train.checkpoints.examining import difference\n\n"
        "print(differences(difference(Path({first}), Path({second}))))",
        _diff,
    ),
    "convert": Action(
        1,
        "to",
        "from weft.console.report.checkpoints import conversion\n"
        "from weft.train.checkpoints.converting import convert\n\n"
        "print(conversion(convert(Path({first}), Path({to}){force})))",
        _convert,
    ),
    "clean": Action(
        1,
        "keep",
        "from weft.console.report.checkpoints import cleaning\nfrom weft.train.checkpoints.converting import clean\n\n"
        "print(cleaning(clean(Path({first}), {keep})))",
        _clean,
    ),
}
