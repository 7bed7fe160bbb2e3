"""Tasks that wait for tasks: what works, and what is an error because it can never end."""

import threading

import pytest

from weft.engine import Engine, Var
from weft.errors import ExecutionError

PATIENCE = 20


@pytest.fixture
def engine():
    with Engine({"cpu": 2, "copy": 1}) as engine:
        yield engine


def test_a_task_may_push_and_wait_for_another_on_its_own_lane():
    with Engine({"cpu": 1}) as engine:
        x, y, order = Var("x"), Var("y"), []

        def outer():
            engine.push(lambda: order.append("inner"), writes=[x], device="cpu:0")
            engine.wait(x)
            order.append("outer")

        engine.push(outer, writes=[y], device="cpu:0")
        engine.push(lambda: order.append("later"), reads=[y], device="cpu:0")
        engine.waitall()
        assert order == ["inner", "outer", "later"]


def test_a_task_that_waits_for_itself_is_told_so(engine):
    x = Var("x")
    engine.push(lambda: engine.wait(x), writes=[x], name="ouroboros")
    with pytest.raises(ExecutionError, match="ouroboros waits for itself"):
        engine.wait(x)


def test_a_task_may_wait_for_what_stands_behind_a_task_that_waits_for_it(engine):
    x, y = Var("x"), Var("y")

    def outer():
        engine.push(lambda: None, reads=[x], device="cpu:1")
        engine.push(lambda: None, writes=[y], device="cpu:1")  # its lane would be held up by the task before
        engine.wait(y)

    engine.push(outer, writes=[x], device="cpu:0")
    engine.wait(x, y)


def test_two_tasks_that_wait_for_each_other_are_told_so(engine):
    x, y = Var("x"), Var("y")
    both = threading.Barrier(2, timeout=PATIENCE)
    engine.push(lambda: (both.wait(), engine.wait(y)), writes=[x], device="cpu:0")
    engine.push(lambda: (both.wait(), engine.wait(x)), writes=[y], device="cpu:1")
    with pytest.raises(ExecutionError, match="can only run after it"):
        engine.waitall()
