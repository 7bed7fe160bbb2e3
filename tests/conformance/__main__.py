"""The command line of the conformance run: sections and filters -> counts, a report and an exit code."""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from tests.conformance.cases import Record, Section, Status
from tests.conformance.contestants import CONTESTANTS
from tests.conformance.report import listing, notes, page, passed, table
from tests.conformance.sections import SECTIONS
from tests.conformance.sweep import Options, Seeded, Sweep, Unit
from tests.conformance.threads import stress_record

from weft.config import overrides

REPORT = Path("docs/conformance.md")
THREAD_CALLS = 100_000
THREADS = Section(
    "threads",
    f"{THREAD_CALLS:,} calls of one module from 8 threads",
    list,
    lambda _entry: [],
    codegens=("library", "native"),
)
CODEGENS = {"library": "programs of PyTorch's operators", "native": "programs in machine code"}
PROGRESS_SECONDS = 20.0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    names = [*SECTIONS, THREADS.name, "all"]
    parser.add_argument("sections", nargs="*", choices=names, default="all", help="sections; default: all")
    parser.add_argument("--contestant", choices=CONTESTANTS, default="hybridize", help="what is compared with eager")
    parser.add_argument("--op", action="append", help="only this entry, by its full name; may be repeated")
    parser.add_argument("--sample", type=int, help="only the sample of this number")
    parser.add_argument("--limit", type=int, help="at most so many samples of each entry")
    parser.add_argument("--random", type=int, help="so many samples of each entry, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of --random")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th entry, from the i-th on")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    for codegen, what in CODEGENS.items():
        parser.add_argument(f"--{codegen}", action="append_const", dest="codegens", const=codegen, help=f"only {what}")
    parser.add_argument("--verbose", action="store_true", help="print the traceback of every failure")
    parser.add_argument("--records", type=Path, help="add every record there, one JSON object a line")
    parser.add_argument("--report", type=Path, help=f"write the page there; a whole run writes {REPORT} anyway")
    return parser.parse_args(arguments)


def codegens_of(options: argparse.Namespace, section: Section) -> Sequence[str]:
    """Say how to compile a section's programs: as it says itself, or as the command line does where it is named."""
    if options.codegens is None:
        return section.codegens
    return [name for name in CODEGENS if name in options.codegens]


def units(options: argparse.Namespace, wanted: Sequence[str]) -> list[Unit]:
    """List what to run: the shard's entries of the wanted sections, all in library calls first."""
    shard, shards = (int(part) for part in options.shard.split("/"))
    every = [
        Unit(name, entry, codegen=codegen)
        for codegen in CODEGENS
        for name in wanted
        if name in SECTIONS and codegen in codegens_of(options, SECTIONS[name])
        for entry in SECTIONS[name].entries()
        if options.op is None or entry in options.op
    ]
    return every[shard::shards]


def run(options: argparse.Namespace, wanted: Sequence[str]) -> list[Record]:
    """Run the sections and print failures as they come."""
    pick = None if options.random is None else Seeded(options.random, options.seed)
    chosen = Options(options.contestant, options.limit, options.sample, pick)
    sweep = Sweep(units(options, wanted), chosen, options.jobs)
    records: list[Record] = []
    shown = time.monotonic()
    for record in sweep.records():
        records.append(record)
        if options.records is not None:
            write_record(record, options.records)
        if record.status.failed:
            print(f"{record.status.value}: {record.name}\n  {record.detail}", flush=True)
            if options.verbose:
                print(record.trace, flush=True)
        if time.monotonic() - shown > PROGRESS_SECONDS:
            shown = time.monotonic()
            print(
                f"{len(records):,} samples, now {record.section} {record.codegen} {record.entry}",
                file=sys.stderr,
                flush=True,
            )
    if THREADS.name in wanted and options.op is None:
        for codegen in codegens_of(options, THREADS):
            with overrides(codegen=codegen, whole="on"):
                records.append(stress_record(CONTESTANTS[options.contestant], THREAD_CALLS))
            if options.records is not None:
                write_record(records[-1], options.records)
    return records


def write_record(record: Record, path: Path) -> None:
    """Add a record for other tools to read: at once, so that a run that is ended leaves what it found."""
    row = dataclasses.asdict(record) | {"status": record.status.value}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def main() -> int:
    """Run, print the table, write the report, and fail if anything is wrong."""
    options = parse()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the workers: they fill the cores
    torch.set_num_threads(1)
    known = [*SECTIONS, THREADS.name]
    wanted = known if "all" in options.sections else [name for name in known if name in options.sections]
    records = run(options, wanted)
    every = [*SECTIONS.values(), THREADS]
    print(table(records, every))
    print("\nunsupported\n" + listing(records, Status.UNSUPPORTED))
    print("notes\n" + notes(records))
    filters = (options.op, options.sample, options.limit, options.codegens, options.shard, options.random)
    whole = wanted == known and filters == (None, None, None, None, "0/1", None)
    target = options.report or (REPORT if whole and options.contestant == "hybridize" else None)
    if target is not None:
        target.write_text(page(records, every, options.contestant), encoding="utf-8")
        print(f"wrote {target}")
    if not records:
        print("nothing matched: see --help for the sections, and the report for the names of entries")
    return 0 if records and passed(records, every) else 1


if __name__ == "__main__":
    sys.exit(main())
