"""Records -> docs/conformance.md, the same text on every machine."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import torch
from tests.conformance.cases import Record, Section, Status

HEADS = {
    "hybridize": """# Conformance

What `make conformance` writes: every sample of PyTorch's own operator and module databases, and random programs, run
twice through `weft.hybridize` on fresh inputs (the first call traces, the second runs the program) and compared with
eager PyTorch after each call. All of it is run with programs of PyTorch's operators (library), and what computes
numbers again with programs in machine code (native).
""",
    "lazy": """# Conformance of lazy code

What `make conformance` writes: samples of PyTorch's own operator database, run under `weft.lazy()` after some rounds on
copies, in which operators are learned and segments compiled, and compared with eager PyTorch. All of it is run with
segments of PyTorch's operators (library), and again with segments in machine code (native).
""",
}
MEANING = """
Equal means: values bit by bit (any NaN equals any other), dtype, shape, stride, device, `requires_grad`, the structure
of the result, what it aliases, what happened to every argument, parameter and buffer, the random generator's state
afterwards, gradients, and the type of the exception where eager raises one. "Within bound" are values, mutated
arguments and states whose error against the same computation in float64 is at most twice eager's plus a few units in
the last place (in library calls too: `matmul` of some shapes folds its operands otherwise under a tracer), where
eager's error is the largest of it on the sample and on 32 copies whose arguments are moved by their last bits, since
eager may be right by chance; values for
which float64 has no answer of its own, such as float64 gradients, random graphs and programs, where they differ by the
rounding of a sum in another order; and `linalg.lstsq`, whose last bits eager itself does not repeat. Where a random
program differentiates `hardswish` at NaN, eager's vectors give NaN and its single numbers the gradient that came in:
NaN is right too. Random programs and in-place methods in library calls have no bound: they are equal bit by bit.
Unsupported means that Weft raised `UnsupportedError`: no answer, never a wrong one. Memory that eager leaves
uninitialised (`torch.empty` and its kin) is compared in everything but its values.

The section over dtypes has one small sample of each operator, with its first tensor cast to each of 12 dtypes and its
second to each of 12: most of these calls raise, or give a dtype that only eager's own rules tell. They are made once.
"""


def passed(records: Iterable[Record], sections: Iterable[Section]) -> bool:
    """Say whether nothing is wrong, nothing crashed, and no section has too many unsupported samples."""
    limits = {section.name: section.most_unsupported for section in sections}
    return all(
        not any(counts[status] for status in Status if status.failed)
        and counts[Status.UNSUPPORTED] <= limits[name] * counts.total()
        for (_codegen, name), counts in count(records).items()
    )


def count(records: Iterable[Record]) -> dict[tuple[str, str], Counter[Status]]:
    """Count the records of each section by status, for each way to compile it."""
    totals: dict[tuple[str, str], Counter[Status]] = defaultdict(Counter)
    for record in records:
        totals[record.codegen, record.section][record.status] += 1
    return totals


def table(records: Sequence[Record], sections: Sequence[Section]) -> str:
    """Write the counts of the sections that were run as a table."""
    totals = count(records)
    lines = [
        "| section | code | what | entries | samples | " + " | ".join(status.value for status in Status) + " |",
        "|---|---|---|---" + "|---" * (len(Status) + 1) + "|",
    ]
    for codegen in sorted({codegen for codegen, _name in totals}):
        for section in sections:
            found = totals.get((codegen, section.name))
            if found is not None:
                entries = len({r.entry for r in records if (r.codegen, r.section) == (codegen, section.name)})
                counts = " | ".join(f"{found[status]:,}" for status in Status)
                named = f"| {section.name} | {codegen} | {section.title}"
                lines.append(f"{named} | {entries:,} | {found.total():,} | {counts} |")
    return "\n".join(lines)


def listing(records: Sequence[Record], status: Status) -> str:
    """List the records of a status by section, reason and entry, with how many of the entry's samples it is."""
    chosen = [record for record in records if record.status is status]
    if not chosen:
        return "None.\n"
    of_entry = Counter((titled(record), record.entry) for record in records)
    groups: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for record in chosen:
        groups[titled(record), record.detail.splitlines()[0] if record.detail else ""][record.entry] += 1
    lines: list[str] = []
    for section in dict.fromkeys(section for section, _ in sorted(groups)):
        lines += ["", f"### {section}", ""]
        ranked = sorted(((r, e) for (s, r), e in groups.items() if s == section), key=lambda g: (-g[1].total(), g[0]))
        for why, entries in ranked:
            names = ", ".join(f"`{name}` {n} of {of_entry[section, name]}" for name, n in sorted(entries.items()))
            lines.append(f"- {why}: {names}")
    return "\n".join(lines).strip() + "\n"


def titled(record: Record) -> str:
    """Name the section of a record, with the way to compile where it is not library calls."""
    return record.section if record.codegen == "library" else f"{record.section}, {record.codegen}"


def bounded(records: Sequence[Record]) -> str:
    """List which entries differ from eager in the last bits though they run as library calls, with how many samples."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        if record.status is Status.BOUNDED and record.codegen == "library":
            counts[record.section][record.entry] += 1
    lines = (
        f"- {section}: " + ", ".join(f"`{entry}` {number}" for entry, number in sorted(entries.items()))
        for section, entries in sorted(counts.items())
    )
    return "\n".join(lines) + "\n"


def notes(records: Sequence[Record]) -> str:
    """List what is allowed but worth knowing, by section."""
    counts = Counter((titled(record), note) for record in records for note in record.notes)
    ranked = sorted(counts.items(), key=lambda row: (row[0][0], -row[1], row[0][1]))
    return "".join(f"- {section}: {number:,} with {note}\n" for (section, note), number in ranked)


def page(records: Sequence[Record], sections: Sequence[Section], contestant: str = "hybridize") -> str:
    """Write the whole page."""
    records = sorted(records, key=lambda record: (record.codegen, record.section, record.entry, record.index))
    version = torch.__version__.split("+")[0]
    parts = [
        HEADS.get(contestant, f"# Conformance of {contestant}\n") + MEANING,
        f"PyTorch {version}.\n",
        table(records, sections),
        "",
    ]
    parts += ["## Unsupported samples, by section, reason and operator\n", listing(records, Status.UNSUPPORTED)]
    if any(record.status is Status.BOUNDED and record.codegen == "library" for record in records):
        parts += ["## Within bound as library calls, by section and entry\n", bounded(records)]
    for status in (Status.WRONG, Status.CRASH):
        if any(record.status is status for record in records):
            parts += [f"## {status.value.capitalize()}\n", listing(records, status)]
    if remarks := notes(records):
        parts += ["## Notes\n", remarks]
    return "\n".join(parts)
