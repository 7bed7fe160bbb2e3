"""The deterministic test tools: the seeded engine and its clock."""

from random import Random

import pytest
from tests.engine.task_graphs import disagreement, random_graph

from weft.engine import SerialEngine, SimulatedEngine, Var
from weft.errors import ExecutionError, UsageError


def order_of(seed):
    order = []
    with SimulatedEngine(seed, {"cpu": 4}) as engine:
        for number in range(12):
            engine.push(lambda number=number: order.append(number))
        engine.waitall()
    return order


def test_the_same_seed_gives_the_same_order_and_others_give_others():
    assert order_of(1) == order_of(1)
    assert len({tuple(order_of(seed)) for seed in range(20)}) == 20


def test_random_graphs_in_adversarial_orders_equal_serial_order():
    for seed in range(300):
        graph = random_graph(Random(seed), 3, failing=0.1)
        with SimulatedEngine(seed, {"cpu": 3, "copy": 1}) as engine, SerialEngine() as oracle:
            assert disagreement(engine, oracle, graph) == ""


def test_some_seed_shows_that_an_order_was_not_asked_for():
    def final(seed):
        values = []
        with SimulatedEngine(seed) as engine:
            engine.push(lambda: values.append("write"), writes=[Var()])
            engine.push(lambda: values.append("read"), reads=[Var()])  # meant the same variable, forgot to say so
            engine.waitall()
        return tuple(values)

    assert {final(seed) for seed in range(20)} == {("write", "read"), ("read", "write")}


def test_nothing_runs_before_somebody_waits():
    with SimulatedEngine(0) as engine:
        x, ran = Var("x"), []
        engine.push(lambda: ran.append(1), writes=[x])
        assert ran == []
        assert not engine.ready(x)
        engine.wait(x)
        assert ran == [1]


def test_the_clock_moves_as_tasks_say_and_lanes_overlap():
    with SimulatedEngine(0, {"cpu": 2}) as engine:
        for lane in (0, 1):
            for _ in range(3):
                engine.push(lambda: engine.clock.spend(1_000), device=f"cpu:{lane}")
        engine.waitall()
        assert engine.clock.now == 3_000


@pytest.mark.parametrize("seed", range(5))
def test_a_task_may_wait_for_another_of_its_own_lane(seed):
    with SimulatedEngine(seed, {"cpu": 1}) as engine:
        x, order = Var("x"), []

        def outer():
            engine.push(lambda: order.append("inner"), writes=[x], device="cpu:0")
            engine.wait(x)
            order.append("outer")

        engine.push(outer, device="cpu:0")
        engine.push(lambda: order.append("last"), device="cpu:0")
        engine.waitall()
        assert order.index("inner") < order.index("outer")
        assert "last" in order


def test_a_task_that_waits_for_itself_is_told_so():
    with SimulatedEngine(0) as engine:
        x = Var("x")
        engine.push(lambda: engine.wait(x), writes=[x])
        with pytest.raises(ExecutionError, match="can only run after it"):
            engine.wait(x)


def test_an_unknown_device_is_an_error():
    with SimulatedEngine(0) as engine, pytest.raises(UsageError, match="no device 'tpu'"):
        engine.push(lambda: None, device="tpu")
