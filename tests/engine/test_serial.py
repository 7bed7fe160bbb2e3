"""The serial engine: every task at its push."""

import threading

import pytest

from weft.engine import SerialEngine, Var
from weft.errors import ExecutionError


def test_a_task_runs_at_its_push_on_the_thread_that_pushes():
    with SerialEngine() as engine:
        x, ran = Var("x"), []
        engine.push(lambda: ran.append(threading.current_thread()), writes=[x], device="cuda:3")
        assert ran == [threading.main_thread()]
        assert engine.ready(x)
        engine.wait(x)
        assert engine.statistics().done == 1


def test_a_task_that_needs_what_its_pusher_writes_runs_after_it():
    with SerialEngine() as engine:
        x, order = Var("x"), []

        def outer():
            engine.push(lambda: order.append("free"))
            engine.push(lambda: order.append("bound"), reads=[x])
            order.append("outer")

        engine.push(outer, writes=[x])
        assert order == ["free", "outer", "bound"]


def test_a_task_that_waits_for_itself_is_told_so():
    with SerialEngine() as engine:
        x = Var("x")
        with pytest.raises(ExecutionError, match="can only run after it"):
            engine.push(lambda: engine.wait(x), writes=[x])


def test_threads_take_turns():
    with SerialEngine() as engine:
        x, inside, overlaps = Var("x"), [], []

        def task():
            inside.append(1)
            overlaps.append(len(inside))
            inside.pop()

        threads = [
            threading.Thread(target=lambda: [engine.push(task, writes=[x]) for _ in range(200)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        engine.waitall()
        assert set(overlaps) == {1}
