"""The Chrome trace and its verdict."""

import gzip
import json
import threading

import pytest
from tests.engine.programs import run_program

from weft.engine import Engine, SerialEngine, SimulatedEngine, Var
from weft.engine.timeline import TaskRun, covered, longest_chain, verdict
from weft.errors import ExecutionError, UsageError


def events(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)["traceEvents"]


def two_by_two(engine):
    """Two independent chains of two tasks of 10 and 20 us."""
    x, y = Var("x"), Var("y")
    engine.push(lambda: engine.clock.spend(10_000), writes=[x], device="cpu:0", name="a")
    engine.push(lambda: engine.clock.spend(20_000), reads=[x], device="cpu:0", name="b")
    engine.push(lambda: engine.clock.spend(10_000), writes=[y], device="cpu:1", name="c")
    engine.push(lambda: engine.clock.spend(20_000), reads=[y], device="cpu:1", name="d")
    engine.waitall()


@pytest.mark.parametrize("seed", range(5))
def test_the_verdict_says_busy_shares_overlap_and_longest_chain(tmp_path, capsys, seed):
    with SimulatedEngine(seed) as engine, engine.trace_to(tmp_path / "run.json.gz") as timeline:
        assert repr(timeline) == f"<timeline in {timeline.path}: recording, 0 tasks so far>"
        two_by_two(engine)
    assert repr(timeline) == f"<timeline in {timeline.path}: {timeline.verdict.removeprefix('weft: ')}>"
    assert timeline.verdict == (
        "weft: 4 tasks in 0.030 ms: cpu:0 100 % busy, cpu:1 100 % busy; 2.00 lanes at once; "
        "longest chain 2 tasks, 0.030 ms, 100 % of the time"
    )
    assert capsys.readouterr().err == timeline.verdict + "\n"


def test_the_trace_has_a_track_for_each_lane_and_arrows_for_dependencies(tmp_path):
    path = tmp_path / "run.json.gz"
    with SimulatedEngine(seed=0) as engine, engine.trace_to(path):
        two_by_two(engine)
    found = events(path)
    tracks = {event["args"]["name"]: event["tid"] for event in found if event["ph"] == "M"}
    assert set(tracks) == {"cpu:0", "cpu:1"}
    slices = {event["name"]: event for event in found if event["ph"] == "X"}
    assert {name: slices[name]["tid"] for name in "abcd"} == {
        "a": tracks["cpu:0"],
        "b": tracks["cpu:0"],
        "c": tracks["cpu:1"],
        "d": tracks["cpu:1"],
    }
    starts = sorted(event["id"] for event in found if event["ph"] == "s")
    assert starts == sorted(event["id"] for event in found if event["ph"] == "f") == ["1-2", "3-4"]
    for event in found:  # an arrow begins and ends inside its slice
        if event["ph"] in "sf":
            owner = slices["abcd"[int(event["id"].split("-")[event["ph"] == "f"]) - 1]]
            assert owner["ts"] <= event["ts"] < owner["ts"] + owner["dur"]


@pytest.mark.parametrize("make", [lambda: Engine({"cpu": 2}), SerialEngine])
def test_closing_the_engine_writes_the_trace(tmp_path, make):
    path = tmp_path / "run.json.gz"
    with make() as engine:
        timeline = engine.trace_to(path)
        x = Var("x")
        engine.push(lambda: None, writes=[x], name="first")
        engine.push(lambda: None, reads=[x], name="second")
    assert "2 tasks" in timeline.verdict
    found = events(path)
    assert [event["name"] for event in found if event["ph"] == "X"] == ["first", "second"]
    assert [event["id"] for event in found if event["ph"] == "s"] == ["1-2"]


def test_a_second_trace_ends_the_first(tmp_path):
    with Engine() as engine:
        first = engine.trace_to(tmp_path / "first.json.gz")
        engine.push(lambda: None)
        engine.waitall()
        second = engine.trace_to(tmp_path / "second.json.gz")
        assert "1 task in" in first.verdict
    assert second.verdict == "weft: no task ran"


def test_time_covered_counts_overlapping_tasks_once():
    spans = [TaskRun(1, "a", "x", 0, 10, None), TaskRun(2, "b", "y", 5, 15, None), TaskRun(3, "c", "x", 20, 30, None)]
    assert covered(spans) == 25
    assert longest_chain(spans, {3: (1,), 2: ()}) == (20, 2)
    assert "1.20 lanes at once" in verdict(spans, {})


def test_a_trace_that_could_not_be_written_is_an_error_at_the_call_and_the_one_before_goes_on(tmp_path):
    with Engine() as engine:
        timeline = engine.trace_to(tmp_path / "run.json.gz")
        with pytest.raises(UsageError, match="there is no folder"):
            engine.trace_to(tmp_path / "absent" / "run.json.gz")
        assert engine.timeline is timeline


def test_closing_a_trace_waits_for_what_is_queued(tmp_path):
    started = threading.Event()
    with Engine({"cpu": 1}) as engine:
        with engine.trace_to(tmp_path / "run.json.gz") as timeline:
            engine.push(lambda: started.wait(20))
            engine.push(lambda: None)
            started.set()
        assert "2 tasks in" in timeline.verdict


def test_a_trace_without_the_ending_of_compressed_files_is_plain_text(tmp_path):
    with SimulatedEngine(seed=0) as engine, engine.trace_to(tmp_path / "run.json"):
        two_by_two(engine)
    assert len(json.loads((tmp_path / "run.json").read_text())["traceEvents"]) == 2 + 4 + 2 * 2


def test_a_trace_goes_to_the_folder_of_the_call(tmp_path, monkeypatch):
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    with SimulatedEngine(seed=0) as engine, engine.trace_to("run.json.gz"):
        monkeypatch.chdir(tmp_path / "later")
    assert events(tmp_path / "run.json.gz") == []


def test_a_folder_that_is_gone_when_the_trace_closes_is_told_once_in_the_one_format(tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    with SimulatedEngine(seed=0) as engine:
        timeline = engine.trace_to(tmp_path / "folder" / "run.json.gz")
        two_by_two(engine)
        (tmp_path / "folder").rmdir()
        with pytest.raises(ExecutionError, match=r"timeline could not be written.*run.json.gz\n  why   No such file"):
            timeline.close()
        timeline.close()
    assert capsys.readouterr().err == timeline.verdict + "\n"


def test_at_exit_a_trace_that_cannot_be_written_hides_no_error_that_nobody_waited_for(tmp_path):
    result = run_program(f"""
import os
from weft.engine import Engine, Var

os.mkdir({str(tmp_path / "folder")!r})
first, second = Engine(), Engine()
for engine in (first, second):
    engine.push(lambda: 1 / 0, writes=[Var()])
    engine.trace_to({str(tmp_path / "folder" / "run.json")!r})
os.rmdir({str(tmp_path / "folder")!r})
""")
    assert result.stderr.count("ZeroDivisionError: division by zero\n") >= 2
    assert result.stderr.count("an error that nobody waited for") == 2
    assert result.stderr.count("the timeline could not be written") == 2
