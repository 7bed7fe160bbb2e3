"""Write the tour's claims on this machine, and the newest measured ratios, into both READMEs."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.machine import ROOT, describe, short_name
from bench.plot import HEADINGS, draw, ratios_of

RESULTS = ROOT / "bench" / "results"
TOUR = RESULTS / "tour.json"
# By README: sentences around figures, and by claim of the tour the promise that it measures.
WORDS: dict[str, Any] = json.loads((ROOT / "bench" / "readme_words.json").read_text(encoding="utf-8"))


def measure() -> dict[str, Any]:
    """Make the stops of the tour that the promises need."""
    from weft.console.tour.tour import tour  # noqa: PLC0415 - drawing again needs none of it
    from weft.console.tour.visit import ALL_STOPS  # noqa: PLC0415 - as above

    stops = ["hybridize", "memory", "parallel", "overlap", "devices", "unequal", "checkpoint"]
    found = tour(only=[stop.name for stop in ALL_STOPS if stop.name in stops], say=print)
    claims = {claim.name: [claim.chapter, claim.here, claim.holds] for claim in found.claims}
    return {"machine": describe(torch.get_num_threads()), "name": short_name(), "claims": claims}


def table(told: dict[str, Any], name: str) -> str:
    """Give the table of promises in the language of a README."""
    words = WORDS[name]
    lines = [words["head"], "|---|---|---|"]
    for claim, shown in words["promises"].items():
        if claim not in told["claims"]:
            continue  # measured before there was the claim
        chapter, here, holds = told["claims"][claim]
        then, now = shown["chapter"].format(chapter=chapter), shown["here"].format(here=here)
        lines.append(f"| {shown['sentence']} | {then} | {f'**{now}**' if holds else f'{here} ✗'} |")
    machine = told["machine"]
    changed = words["changed"].format(**machine) if machine["changed_files"] else ""
    return "\n".join([*lines, "", words["measured"].format(**{**machine, "date": _day(machine)}, changed=changed)])


def ratios(results: dict[str, Any] | None, stem: str, name: str) -> str:
    """Give the picture of ratios with its sentence, or how to get one."""
    words = WORDS[name]
    if results is None:
        return str(words["none"])
    rows = [(row, found) for row in results["rows"] if row["group"] in HEADINGS and (found := ratios_of(row))]
    nearest = [min(found.values(), key=lambda shown: shown.median) for _, found in rows]
    # First is a row whose quartiles are: a median of 1.01 between 0.90 and 1.06 says nothing.
    behind = [row["title"] for (row, _), shown in zip(rows, nearest, strict=True) if shown.low <= 1]
    compiled = [found["torch.compile"].median for _, found in rows if "torch.compile" in found]
    sentence = words["ratios"].format(
        **{**results["machine"], "date": _day(results["machine"])},
        count=len(rows),
        best=_mean([shown.median for shown in nearest]),
        won=len(rows) - len(behind),
        behind=words["behind"].format(names="; ".join(behind)) if behind else "",
        noisy=sum(row["noisy"] is not None for row, _ in rows),
        compiled=words["compiled"].format(ratio=_mean(compiled)) if compiled else "",
        page=f"{stem}.md",
    )
    return f"{words['picture'].format(picture=f'{stem}.svg')}\n\n{sentence}"


def _day(machine: Mapping[str, Any]) -> str:
    return str(machine["date"]).partition("T")[0]


def filled(text: str, part: str, content: str) -> str:
    """Put content between the marks of a part."""
    pattern = re.compile(rf"(<!-- {part}: [^>]*-->\n).*?(<!-- /{part} -->)", re.DOTALL)
    return pattern.sub(lambda match: f"{match[1]}{content}\n{match[2]}", text)


def newest() -> Path | None:
    """Find the newest file of results."""
    files = [path for path in RESULTS.glob("*.json") if path != TOUR and "rows" in json.loads(path.read_text())]
    return max(files, key=lambda path: json.loads(path.read_text())["machine"]["date"], default=None)


def write() -> None:
    """Fill both READMEs from what lies in the folder of results."""
    path = newest()
    results = None if path is None else json.loads(path.read_text())
    stem = "" if path is None else path.with_suffix("").relative_to(ROOT).as_posix()
    told = json.loads(TOUR.read_text(encoding="utf-8"))
    for name in WORDS:
        text = (ROOT / name).read_text(encoding="utf-8")
        text = filled(text, "promises", table(told, name))
        (ROOT / name).write_text(filled(text, "ratios", ratios(results, stem, name)), encoding="utf-8")


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, draw and write."""
    parser = argparse.ArgumentParser(prog="bench.readme", description="Put measured figures into the READMEs.")
    parser.add_argument("--keep", action="store_true", help="write what was measured before, and measure nothing")
    if not parser.parse_args(arguments).keep:
        RESULTS.mkdir(exist_ok=True)
        TOUR.write_text(json.dumps(measure(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    path = newest()
    if path is not None:
        draw(path)
    write()
    print("README.md and README.zh-CN.md have the figures of this machine")


if __name__ == "__main__":
    main()
