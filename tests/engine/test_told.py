"""What an engine tells a user: which line pushed, which error it was, which devices there are, how busy lanes were."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from weft.engine import Engine, NativeTask, Placement, SerialEngine, SimulatedEngine, Var
from weft.engine.task import SIGNATURE
from weft.engine.timeline import TaskRun, covered, verdict
from weft.errors import ExecutionError, UsageError

ENGINES: dict[str, Callable[[], Any]] = {
    "threads": lambda: Engine({"cpu": 2, "copy": 1}),
    "simulated": lambda: SimulatedEngine(0, {"cpu": 2, "copy": 1}),
}


class OwnError(Exception):
    """An error of one's own."""


KINDS = (
    ValueError,
    ZeroDivisionError,
    KeyError,
    MemoryError,
    OSError,
    OwnError,
    ExecutionError,
    UsageError,
    SystemExit,
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_is_told_as_an_error_of_its_kind_that_can_be_pickled(kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind("the reason")

    variable = Var("x")
    engine = Engine()
    engine.push(fail, [], [variable], name="work")
    with pytest.raises(ExecutionError, match="the task work failed") as caught:
        engine.wait(variable)
    error = caught.value
    assert type(error).__name__ == "ExecutionError"
    assert type(error).__module__ == ExecutionError.__module__
    assert isinstance(error, kind) is (
        kind in (ValueError, ZeroDivisionError, KeyError, MemoryError, OwnError, ExecutionError)
    ) or (kind is OSError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is ExecutionError
    assert (again.fact, again.why, again.where) == (error.fact, error.why, error.where)
    assert isinstance(error.__cause__, kind)
    engine.failures.known.clear()
    engine.close()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cpu:", "cpu:x", ":0", "", "copy0", Placement("gpu")])
def test_a_device_that_is_not_there_is_an_error_that_names_those_that_are(name: str, device: Any) -> None:
    with ENGINES[name]() as engine:
        with pytest.raises(UsageError, match="no device") as caught:
            engine.push(lambda: None, device=device)
        assert "cpu" in str(caught.value)
        assert "copy" in str(caught.value)
        found: list[str] = []
        for there in ("cpu", "cpu:0", "cpu:1", "cpu:7", "copy:0", Placement("copy:3")):
            engine.push(lambda there=there: found.append(str(there)), device=there)
        engine.waitall()
        assert len(found) == 6


def test_a_native_task_gets_nothing_where_no_argument_is_given_and_any_other_status_is_a_failure() -> None:
    given: list[Any] = []
    code = SIGNATURE(lambda argument: given.append(argument) or len(given) - 1)
    task = NativeTask(ctypes.cast(code, ctypes.c_void_p).value or 0, keep=code)
    assert task.__name__ == "native task"
    task()
    assert given == [None]
    with pytest.raises(ExecutionError, match="native task returned the error code 1"):
        task()
    below = SIGNATURE(lambda _: -1)
    with pytest.raises(ExecutionError, match="the error code -1"):
        NativeTask(ctypes.cast(below, ctypes.c_void_p).value or 0, keep=below)()


def pushes(engine: SerialEngine) -> list[int]:
    """Push from several lines, the first and the last of this function among them; gives their numbers."""
    tasks: list[Any] = []
    make = engine.make_task
    engine.make_task = lambda *given: tasks.append(make(*given)) or tasks[-1]  # type: ignore[method-assign]
    first = pushes.__code__.co_firstlineno
    engine.push(lambda: None)
    for _ in range(2):
        engine.push(
            lambda: None,
            [],
            [Var("x")],
        )
    engine.push(lambda: None, name="one"), engine.push(lambda: None, name="two")
    del engine.make_task
    return [int((task.where() or "").split(":")[1].split()[0]) - first for task in tasks]


def test_the_line_that_pushed_is_told() -> None:
    with SerialEngine() as engine:
        assert pushes(engine) == [6, 8, 8, 13, 13]


def span(number: int, lane: str, start: int, end: int) -> TaskRun:
    return TaskRun(number=number, name=f"t{number}", lane=lane, start=start, end=end, where=None)


ONE = "weft: 1 task in {} ms: cpu:0 {} % busy; {} lanes at once; longest chain 1 task, {} ms, {} % of the time"
TWO = (
    "weft: {} tasks in {} ms: cpu:0 {} % busy, cpu:1 {} % busy; {} lanes at once; "
    "longest chain 2 tasks, {} ms, 100 % of the time"
)
AFTER = [span(1, "cpu:0", 0, 1000), span(2, "cpu:1", 1000, 4000)]
BESIDE = [span(1, "cpu:0", 0, 4000), span(2, "cpu:1", 0, 4000), span(3, "cpu:1", 4000, 8000)]
VERDICTS = [
    ([], {}, "weft: no task ran"),
    ([span(1, "cpu:0", 0, 1000)], {}, ONE.format("0.001", 100, "1.00", "0.001", 100)),
    ([span(1, "cpu:0", 5, 5)], {}, ONE.format("0.000", 0, "0.00", "0.000", 0)),
    ([span(1, "cpu:0", 5, 6)], {}, ONE.format("0.000", 100, "1.00", "0.000", 100)),
    (AFTER, {2: (1,)}, TWO.format(2, "0.004", 25, 75, "1.00", "0.004")),
    (BESIDE, {3: (1,)}, TWO.format(3, "0.008", 50, 100, "1.50", "0.008")),
]


@pytest.mark.parametrize("number", range(len(VERDICTS)))
def test_the_verdict_of_a_run_is_told(number: int) -> None:
    spans, earlier, text = VERDICTS[number]
    assert verdict(spans, earlier) == text


def test_time_in_which_anything_ran_is_counted_once() -> None:
    assert covered([span(1, "a", 0, 10), span(2, "b", 5, 15), span(3, "a", 20, 30), span(4, "b", 21, 22)]) == 25


def test_what_runs_at_once_is_counted_as_pushed_and_done_and_its_failure_poisons() -> None:
    with Engine() as engine:
        variable, ran = Var("x"), list[int]()

        def fail() -> None:
            raise ZeroDivisionError("here")

        assert engine.is_quiet()
        for number in range(3):
            with engine.turn:
                engine.perform_here(lambda number=number: ran.append(number), lambda: [variable], "here")
            engine.advance()
            assert (engine.statistics().pushed, engine.statistics().done) == (number + 1, number + 1)
        assert ran == [0, 1, 2]
        engine.wait(variable)
        with engine.turn:
            engine.perform_here(fail, lambda: [variable], "work")
        engine.advance()
        assert not engine.is_quiet()
        assert engine.statistics().pushed == engine.statistics().done
        assert engine.statistics().in_flight == 0
        with pytest.raises(ExecutionError, match="the task work failed"):
            engine.wait(variable)
        with engine.turn, pytest.raises(KeyboardInterrupt):
            engine.perform_here(lambda: (_ for _ in ()).throw(KeyboardInterrupt()), list, "interrupted")
        engine.push(lambda: ran.append(3), [], [variable])
        engine.wait(variable)
        assert ran[-1] == 3
        engine.failures.known.clear()
