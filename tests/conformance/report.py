"""Records -> docs/conformance.md, the same text on every machine."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import torch
from tests.conformance.cases import Record, Section, Status

HEAD = """# Conformance

What `make conformance` writes: every sample of PyTorch's own operator and module databases, and random programs, run
twice through `weft.hybridize` on fresh inputs (the first call traces, the second runs the program) and compared with
eager PyTorch after each call.

Equal means: values bit by bit (any NaN equals any other), dtype, shape, stride, device, `requires_grad`, the structure
of the result, what it aliases, what happened to every argument, parameter and buffer, the random generator's state
afterwards, gradients, and the type of the exception where eager raises one. "Within bound" are gradients that differ by
the rounding of a float64 sum in another order, and `linalg.lstsq`, whose last bits eager itself does not repeat.
Unsupported means that Weft raised `UnsupportedError`: no answer, never a wrong one. Memory that eager leaves
uninitialised (`torch.empty` and its kin) is compared in everything but its values.
"""


def passed(records: Iterable[Record], sections: Iterable[Section]) -> bool:
    """Say whether nothing is wrong, nothing crashed, and no section has too many unsupported samples."""
    limits = {section.name: section.most_unsupported for section in sections}
    return all(
        not any(counts[status] for status in Status if status.failed)
        and counts[Status.UNSUPPORTED] <= limits[name] * counts.total()
        for name, counts in count(records).items()
    )


def count(records: Iterable[Record]) -> dict[str, Counter[Status]]:
    """Count the records of each section by status."""
    totals: dict[str, Counter[Status]] = defaultdict(Counter)
    for record in records:
        totals[record.section][record.status] += 1
    return totals


def table(records: Sequence[Record], sections: Sequence[Section]) -> str:
    """Write the counts of the sections that were run as a table."""
    totals = count(records)
    entries = {section.name: {r.entry for r in records if r.section == section.name} for section in sections}
    lines = [
        "| section | what | entries | samples | " + " | ".join(status.value for status in Status) + " |",
        "|---|---|---" + "|---" * (len(Status) + 1) + "|",
    ]
    lines += [
        f"| {section.name} | {section.title} | {len(entries[section.name]):,} | {totals[section.name].total():,} | "
        + " | ".join(f"{totals[section.name][status]:,}" for status in Status)
        + " |"
        for section in sections
        if section.name in totals
    ]
    return "\n".join(lines)


def listing(records: Sequence[Record], status: Status) -> str:
    """List the records of a status by section, reason and entry, with how many of the entry's samples it is."""
    chosen = [record for record in records if record.status is status]
    if not chosen:
        return "None.\n"
    of_entry = Counter((record.section, record.entry) for record in records)
    groups: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for record in chosen:
        groups[record.section, record.detail.splitlines()[0] if record.detail else ""][record.entry] += 1
    lines: list[str] = []
    for section in dict.fromkeys(section for section, _ in sorted(groups)):
        lines += ["", f"### {section}", ""]
        ranked = sorted(((r, e) for (s, r), e in groups.items() if s == section), key=lambda g: (-g[1].total(), g[0]))
        for why, entries in ranked:
            names = ", ".join(f"`{name}` {n} of {of_entry[section, name]}" for name, n in sorted(entries.items()))
            lines.append(f"- {why}: {names}")
    return "\n".join(lines).strip() + "\n"


def notes(records: Sequence[Record]) -> str:
    """List what is allowed but worth knowing, by section."""
    counts = Counter((record.section, note) for record in records for note in record.notes)
    return "".join(f"- {section}: {number:,} with {note}\n" for (section, note), number in sorted(counts.items()))


def page(records: Sequence[Record], sections: Sequence[Section]) -> str:
    """Write the whole page."""
    records = sorted(records, key=lambda record: (record.section, record.entry, record.index))
    version = torch.__version__.split("+")[0]
    parts = [HEAD, f"PyTorch {version}.\n", table(records, sections), ""]
    parts += ["## Unsupported samples, by section, reason and operator\n", listing(records, Status.UNSUPPORTED)]
    for status in (Status.WRONG, Status.CRASH):
        if any(record.status is status for record in records):
            parts += [f"## {status.value.capitalize()}\n", listing(records, status)]
    if remarks := notes(records):
        parts += ["## Notes\n", remarks]
    return "\n".join(parts)
