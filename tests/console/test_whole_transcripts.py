"""All that `weft tour` and `weft bench` print, with this machine's figures masked."""

from __future__ import annotations

import re

import pytest
from tests.console.conftest import Weft

from weft.console.tour.visit import ALL_STOPS, Visit, visit

# In the order in which they are masked. What the chapter's lines say is not from here, so it stays.
TOUR = (
    (r"(?m)^(?!   (chapter|书中) ).*$", lambda line: _masked(line[0])),
    (r"(?m)^  lane 0 \|.*\n(  lane \d+ \|.*\n)*", "  LANES\n"),
)
HERE = (
    (r"[▁▂▃▄▅▆▇█]{50}", "CURVE"),
    (r"\d+\.\d{4} s", "TIME"),
    (r"× \d+\.\d+", "× RATIO"),
    (r"\b\d\.\d+e[-+]\d+", "DIFFERENCE"),
    (r"\b\d\.\d{6}\b", "LOSS"),
    (r"here     \d+\.\d{3} s", "here     TIME"),
    (r"\+\d+\.\d MB", "+SIZE"),
    (r"^  \d+ MB and \d+ MB", "  SIZE and SIZE"),
    (r"\d+ (KiB|K)$", r"SIZE \1"),
    (r"lanes: \[\d+\]", "lanes: [COUNT]"),
    (r"here     \d of \d$", "here     COUNT of COUNT"),
    (r"这里  \d of \d$", "这里  COUNT of COUNT"),
    (r"这里  \d+\.\d{3} s", "这里  TIME"),
)
BENCH = (
    (r"\d+ threads?", "COUNT threads"),
    (r"[\d.]+ (ns|µs|ms|s)\b", "TIME"),
    (r"\d+%~?", "SPREAD"),
    (r"█+", "BAR"),
    (r"(?m)^ +", ""),
    (r" {2,}", "  "),
    (r"(?m)^(eager|hybrid) (ran|and) .*\n", "COMPARISON\n"),
    (r"\n\n~ the rounds .*\nread with care", ""),
)


def _masked(line: str) -> str:
    for pattern, word in HERE:
        line = re.sub(pattern, word, line)
    return line


@pytest.mark.slow
@pytest.mark.usefixtures("usual_limits")
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_whole_tour_reads_as_it_should(language: str, weft: Weft, monkeypatch, golden) -> None:
    # Its times are what bench/ and the tour itself are for; here every one of them is as the claim says.
    for module in ("parallel", "programming", "training"):
        monkeypatch.setattr(f"weft.console.tour.{module}.before_and_after", lambda *_: (0.2, 0.1, 2.0))
    monkeypatch.setattr("weft.console.tour.programming.LONGEST_FIRST_CALL", 60)
    monkeypatch.setattr("weft.console.tour.parallel.MOST_QUEUED", 1.1)
    monkeypatch.setattr("weft.console.tour.tour.visit_alone", _here)
    answer = weft("tour", "--lang", language)
    text = answer.out
    for pattern, word in TOUR:
        text = re.sub(pattern, word, text)
    golden("cli", f"whole-tour-{language}", text)
    assert answer.status == 0
    assert len(answer.err.splitlines()) == len([stop for stop in ALL_STOPS if stop.dialect == "torch"])


@pytest.mark.slow
def test_a_whole_comparison_reads_as_it_should(weft: Weft, golden) -> None:
    answer = weft("bench", "net.py:net", "--vs", "eager", "--runs", "2", "--warmup", "1")
    by_python = weft("bench", "net.py:Branchy", "--input", "1,8", "--vs", "eager", "--runs", "2", "--warmup", "1")
    text = f"{answer.err}{answer.out}\n{by_python.err}{by_python.out}"
    for pattern, word in BENCH:
        text = re.sub(pattern, word, text)
    golden("cli", "whole-bench", text)
    assert (answer.status, by_python.status) == (0, 0)


def _here(name: str) -> Visit:
    return visit(next(stop for stop in ALL_STOPS if stop.name == name))
