"""What was found of checkpoint files -> documents and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.counted import counted
from weft.document import Block, Code, Document, Heading, Paragraph, Span, Table, Tone, facts
from weft.train.checkpoints.converting import Cleaned, Converted
from weft.train.checkpoints.examining import DAMAGED, SOUND, UNCHECKED, UNREAD, Difference, Examined, summary

MOST_ROWS = 200
MOST_CHANGED = 20
TONES: dict[str, Tone] = {SOUND: "good", UNCHECKED: "strong", UNREAD: "bad", DAMAGED: "bad"}


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
    rows = tuple((str(each.path), Span(each.state, TONES[each.state]), each.problem or "") for each in files)
    counts = {state: sum(each.state == state for each in files) for state in TONES}
    total = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    told = Paragraph(f"{counted(len(files), 'file')}: {total}", "strong")
    return Document((Table(("file", "state", ""), rows), told))


def verdict_data(found: Examined) -> dict[str, Any]:
    """Give the verdict on a file as data."""
    state = {"path": str(found.path), "kind": found.kind, "bytes": found.size, "state": found.state}
    return state | ({"problem": found.problem} if found.problem else {})


def differences(found: Difference) -> Document:
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


def difference_data(found: Difference) -> dict[str, Any]:
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
    named = [(title, Span(", ".join(path.name for path in paths), tone)) for title, paths, tone in _named(rows)]
    return Document(
        (facts(named) if named else Paragraph("there is no checkpoint of weft.Checkpoints in it; nothing was removed"),)
    )


def cleaning_data(found: Cleaned) -> dict[str, Any]:
    """Give what went and what stays as data."""
    return {name: [str(path) for path in getattr(found, name)] for name in ("orphans", "removed", "kept", "damaged")}


def _named(rows: Any) -> list[tuple[str, Any, Tone]]:
    return [row for row in rows if row[1]]


def _content_blocks(found: Examined) -> list[Block]:
    state = Span(found.state, TONES[found.state])
    rows = [("file", Span(f"{found.kind}, {found.size:,} bytes")), ("state", state)]
    if found.content is None:
        return [Heading(str(found.path)), facts([*rows, ("why", found.problem or "")])]
    content = found.content
    tensors, elements = summary(content.tensors)
    rows.append(("model", Span(f"{counted(tensors, 'tensor')}, {elements:,} number{'' if elements == 1 else 's'}")))
    if content.parts:
        rows.append(("besides", Span(", ".join(sorted(content.parts)))))
    if content.random is not None:
        rows.append(("random states", Span("of Python, NumPy and PyTorch")))
    if content.made_by:
        rows.append(("made by", Span(", ".join(f"{name} {text}" for name, text in content.made_by.items()))))
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
