"""The command line: an area, how many mutants and a seed -> what was killed, and what survived."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import llvmlite.binding  # noqa: F401 - what every run of the tests imports: here it is imported once
import numpy as np  # noqa: F401
import torch  # noqa: F401
from tests.mutants.areas import AREAS
from tests.mutants.judge import Judge, Verdict
from tests.mutants.known import known_equivalents
from tests.mutants.operators import Mutant, is_worth_judging, mutants_of
from tests.mutants.page import PAGE, row, write_row

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "mutants"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("area", choices=AREAS)
    parser.add_argument("number", type=int, nargs="?", default=30, help="how many mutants")
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--file", action="append", help="only mutants of sources whose path contains this")
    parser.add_argument("--record", action="store_true", help=f"put the result into {PAGE}")
    parser.add_argument("--list", action="store_true", help="print the mutants of this seed, and judge none")
    return parser.parse_args(arguments)


def sample(root: Path, paths: Sequence[str], number: int, seed: int) -> list[Mutant]:
    """Draw mutants, each place in the code at most once; those known to change nothing are not drawn."""
    everything = [one for path in paths for one in mutants_of(path, (root / path).read_bytes())]
    random.Random(seed).shuffle(everything)
    known = known_equivalents()
    chosen: list[Mutant] = []
    for one in everything:
        source = (root / one.path).read_bytes()
        taken = any(one.path == other.path and one.start < other.end and other.start < one.end for other in chosen)
        if taken or (one.path, one.difference(source)) in known or not is_worth_judging(one, source):
            continue
        chosen.append(one)
        if len(chosen) == number:
            break
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge a sample; the exit code says whether at least nine of ten were killed."""
    options = parse(arguments)
    judge = Judge(ROOT, AREAS[options.area], KEPT)
    try:
        paths = [path for path in judge.sources() if not options.file or any(one in path for one in options.file)]
        mutants = sample(judge.copy, paths, options.number, options.seed)
        if options.list:
            for one in mutants:
                print(f"{one.path}:{one.first_line} {one.function} ({one.kind})")
                print(one.difference((judge.copy / one.path).read_bytes()))
            return 0
        judge.import_libraries()
        judge.learn(lambda text: print(text, flush=True))
        verdicts = [_judged(judge, one, number) for number, one in enumerate(mutants)]
    finally:
        judge.close()
    survivors = [one for one in verdicts if one.killed_by is None]
    text = "\n".join(f"{one.name}, {one.tests} tests\n{one.difference}\n" for one in survivors)
    KEPT.mkdir(parents=True, exist_ok=True)
    report = KEPT / f"{options.area}-{options.seed}.txt"
    report.write_text(text, encoding="utf-8")
    print(f"\n{text}\n{row(options.area, options.seed, verdicts)}\nsurvivors: {report}")
    if options.record:
        write_row(ROOT / PAGE, options.area, options.seed, verdicts)
    return 0 if len(survivors) * 10 <= len(verdicts) else 1


def _judged(judge: Judge, mutant: Mutant, number: int) -> Verdict:
    start = time.monotonic()
    found = judge.judge(mutant)
    what = "SURVIVED" if found.killed_by is None else f"killed by {found.killed_by}"
    print(f"{number + 1} {found.name}: {what}, {time.monotonic() - start:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
