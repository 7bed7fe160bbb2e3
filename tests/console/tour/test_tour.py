"""The tour: every stop runs, its claims are checked, and what fails is told."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from weft.console import main
from weft.console.tour.stop import FOLDER, Claim, Stop, read_texts
from weft.console.tour.tour import LANGUAGES, Tour, tour
from weft.console.tour.visit import ALL_STOPS, Visit, stops_here, visit, visit_alone
from weft.document.blocks import Picture, columns_of
from weft.document.charts import Axes, curves
from weft.document.html import page
from weft.errors import UsageError

# Whether one thing is faster than another is measured by the tour, not by tests, which share a machine.
TIMED = {
    "async_queued",
    "hybrid_faster",
    "recorded_faster",
    "backward_faster",
    "hybrid_soon",
    "step_faster",
    "parallel_faster",
    "overlap_faster",
    "mx_hybrid_faster",
    "mx_queued",
}
HERE = (*stops_here(), *stops_here("mx"))


def by_name(name: str) -> Visit:
    return visit(next(stop for stop in ALL_STOPS if stop.name == name))


@pytest.mark.usefixtures("usual_limits")
@pytest.mark.parametrize("stop", HERE, ids=lambda stop: stop.name)
def test_every_stop_runs_and_its_claims_hold(stop: Stop) -> None:
    if stop.name == "portable":
        pytest.skip("in the slow test: it starts another process")
    found = visit(stop)
    assert {claim.name: claim.here for claim in found.claims if not claim.holds and claim.name not in TIMED} == {}


@pytest.mark.slow
def test_a_saved_program_runs_in_another_process() -> None:
    stop = next(stop for stop in HERE if stop.name == "portable")
    assert visit(stop).holds


def test_code_is_as_narrow_as_a_terminal() -> None:
    assert max(columns_of(line) for stop in ALL_STOPS for line in stop.code.splitlines()) <= 78


def test_all_languages_say_the_same_things() -> None:
    english, *others = (json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in LANGUAGES)
    for other in others:
        for part in ("words", "stops", "claims"):
            assert other[part].keys() == english[part].keys()
        assert all(told.keys() == english["stops"][name].keys() for name, told in other["stops"].items())
    assert list(english["stops"]) == [stop.name for stop in ALL_STOPS]
    assert {name for name, told in english["stops"].items() if "picture" in told} == {
        stop.name for stop in ALL_STOPS if stop.draw is not None
    }


def test_captions_of_pictures_are_in_the_language_of_the_page() -> None:
    stop = next(stop for stop in ALL_STOPS if stop.name == "memory")
    drawn = Picture(curves({"a": [(0.0, 1.0), (1.0, 2.0)]}, Axes(str, str)), "a line")
    told = page("Weft", Tour((Visit(stop.name, stop.code, "", (), drawn),), read_texts("zh")).document(), "zh")
    assert "排队的字节数" in told.partition("<figcaption")[2]


def test_a_stop_that_needs_what_is_missing_is_not_listed(monkeypatch) -> None:
    monkeypatch.setattr(weft, "__all__", [name for name in weft.__all__ if name != "compile_source"])
    assert [stop.name for stop in stops_here()][:2] == ["imperative", "hybridize"]


def test_a_stop_that_fails_is_a_claim_that_does_not_hold() -> None:
    broken = dataclasses.replace(ALL_STOPS[0], code="print('so far')\n1 / 0")
    found = visit(broken)
    assert not found.holds
    assert found.output.startswith("so far")
    assert "ZeroDivisionError" in found.output
    document = str(Tour((found,), read_texts("en")))
    assert document.endswith("1 stop, 1 claim, 0 hold")


def test_a_wrong_answer_is_seen() -> None:
    broken = dataclasses.replace(ALL_STOPS[0], code=ALL_STOPS[0].code.replace("e = add(a, b)", "e = add(a, a)"))
    assert [claim.here for claim in visit(broken).claims] == ["9"]
    assert not visit(broken).holds


def test_a_claim_is_shown_beside_the_chapters_figure(golden) -> None:
    found = Visit("imperative", "print(10)", "10", (Claim("imperative", "10", "10", holds=True),))
    texts = "\n\n".join(str(Tour((found,), read_texts(language))) for language in LANGUAGES)
    golden("cli", "tour", texts)


def test_times_and_curves_are_drawn_for_pages_and_terminals() -> None:
    claims = (Claim("hybrid_faster", "-", "-", holds=True, times=(0.2, 0.1)),)
    shown = Tour((Visit("hybridize", "code", "", claims, Picture("<figure></figure>", "▁█")),), read_texts("en"))
    assert "  ▁█\n" in str(shown)
    assert f"  before {'█' * 40} 200.0 ms\n  after  {'█' * 20} 100.0 ms\n" in str(shown)
    text = page(shown.title, shown.document())
    assert "<figure></figure>" in text
    assert "width:50.0%" in text
    assert "picture" not in json.dumps(shown.as_dict())


def test_unknown_stops_and_languages_are_refused() -> None:
    with pytest.raises(UsageError, match="no stop 'lunch'"):
        tour(only=["lunch"])
    with pytest.raises(UsageError, match="no tour in 'fr'"):
        tour("fr")


def test_the_command_tells_how_it_goes_and_ends_by_what_was_found(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("weft.console.tour.tour.visit_alone", by_name)
    words = ["tour", "--stop", "imperative", "--stop", "symbolic", "--html", "tour.html", "--lang", "zh"]
    assert main(words) == 0
    found = capsys.readouterr()
    assert found.err.splitlines() == ["stop 1 of 2: imperative", "stop 2 of 2: symbolic"]
    assert found.out.splitlines()[-1] == "2 站，3 个说法，3 个成立"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hold"] == 3
    text = (tmp_path / "tour.html").read_text(encoding="utf-8")
    assert text.startswith('<!doctype html>\n<html lang="zh">')
    assert "http" not in text.replace("http-equiv", "")  # nothing from the network


def test_a_language_that_cannot_be_written_is_refused_before_the_tour(monkeypatch, capsys) -> None:
    monkeypatch.setattr("weft.console.tour.tour.visit_alone", by_name)
    words = ["tour", "--stop", "imperative", "--lang", "zh"]
    assert main([*words, "--ascii"]) == 2
    assert "--lang zh cannot be written in ASCII" in capsys.readouterr().err
    assert main([*words, "--ascii", "--json"]) == 0  # data has escapes anyway, and programs read them
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert main(words) == 2


def test_a_claim_that_does_not_hold_ends_the_command_with_one(monkeypatch, capsys) -> None:
    broken = dataclasses.replace(ALL_STOPS[0], code="fancy_func = lambda *numbers: 11\nprint(11)")
    monkeypatch.setattr("weft.console.tour.visit.ALL_STOPS", (broken,))
    monkeypatch.setattr("weft.console.tour.tour.visit_alone", lambda name: visit(broken))
    assert main(["tour"]) == 1
    assert "1 stop, 1 claim, 0 hold" in capsys.readouterr().out


@pytest.mark.slow
def test_a_stop_has_a_process_of_its_own_and_one_that_dies_is_told(monkeypatch) -> None:
    assert visit_alone("imperative") == by_name("imperative")
    drawn = visit_alone("memory")
    assert drawn.picture is not None
    assert "with_limit" in drawn.picture.text
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert [claim.here for claim in visit_alone("imperative").claims] == ["exit 1"]


@pytest.mark.slow
def test_shown_code_makes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tour", "--stop", "imperative", "--html", "tour.html", "--show-code"]) == 0
    code = capsys.readouterr().out
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert "A tour of Weft" in (tmp_path / "tour.html").read_text(encoding="utf-8")
