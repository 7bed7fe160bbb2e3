"""The threaded engine under threads that change after any line: the same results, every wait ends, nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tests.engine.adversary import Adversary, Stuck, adversary
from tests.engine.task_graphs import GraphTask, disagreement, random_graph

from weft.engine import Engine, Placement, SerialEngine, Var
from weft.engine.task import Task

SEEDS = range(40)


def assert_settled(engine: Engine) -> None:
    """Check that an engine whose tasks are done has nothing left of them."""
    statistics = engine.statistics()
    assert statistics.in_flight == 0
    assert statistics.bytes_in_flight == 0
    assert statistics.done == statistics.pushed
    assert engine._barriers == []
    assert engine.workers.blocked == []
    for queue in engine.workers.queues.values():
        assert not any(tasks for _, tasks in queue.deques)


def run(seed: int, play: Callable[[Engine, Adversary, Random], None], lanes: int = 2) -> None:
    """Play with an engine under an adversary, then close it; every thread must end."""
    with adversary(seed) as found:
        engine = Engine({"cpu": lanes, "copy": 1})
        play(engine, found, Random(seed))
        engine.finish_all()
        engine.close()
        found.finish()
        assert_settled(engine)
        assert not any(worker.running() for worker in engine.workers.workers)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs_give_what_serial_order_gives(seed: int) -> None:
    random = Random(seed)
    lanes = random.choice((1, 2, 3))
    graph = random_graph(random, lanes, failing=random.choice((0.0, 0.2)))

    def play(engine: Engine, _adversary: Adversary, _random: Random) -> None:
        with SerialEngine() as oracle:
            assert disagreement(engine, oracle, graph) == ""

    run(seed, play, lanes)


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_that_push_and_wait_past_small_limits_all_get_through(seed: int) -> None:
    ended: list[int] = []

    def play(engine: Engine, found: Adversary, random: Random) -> None:
        engine.limit(tasks=random.choice((1, 2, 4)), bytes=random.choice((10, 100)))
        shared = Var("shared")
        counted: list[int] = []

        def push(number: int) -> None:
            own = Var(f"own {number}")
            for index in range(6):
                size = random.choice((0, 1, 9, 40))
                place = Placement(random.choice(("cpu", "copy", "cpu:0", "cpu:1")), random.choice((0, 0, 1)), size)
                engine.push(lambda: counted.append(len(counted)), [own], [shared], place)
                engine.push(lambda index=index: index, [], [own])
                if random.random() < 0.4:
                    engine.wait(random.choice((own, shared)))
                    assert engine.ready(own) or own.latest is not None
            engine.wait(own)
            assert engine.ready(own)
            ended.append(number)

        for number in range(2):
            found.start(push, (number,))
        push(2)
        engine.finish_all()
        engine.finish([shared])

    with adversary(seed) as found:
        engine = Engine({"cpu": 2, "copy": 1})
        play(engine, found, Random(seed))
        while len(ended) < 3:
            found.yield_turn()
        engine.finish_all()
        assert engine.statistics().done == 36
        assert engine.statistics().most_in_flight <= 4 + 3
        engine.close()
        found.finish()
        assert_settled(engine)


@pytest.mark.parametrize("seed", SEEDS)
def test_tasks_that_push_and_wait_inside_themselves_end(seed: int) -> None:
    def play(engine: Engine, _found: Adversary, random: Random) -> None:
        values: dict[str, int] = {}
        outer = [Var(f"outer {number}") for number in range(3)]

        def body(number: int) -> None:
            inner = Var(f"inner {number}")

            def set_value() -> None:
                values[f"inner {number}"] = number

            engine.push(set_value, [], [inner], random.choice(("cpu", "copy")))
            engine.wait(inner)
            values[f"outer {number}"] = values[f"inner {number}"] + 10

        for number, variable in enumerate(outer):
            engine.push(lambda number=number: body(number), [], [variable], random.choice(("cpu", "cpu:0", "cpu:1")))
            if random.random() < 0.5:
                engine.wait(variable)
        for variable in random.sample(outer, 3):
            engine.wait(variable)
        assert values == {
            f"{kind} {number}": number + 10 * (kind == "outer") for kind in ("inner", "outer") for number in range(3)
        }

    run(seed, play, lanes=1 + seed % 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_deletions_barriers_and_readers_come_in_order(seed: int) -> None:
    def play(engine: Engine, _found: Adversary, random: Random) -> None:
        order: list[str] = []
        variable = Var("x")
        for index in range(4):
            engine.push(
                lambda index=index: order.append(f"write {index}"), [], [variable], random.choice(("cpu", "copy"))
            )
            for _ in range(random.choice((0, 2))):
                engine.push(lambda index=index: order.append(f"read {index}"), [variable], [])
            if random.random() < 0.4:
                engine.finish_all()
                assert order
                assert order[-1].endswith(str(index))
        engine.delete(variable, lambda: order.append("deleted 9"))
        engine.finish_all()
        assert order[-1] == "deleted 9"
        assert [line.split()[1] for line in order] == sorted(line.split()[1] for line in order)
        assert all(
            order.index(f"write {index}") < place
            for place, line in enumerate(order)
            for index in range(4)
            if line == f"read {index}"
        )

    run(seed, play)


def test_a_wake_that_is_lost_is_found_without_a_timeout() -> None:
    with adversary(1) as found:
        engine = Engine({"cpu": 1})
        variable = Var("x")
        for worker in engine.workers.workers:
            worker.woken = True  # as if it were up
            worker.open_gate = lambda: None
        engine.push(lambda: None, [], [variable])
        with pytest.raises(Stuck):
            engine.wait(variable)
        assert found.stuck


def test_graphs_of_this_kind_have_all_that_tasks_may_do() -> None:
    graphs: list[GraphTask] = [task for seed in SEEDS for task in random_graph(Random(seed), 2, 0.2)]
    assert {task.device for task in graphs} >= {"cpu", "copy", "cpu:0", "cpu:1"}
    assert any(set(task.reads) & set(task.writes) for task in graphs)
    assert any(task.fails for task in graphs)
    assert Task.__slots__
