"""What engines tell of their runs: counts, timelines and orders, to the number, and what a fork leaves of them."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.engine.programs import run_program

from weft.engine import Engine, Placement, SerialEngine, SimulatedEngine, Var
from weft.engine.limit import InFlightLimit
from weft.engine.task import predecessors
from weft.errors import ExecutionError

PATIENCE = 20


def history(seed: int, path: Path) -> dict[str, Any]:
    """Run random tasks, some of which wait for others inside, on the simulated engine, with a timeline."""
    dice = Random(seed)
    ran: list[str] = []
    with SimulatedEngine(seed, {"cpu": 2, "copy": 1}) as engine:
        engine.limit(tasks=5, bytes=100)
        with engine.trace_to(path) as timeline:
            variables = [Var(name) for name in "abc"]

            def body(name: str, spend: int, inner: str) -> None:
                engine.clock.spend(spend)
                if inner:
                    own = Var(inner)
                    engine.push(lambda: ran.append(f"{name}'s"), [], [own], inner)
                    engine.wait(own)
                ran.append(name)
                if spend == 7000:
                    raise ZeroDivisionError(name)

            for number in range(14):
                place = Placement(
                    dice.choice(("cpu", "cpu:0", "cpu:1", "copy")), dice.choice((0, 0, 2)), dice.choice((0, 10, 60))
                )
                spend, inner = dice.choice((1000, 3000, 7000)), dice.choice(("", "", "cpu", "cpu:0"))
                reads, writes = dice.sample(variables, dice.randrange(3)), dice.sample(variables, dice.randrange(2))
                name = f"task {number}"
                engine.push(
                    lambda name=name, spend=spend, inner=inner: body(name, spend, inner), reads, writes, place, name
                )
                if dice.random() < 0.2:
                    engine.finish([dice.choice(variables)])
            engine.finish_all()
        poison = [engine.failures.first_of([variable]) for variable in variables]
        told = [None if one is None else (str(one.error), one.title, one.rank, len(one.poisoned())) for one in poison]
        counts = engine.statistics()
        assert [lane.head() for lane in engine._queues.values()] == [None] * len(engine._queues)
        assert not any(worker.replaced for worker in engine._workers)
        engine.failures.known.clear()
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    for event in events:
        event.get("args", {}).pop("pushed at", None)
    # A task hangs on those before it in any order.
    events.sort(key=lambda event: json.dumps(event, sort_keys=True))
    return {"ran": ran, "counts": str(counts), "poison": told, "verdict": timeline.verdict, "events": events}


def test_simulated_runs_are_what_they_were(
    golden: Callable[[str, str, str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = []
    for seed in range(6):
        found = history(seed, tmp_path / f"{seed}.json.gz")
        assert history(seed, tmp_path / "again.json.gz") == found
        events = found.pop("events")
        assert all(event["pid"] == events[0]["pid"] and "tid" in event for event in events)
        lines += [f"{seed} {name}: {value}" for name, value in found.items()]
        lines += [f"{seed} {json.dumps(event, sort_keys=True)}" for event in events]
    capsys.readouterr()
    golden("engine", "simulated", "\n".join(lines))


@pytest.mark.parametrize("make", [Engine, SerialEngine, lambda: SimulatedEngine(3)])
def test_what_was_pushed_is_counted(make: Callable[[], Any]) -> None:
    with make() as engine:
        variable = Var("x")
        for size in (10, 30, 20):
            engine.push(lambda: None, [], [variable], Placement("cpu", bytes=size))
        engine.wait(variable)
        engine.finish_all()
        found = engine.statistics()
        assert (found.pushed, found.done, found.in_flight, found.bytes_in_flight) == (3, 3, 0, 0)
        assert (found.failed, found.skipped, found.blocked_pushes) == (0, 0, 0)
        assert 0 <= found.blocked_waits <= 2
        assert found.most_in_flight <= 3
        assert found.most_bytes_in_flight <= 60


def test_each_wait_that_finds_work_in_flight_is_counted_once() -> None:
    with Engine() as engine:
        variable = Var("x")
        for waits, wait in enumerate((engine.finish_all, engine.finish_all, lambda: engine.finish([variable])), 1):
            go = threading.Event()
            engine.push(lambda go=go: go.wait(PATIENCE), [], [variable])
            waiter = threading.Thread(target=wait)
            waiter.start()
            while engine.statistics().blocked_waits < waits:
                assert engine.statistics().blocked_waits >= waits - 1
            go.set()
            waiter.join(PATIENCE)
            assert engine.statistics().blocked_waits == waits
            engine.finish_all()
        assert engine.statistics().in_flight == 0
        engine.finish_all()
        engine.finish([variable, Var("never written")])
        assert engine.statistics().blocked_waits <= waits + 2


@pytest.mark.parametrize("tasks, opened_at", [(1, 0), (2, 1), (4, 3), (8, 6), (100, 75)])
def test_pushes_that_wait_are_woken_when_a_quarter_of_the_limit_is_free(tasks: int, opened_at: int) -> None:
    limit = InFlightLimit()
    limit.change(tasks, None)
    limit.pushed = tasks
    gate = threading.Lock()
    gate.acquire()
    limit.gates.append(gate)
    while gate.locked():
        assert limit.pushed - limit.done > opened_at
        limit.task_done(0)
    assert limit.pushed - limit.done == opened_at


@pytest.mark.parametrize("size, least", [(8, 6), (100, 75), (1000, 750)])
def test_pushes_that_wait_for_bytes_are_woken_when_a_quarter_is_free(size: int, least: int) -> None:
    limit = InFlightLimit()
    limit.change(1 << 20, size)
    limit.pushed, limit.bytes_pushed = size, size
    gate = threading.Lock()
    gate.acquire()
    limit.gates.append(gate)
    while gate.locked():
        assert limit.bytes_pushed - limit.bytes_done > least
        limit.task_done(1)
    assert limit.bytes_pushed - limit.bytes_done == least
    assert limit.has_room(size - least)
    assert not limit.has_room(size - least + 1)


def test_a_task_is_behind_who_wrote_and_who_read_but_not_behind_itself() -> None:
    with SerialEngine() as engine:
        x, y = Var("x"), Var("y")
        lane = Engine.__mro__  # any object will do for a queue that is never asked
        writer, reader, later = (
            engine.make_task(lambda: None, reads, writes, lane)
            for reads, writes in (((), (x,)), ((x,), ()), ((x, y), (x, y)))
        )
        x.writer, x.readers = writer, [reader, later]
        y.writer = later
        assert predecessors(later) == {writer, reader}
        assert predecessors(reader) == {writer}
        y.writer = None
        assert predecessors(engine.make_task(lambda: None, (y,), (), lane)) == set()


def test_two_tasks_that_wait_for_each_other_are_told_of_each_other() -> None:
    with Engine({"cpu": 2}) as engine:
        x, y = Var("x"), Var("y")
        both = threading.Barrier(2, timeout=PATIENCE)
        engine.push(lambda: (both.wait(), engine.wait(y)), writes=[x], device="cpu:0", name="first")
        engine.push(lambda: (both.wait(), engine.wait(x)), writes=[y], device="cpu:1", name="second")
        with pytest.raises(ExecutionError) as caught:
            engine.waitall()
        assert "waits for itself" not in str(caught.value)
        assert "waits for the task first" in str(caught.value) or "waits for the task second" in str(caught.value)
        engine.failures.known.clear()


FORKED = """
import os, threading
from weft.engine import Engine, Var
from weft.errors import ExecutionError

engine = Engine({"cpu": 2, "copy": 1})
go, started = threading.Event(), threading.Event()
running, queued, done, untouched = (Var(name) for name in ("running", "queued", "done", "untouched"))
engine.push(lambda: None, [], [done])
engine.wait(done)
engine.push(lambda: (started.set(), go.wait(20)), [], [running], "cpu:0")
assert started.wait(20)
for device in ("cpu:0", "cpu:1", "cpu", "copy"):
    engine.push(lambda: None, [running], [queued], device)
child = os.fork()
if child == 0:
    try:
        for variable in (running, queued):
            try:
                engine.wait(variable)
            except ExecutionError as error:
                assert "forked" in str(error), error
            else:
                os._exit(3)
        engine.wait(done, untouched)
        assert engine.statistics().in_flight == 0
        for device in ("cpu", "cpu:0", "cpu:1", "copy", "cpu:5"):
            found = []
            engine.push(lambda: found.append(device), [], [untouched], device)
            engine.wait(untouched)
            assert found == [device]
        engine.push(lambda: None, [], [running])
        engine.wait(running)
        engine.finish_all()
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(4)
go.set()
_, status = os.waitpid(child, 0)
engine.waitall()
engine.wait(running, queued)
engine.close()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_child_has_the_values_but_not_the_tasks_and_engines_go_on_in_both() -> None:
    assert run_program(FORKED).stdout == "0\n"
