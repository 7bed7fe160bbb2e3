"""The READMEs hold the figures that were measured, and nothing else."""

from __future__ import annotations

import json

import pytest
from bench.readme import ROOT, TOUR, WORDS, filled, newest, ratios, table

from weft.console.tour.stop import read_texts

CLAIMS = {claim: ["1 s", "0.5 s", True] for claim in WORDS["README.md"]["promises"]}
MACHINE = {
    "processor": "A processor",
    "cores": 2,
    "threads": 2,
    "commit": "abc",
    "changed_files": 0,
    "date": "2026-02-03T04",
}


def row(eager: float, compiled: float, ours: float) -> dict:
    times = {"eager": eager, "torch.compile": compiled, "weft": ours}
    entries = {name: {"rounds": [time, 9 * time], "verdict": "right"} for name, time in times.items()}
    return {"contestants": entries, "ours": "weft", "group": "named", "noisy": None, "title": f"a row of {eager:g}"}


@pytest.mark.parametrize("name", WORDS)
def test_a_readme_has_the_figures_of_the_files_of_results(name: str) -> None:
    path = newest()
    text = (ROOT / name).read_text(encoding="utf-8")
    results = None if path is None else json.loads(path.read_text(encoding="utf-8"))
    stem = "" if path is None else path.with_suffix("").relative_to(ROOT).as_posix()
    assert ratios(results, stem, name) in text, "run python -m bench.readme --keep"
    assert table(json.loads(TOUR.read_text(encoding="utf-8")), name) in text, "run python -m bench.readme --keep"


def test_every_promise_is_a_claim_of_the_tour_in_both_languages() -> None:
    english, chinese = (list(words["promises"]) for words in WORDS.values())
    assert english == chinese
    assert len(english) == 9
    assert set(english) <= read_texts("en").claims.keys()


def test_a_claim_that_failed_is_marked() -> None:
    claims = {**CLAIMS, "checkpoint": ["Missing keys", "False", False]}
    shown = table({"machine": MACHINE, "claims": claims}, "README.md")
    assert shown.count("0.5 s") + shown.count("loads, and is equal") == 8
    assert "| False ✗ |" in shown


def test_a_claim_that_was_not_measured_yet_has_no_row() -> None:
    claims = {claim: told for claim, told in CLAIMS.items() if claim != "backward_faster"}
    assert "backward" not in table({"machine": MACHINE, "claims": claims}, "README.md")


def test_what_was_measured_with_changed_files_says_so() -> None:
    assert "changed files" not in table({"machine": MACHINE, "claims": CLAIMS}, "README.md")
    assert "with 3 changed files" in table({"machine": {**MACHINE, "changed_files": 3}, "claims": CLAIMS}, "README.md")


def test_ratios_are_against_the_fastest_peer_of_each_row() -> None:
    results = {"machine": MACHINE, "rows": [row(4.0, 8.0, 1.0), row(1.0, 2.0, 1.0)]}
    shown = ratios(results, "bench/results/here", "README.md")
    assert "(bench/results/here.svg)" in shown
    assert "2.00 times as fast as the fastest other one on each (geometric mean), 4.00 times torch.compile" in shown
    assert "first on 1 of them (not clearly: a row of 1); 0 of the measurements" in shown


def test_parts_are_filled_and_what_is_around_them_stays() -> None:
    text = "a\n<!-- x: by hand -->\nold\n<!-- /x -->\nb\n"
    once = filled(text, "x", "new")
    assert once == "a\n<!-- x: by hand -->\nnew\n<!-- /x -->\nb\n"
    assert filled(once, "x", "new") == once
