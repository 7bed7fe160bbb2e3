"""The bound on what is in flight."""

import threading

import pytest

from weft.engine import Engine, Placement, SimulatedEngine, Var
from weft.engine.limit import MOST_TASKS, InFlightLimit, quarter_of_memory
from weft.errors import UsageError

PATIENCE = 20


def test_the_default_is_a_quarter_of_memory():
    assert InFlightLimit().bytes == quarter_of_memory() > 0


@pytest.mark.parametrize("most", [1, 2, 10])
def test_no_more_tasks_than_the_limit_are_ever_in_flight(most):
    with Engine({"cpu": 2}) as engine:
        engine.limit(tasks=most)
        for _ in range(500):
            engine.push(lambda: None)
        engine.waitall()
        statistics = engine.statistics()
    assert statistics.most_in_flight <= most
    assert statistics.done == 500
    assert statistics.blocked_pushes > 0


def test_no_more_bytes_than_the_limit_are_ever_in_flight():
    with Engine({"cpu": 2}) as engine:
        engine.limit(bytes=1000)
        for index in range(300):
            engine.push(lambda: None, device=Placement("cpu", bytes=index))
        engine.waitall()
        assert engine.statistics().most_bytes_in_flight <= 1000
        assert engine.statistics().bytes_in_flight == 0


def test_a_task_larger_than_the_limit_runs_alone():
    with Engine() as engine:
        engine.limit(bytes=10)
        x = Var()
        for _ in range(3):
            engine.push(lambda: None, writes=[x], device=Placement("cpu", bytes=1_000_000))
        engine.wait(x)
        assert engine.statistics().most_bytes_in_flight == 1_000_000


def test_a_push_past_the_limit_waits_until_there_is_room():
    with Engine() as engine:
        engine.limit(tasks=1)
        go, pushed = threading.Event(), threading.Event()
        engine.push(lambda: go.wait(PATIENCE))
        pusher = threading.Thread(target=lambda: (engine.push(lambda: None), pushed.set()))
        pusher.start()
        while not engine.limits.gates:
            pass  # until the push waits
        assert not pushed.is_set()
        go.set()
        assert pushed.wait(PATIENCE)
        pusher.join(PATIENCE)


def test_raising_the_limit_lets_a_waiting_push_go_on():
    with Engine() as engine:
        engine.limit(tasks=1)
        go = threading.Event()
        engine.push(lambda: go.wait(PATIENCE))
        pusher = threading.Thread(target=lambda: engine.push(lambda: None))
        pusher.start()
        while not engine.limits.gates:
            pass
        engine.limit(tasks=2)
        pusher.join(PATIENCE)
        assert not pusher.is_alive()
        go.set()


def test_a_push_inside_a_task_does_not_wait():
    with Engine({"cpu": 1}) as engine:
        engine.limit(tasks=1)
        x, y = Var("x"), Var("y")
        engine.push(lambda: [engine.push(lambda: None, writes=[y]) for _ in range(10)], writes=[x])
        engine.wait(x)
        engine.wait(y)


def test_a_deletion_does_not_wait_because_it_makes_room():
    with Engine() as engine:
        engine.limit(tasks=1)
        go, x = threading.Event(), Var("x")
        engine.push(lambda: go.wait(PATIENCE), writes=[x])
        engine.delete(x)
        assert engine.statistics().blocked_pushes == 0
        go.set()


def test_many_threads_past_the_limit_all_get_through():
    with Engine({"cpu": 2}) as engine:
        engine.limit(tasks=3)
        threads = [threading.Thread(target=lambda: [engine.push(lambda: None) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        engine.waitall()
        assert engine.statistics().done == 800
        assert engine.statistics().most_in_flight <= 3 + 3  # each other thread may find the last room too


def test_the_simulated_engine_makes_room_by_running_tasks():
    with SimulatedEngine(seed=0) as engine:
        engine.limit(tasks=4)
        for _ in range(50):
            engine.push(lambda: None)
        assert engine.statistics().most_in_flight <= 4


@pytest.mark.parametrize("bound", [{"tasks": 0}, {"bytes": -1}])
def test_a_limit_that_lets_nothing_run_is_an_error(bound):
    with Engine() as engine, pytest.raises(UsageError, match="would let nothing run"):
        engine.limit(**bound)


def test_default_goes_back_to_the_first_bounds_one_by_one():
    with Engine() as engine:
        engine.limit(bytes=10, tasks=2)
        engine.limit(bytes="default")
        assert (engine.limits.bytes, engine.limits.tasks) == (quarter_of_memory(), 2)
        engine.limit(tasks="default")
        assert engine.limits.tasks == MOST_TASKS


@pytest.mark.parametrize("bound", ["all", 1.5])
def test_a_limit_of_another_kind_is_an_error_and_changes_nothing(bound):
    with Engine() as engine:
        engine.limit(bytes=10, tasks=2)
        with pytest.raises(UsageError, match="default"):
            engine.limit(bytes=bound, tasks=3)
        assert (engine.limits.bytes, engine.limits.tasks) == (10, 2)
