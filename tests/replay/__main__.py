"""Record the texts of all subjects, or compare them with what was recorded.

`python -m tests.replay record` writes build/replay.json; after a change that is to change no program, `python -m
tests.replay compare` names every subject and stage whose text is another. `--texts FOLDER` writes the texts themselves,
so that those of two checkouts can be compared line by line; `--only PATTERN` takes some subjects.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tests.replay.recording import Texts, recording
from tests.replay.subjects import subjects

from weft.target import host_target

FILE = Path("build/replay.json")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("record", "compare"))
    parser.add_argument("--file", type=Path, default=FILE, help=f"where the digests are ({FILE})")
    parser.add_argument("--only", default="*", help="subjects whose name matches this pattern")
    parser.add_argument("--texts", type=Path, help="a folder for the texts themselves")
    return parser.parse_args(arguments)


def texts_of(pattern: str) -> dict[str, list[Texts]]:
    """Compile every subject; gives what was compiled, in the order of its graphs' texts."""
    found: dict[str, list[Texts]] = {}
    for name, run in subjects():
        if not fnmatch.fnmatch(name, pattern):
            continue
        into: list[Texts] = []
        with recording(into):
            run()
        # Two threads may compile parts of one subject: which is first does not matter.
        found[name] = sorted(into, key=lambda texts: (texts.graph, texts.plan))
        print(f"{name}: {len(into)}", file=sys.stderr, flush=True)
    return found


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Name each subject that is not as before, with the stages that differ."""
    lines = [f"{name}: is no longer compiled" for name in before if name not in now]
    for name, digests in now.items():
        earlier = before.get(name)
        if earlier is None:
            lines.append(f"{name}: is new")
        elif len(earlier) != len(digests):
            lines.append(f"{name}: {len(earlier)} graphs became {len(digests)}")
        else:
            pairs = zip(earlier, digests, strict=True)
            stages = {stage for old, new in pairs for stage in new if old.get(stage) != new[stage]}
            if stages:
                lines.append(f"{name}: {', '.join(sorted(stages))}")
    return lines


def write_texts(folder: Path, found: dict[str, list[Texts]]) -> None:
    """Write a file for each stage of each graph."""
    for name, graphs in found.items():
        for number, texts in enumerate(graphs):
            for stage in Texts.__slots__:
                path = folder / f"{name.replace(' ', '_')}.{number}.{stage}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(getattr(texts, stage), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Record or compare."""
    given = parse(arguments)
    torch.set_num_threads(1)
    found = texts_of(given.only)
    if given.texts is not None:
        write_texts(given.texts, found)
    digests = {name: [texts.digests() for texts in graphs] for name, graphs in found.items()}
    target = str(host_target())
    if given.command == "record":
        given.file.parent.mkdir(parents=True, exist_ok=True)
        given.file.write_text(json.dumps({"target": target, "subjects": digests}, indent=1) + "\n", encoding="utf-8")
        print(f"recorded {len(digests)} subjects, {sum(map(len, digests.values()))} graphs: {given.file}")
        return 0
    recorded = json.loads(given.file.read_text(encoding="utf-8"))
    if recorded["target"] != target:
        print(f"recorded for another processor: {recorded['target']}, this is {target}")
        return 2
    before = {name: value for name, value in recorded["subjects"].items() if fnmatch.fnmatch(name, given.only)}
    lines = differences(before, digests)
    print(*lines, f"{len(digests)} subjects compared, {len(lines)} differ", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
