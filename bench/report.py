"""Write rows as text for the terminal, a Markdown page, a JSON file and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import plot
from bench.contestants import CONTESTANTS
from bench.row import COMPILED, ONE_LANE, WHOLE, Row, means
from bench.workloads import COMPILE, FAMILIES, GROUPS, NAMED, TRAINING
from weft.console.bench.harness import Spread

TITLES = {
    NAMED: "Named workloads, inference",
    FAMILIES: "Further public families, inference",
    TRAINING: "Training steps",
    COMPILE: "Compile time by graph size",
}
MEAN_BARS = {(NAMED, None): 1.3, (NAMED, COMPILED): 3.0, (FAMILIES, None): 1.2}


def lines_of(row: Row, machine: Mapping[str, Any]) -> list[str]:
    """Say one row on the terminal."""
    lines = [
        f"  {name:<18} {microseconds(entry.time):>30}  first {entry.first_call:.3f} s{_cached(entry)}  {entry.setting}"
        for name, entry in sorted(row.entries.items(), key=lambda item: item[1].time.median)
    ]
    if row.ratio is not None:
        bar = f", bar {row.workload.bar:g}" if row.workload.bar is not None else ""
        lines.append(f"  {row.best_peer} / {row.ours}: {times(row.ratio)}{bar}")
    if row.lanes is not None:
        lines.append(f"  one lane / all lanes: {times(row.lanes)}")
    share = _share(row, machine)
    if share != "-":
        lines.append(f"  of peak: {share} of {machine['peak_gflops']:.3g} GFLOP/s, in products and convolutions")
    lines += [f"  NOISY: {row.noisy}"] if row.noisy else []
    lines += [] if row.settled else ["  not settled within the time limit"]
    return lines + [f"  BELOW: {failure}" for failure in row.failures()]


def _share(row: Row, machine: Mapping[str, Any]) -> str:
    share = row.share_of_peak(row.ours or ONE_LANE, machine["peak_gflops"])
    return f"{share:.0%}" if share is not None else "-"


def _cached(entry: Any) -> str:
    return f" (again {entry.cached_first_call:.3f} s)" if entry.cached_first_call is not None else ""


def microseconds(shown: Spread) -> str:
    """Write a time with its quartiles in the unit that reads best."""
    scale, unit = (1e3, "ms") if shown.median >= 1e-3 else (1e6, "us")
    return f"{shown.median * scale:.3g} {unit} ({shown.low * scale:.3g} to {shown.high * scale:.3g})"


def times(shown: Spread | None) -> str:
    """Write a ratio with its quartiles."""
    return f"{shown.median:.2f} ({shown.low:.2f} to {shown.high:.2f})" if shown else "-"


def summary(rows: Sequence[Row]) -> list[str]:
    """Give the geometric means, and how many rows are below a bar or noisy."""
    lines = []
    for group in (NAMED, FAMILIES, TRAINING):
        for peer in (None, COMPILED):
            mean = means(rows, group, peer)
            if mean is not None:
                bar = MEAN_BARS.get((group, peer))
                wanted = f", bar {bar:g}" if bar else ""
                lines.append(f"{group}: geometric mean against {peer or 'the best peer'} {mean:.2f}{wanted}")
    lines += [line for name in (WHOLE, COMPILED) for line in _growth(rows, name)]
    below = [row.workload.name for row in rows if row.failures()]
    noisy = [row.workload.name for row in rows if row.noisy]
    lines.append(f"rows below a bar: {', '.join(below) or 'none'}")
    lines.append(f"noisy rows: {', '.join(noisy) or 'none'}")
    return lines


def _growth(rows: Sequence[Row], name: str) -> list[str]:
    """Say what compiling costs an operator at each size of graph: equal figures are linear growth."""
    found = [
        f"{row.entries[name].first_call / row.workload.size * 1e3:.2f} ms of {row.workload.size:,}"
        for row in rows
        if row.workload.group == COMPILE and name in row.entries
    ]
    return [f"compile: {name} takes an operator {', '.join(found)}"] if found else []


def markdown(rows: Sequence[Row], machine: Mapping[str, Any]) -> str:
    """Write the page: the machine, a table of times and one of ratios a group, and why entries are missing."""
    lines = ["# Measured times", "", *machine_lines(machine), "", *(f"- {line}" for line in summary(rows))]
    for group in GROUPS:
        found = [row for row in rows if row.workload.group == group]
        if found:
            lines += ["", f"## {TITLES[group]}", "", *_time_table(found), "", *_ratio_table(found, machine)]
            lines += ["", *_compile_table(found)]
    lines += ["", "## Missing entries, settings and remarks", ""]
    for row in rows:
        lines += [f"- {row.workload.name}: {line}" for line in _remarks(row)]
    return "\n".join([*lines, ""])


def machine_lines(machine: Mapping[str, Any]) -> list[str]:
    """Say what was measured on, and with what."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    changed = f", {machine['changed_files']} files changed since" if machine["changed_files"] else ""
    used = f"{machine['cores']} cores, {machine['threads']} threads used, {machine['system']}"
    return [
        f"{machine['processor']}, {used}; {machine['peak_gflops']:g} GFLOP/s measured on a large product.",
        "",
        f"Commit {machine['commit']}{changed}, {machine['date']}, Python {machine['python']}, {versions}.",
    ]


def _table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *body)]


def _time_table(rows: Sequence[Row]) -> list[str]:
    names = [entry.name for entry in CONTESTANTS if any(entry.name in row.entries for row in rows)]
    body = [[row.workload.title, *(_cell(row, name) for name in names)] for row in rows]
    return _table(["milliseconds", *names], body)


def _cell(row: Row, name: str) -> str:
    entry = row.entries.get(name)
    if entry is None:
        return "-"
    mark = "" if entry.verdict == "right" else "*"
    text = f"{entry.time.median * 1e3:.4g}{mark}"
    return f"**{text}**" if name in (row.ours, row.best_peer) else text


def _ratio_table(rows: Sequence[Row], machine: Mapping[str, Any]) -> list[str]:
    header = [
        "workload",
        "best peer",
        "best peer / Weft",
        "bar",
        "torch.compile / Weft",
        "one lane / all",
        "of peak",
        "",
    ]
    body = [
        [
            row.workload.title,
            row.best_peer or "-",
            times(row.ratio),
            f"{row.workload.bar:g}" if row.workload.bar is not None else "-",
            times(row.ratio_to(COMPILED)),
            times(row.lanes),
            _share(row, machine),
            "; ".join([*row.failures(), *([f"noisy: {row.noisy}"] if row.noisy else [])]),
        ]
        for row in rows
    ]
    return _table(header, body)


def _compile_table(rows: Sequence[Row]) -> list[str]:
    names = [entry.name for entry in CONTESTANTS if any(entry.name in row.entries for row in rows)]
    body = [[row.workload.title, *(_first_call(row, name) for name in names)] for row in rows]
    return _table(["first call, seconds (again, from caches)", *names], body)


def _first_call(row: Row, name: str) -> str:
    entry = row.entries.get(name)
    return "-" if entry is None else f"{entry.first_call:.3g}{_cached(entry).replace('again ', '').replace(' s)', ')')}"


def _remarks(row: Row) -> list[str]:
    lines = [f"{name} skipped: {reason}" for name, reason in row.skipped.items()]
    for name, entry in row.entries.items():
        lines.append(f"{name} ran with {entry.setting}, error {entry.error:.2g} of {entry.allowed:.2g}")
        lines += [] if entry.compiles else [f"{name} compiled nothing: it ran as in eager"]
        lines += [f"{name} could not run {remark}" for remark in entry.remarks]
    return lines


def write(rows: Sequence[Row], machine: Mapping[str, Any], path: Path) -> None:
    """Write the JSON file, a line a workload, with the page and the picture beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"machine": dict(machine), "summary": summary(rows), "rows": [row.as_dict() for row in rows]}
    path.write_text(json_text(data), encoding="utf-8")
    path.with_suffix(".md").write_text(markdown(rows, machine), encoding="utf-8")
    plot.draw(path)


def json_text(data: Mapping[str, Any]) -> str:
    """Write data with a line for each entry, and for each row of a list: short to store, and readable in a diff."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_entry(value)}" for key, value in data.items()) + "\n}\n"


def _entry(value: Any) -> str:
    if isinstance(value, list):
        return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)
