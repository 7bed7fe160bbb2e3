"""The command line: choose workloads and contestants, measure them one after the other, print and write the results."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench import contestants, machine, report, workloads
from bench.measure import Options, measure
from bench.row import Row
from weft.console.bench.harness import QUICK, TurnLimits

RESULTS = Path(__file__).resolve().parent / "results"
OTHER_RESULTS = machine.ROOT / "build" / "bench"  # of parts, and quick ones: not to be committed by mistake


def parser() -> argparse.ArgumentParser:
    """Describe the options."""
    made = argparse.ArgumentParser(prog="bench", description="Weft against its peers, on this machine.")
    made.add_argument("--workload", action="append", default=[], help="a name, a pattern or a group; may be repeated")
    made.add_argument("--contestant", action="append", default=[], help="a name; may be repeated")
    made.add_argument("--threads", type=int, default=2, help="threads that each contestant may use (2)")
    made.add_argument("--seconds", type=float, help="most seconds of timing a workload (30)")
    made.add_argument("--patience", type=float, help="most seconds to wait for a contestant's first answer (600)")
    made.add_argument("--quick", action="store_true", help="show that everything runs; the times mean little")
    made.add_argument("--output", type=Path, help="folder for the results (bench/results; of a part build/bench)")
    made.add_argument("--list", action="store_true", help="list workloads and contestants")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was chosen; the result is 1 where Weft gave a wrong answer."""
    given = parser().parse_args(arguments)
    chosen = workloads.choose(given.workload)
    rivals = contestants.choose(given.contestant)
    if given.list:
        _list(chosen, rivals)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all processes are ended
    about = machine.describe(given.threads)
    path = _path(given)
    rows: list[Row] = []
    print(*report.machine_lines(about), sep="\n")
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        options = _options(given, Path(folder))
        for workload in chosen:
            print(f"\n{workload.name}: {workload.title}", flush=True)
            started = time.monotonic()
            rows.append(measure(workload, rivals, options, _say))
            took = f"  took {time.monotonic() - started:.0f} s"
            print(*report.lines_of(rows[-1], about), took, sep="\n", flush=True)
            report.write(rows, about, path)  # after each row: an interrupted run leaves what it found
    print("", *report.summary(rows), f"written: {path}, .md and .svg", sep="\n")
    return int(any(_gave_wrong_answer(row) for row in rows))


def _gave_wrong_answer(row: Row) -> bool:
    return any(" is wrong" in failure or " is less exact" in failure for failure in row.failures())


def _say(line: str) -> None:
    print(line, flush=True)


def _options(given: argparse.Namespace, folder: Path) -> Options:
    limits = QUICK if given.quick else TurnLimits()
    if given.seconds is not None:
        limits = replace(limits, seconds=given.seconds)
    patience = given.patience or (60.0 if given.quick else 600.0)
    return Options(given.threads, limits, patience, quick=given.quick, folder=folder)


def _path(given: argparse.Namespace) -> Path:
    is_whole = not (given.quick or given.workload or given.contestant)
    folder = given.output or (RESULTS if is_whole else OTHER_RESULTS)
    part = "" if not given.workload and not given.contestant else "-part"
    return Path(folder) / f"{machine.short_name()}{part}.json"


def _list(chosen: Sequence[workloads.Workload], rivals: Sequence[contestants.Contestant]) -> None:
    for workload in chosen:
        bar = f"bar {workload.bar:g}" if workload.bar is not None else ""
        print(f"{workload.name:<16} {workload.group:<9} {bar:<9} {workload.title}")
    for contestant in rivals:
        print(f"{contestant.name:<18} {contestant.missing() or ', '.join(s.label for s in contestant.settings)}")


if __name__ == "__main__":
    raise SystemExit(main())
