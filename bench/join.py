"""Join files of results of one machine into one of all their rows, with its page and its picture."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.row import Row, row_of
from bench.workloads import WORKLOADS

SAME = ("processor", "cores", "threads")  # figures of other machines are not put side by side


def join(files: Sequence[Mapping[str, Any]]) -> tuple[list[Row], dict[str, Any]]:
    """Take each row from the file in which it was measured last, and name the commits that they are from."""
    ordered = sorted(files, key=lambda file: file["machine"]["date"])
    _refuse_strangers(ordered)
    origins: dict[str, Mapping[str, Any]] = {}
    rows: dict[str, Row] = {}
    for file in ordered:
        for row in file["rows"]:
            rows[row["workload"]] = row_of(row)
            origins[row["workload"]] = file["machine"]
    found = [rows[workload.name] for workload in WORKLOADS if workload.name in rows]
    return found, {**ordered[-1]["machine"], "commit": _commits(origins), "changed_files": _changed(origins)}


def _refuse_strangers(files: Sequence[Mapping[str, Any]]) -> None:
    machines = {tuple(file["machine"][name] for name in SAME) for file in files}
    if len(machines) > 1:
        raise SystemExit(f"these files are of different machines: {', '.join(map(str, sorted(machines)))}")


def _commits(origins: Mapping[str, Mapping[str, Any]]) -> str:
    """Name the commits that rows are from; a file that was joined itself names several."""
    return ", ".join(sorted({commit for machine in origins.values() for commit in machine["commit"].split(", ")}))


def _changed(origins: Mapping[str, Mapping[str, Any]]) -> int:
    return max(int(machine["changed_files"]) for machine in origins.values())


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the files that are named, and write and draw what they hold together."""
    parser = argparse.ArgumentParser(prog="bench.join", description="Put files of results of one machine together.")
    parser.add_argument("output", type=Path, help="JSON file to write, with a page and a picture beside it")
    parser.add_argument("files", nargs="+", type=Path, help="JSON files of results; the last measured row counts")
    given = parser.parse_args(arguments)
    rows, machine = join([json.loads(path.read_text(encoding="utf-8")) for path in given.files])
    report.write(rows, machine, given.output)
    print(*report.summary(rows), f"written: {given.output}, .md and .svg", sep="\n")


if __name__ == "__main__":
    main()
