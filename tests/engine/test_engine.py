"""The threaded engine: order, waits, concurrency, priorities, deletion, the end."""

import threading
from random import Random

import pytest
from tests.engine.task_graphs import disagreement, random_graph, sweep

from weft.engine import Engine, Placement, SerialEngine, Var
from weft.errors import ExecutionError, UsageError

PATIENCE = 20  # seconds until a test that hangs fails


class Held:
    """A task that says when it has started and runs until it is let go."""

    def __init__(self):
        self.started = threading.Event()
        self.go = threading.Event()

    def __call__(self):
        self.started.set()
        assert self.go.wait(PATIENCE)


@pytest.fixture
def engine():
    with Engine({"cpu": 2, "copy": 1}) as engine:
        yield engine


def test_who_waits_for_several_waits_once_for_the_one_pushed_last(engine):
    first, second = Held(), Held()
    variables = [Var("first"), Var("second")]
    engine.push(first, writes=variables[:1])
    engine.push(second, reads=variables[:1], writes=variables[1:])

    def let_go():
        while engine.statistics().blocked_waits == 0:
            pass
        first.go.set()
        assert second.started.wait(PATIENCE)
        second.go.set()

    helper = threading.Thread(target=let_go)
    helper.start()
    engine.wait(*variables)
    helper.join(PATIENCE)
    assert engine.statistics().blocked_waits == 1


@pytest.mark.parametrize("lanes", range(1, 9))
def test_a_thousand_random_graphs_on_one_to_eight_lanes_equal_serial_order(lanes):
    assert sweep(graphs=125, lanes=lanes, seed=lanes) == ""


@pytest.mark.slow
@pytest.mark.parametrize("lanes", range(1, 9))
def test_twenty_thousand_random_graphs_on_one_to_eight_lanes_equal_serial_order(lanes):
    assert sweep(graphs=2_500, lanes=lanes, seed=100 + lanes) == ""


def test_the_comparison_of_graphs_notices_an_engine_that_forgets_the_order():
    class Forgetful(Engine):
        def push(self, task, reads=(), writes=(), device="cpu", name=""):
            super().push(task, (), tuple(Var() for _ in writes), device, name)

    random = Random(3)
    with Forgetful({"cpu": 4, "copy": 1}) as engine, SerialEngine() as oracle:
        found = [disagreement(engine, oracle, random_graph(random, 4, failing=0.3)) for _ in range(200)]
    assert any(found)


def test_a_push_returns_before_its_task_has_run(engine):
    held, x = Held(), Var("x")
    engine.push(held, writes=[x])
    assert not engine.ready(x)
    held.go.set()
    engine.wait(x)
    assert engine.ready(x)


def test_a_variable_nobody_writes_is_ready(engine):
    engine.wait(Var())
    assert engine.ready(Var())


def test_writes_to_one_variable_happen_in_the_order_pushed(engine):
    x, order = Var("x"), []
    for number in range(200):
        engine.push(lambda number=number: order.append(number), writes=[x], device=f"cpu:{number % 2}")
    engine.wait(x)
    assert order == list(range(200))


def test_reads_between_two_writes_run_together(engine):
    x, together = Var("x"), threading.Barrier(2, timeout=PATIENCE)
    engine.push(lambda: None, writes=[x])
    engine.push(together.wait, reads=[x], device="cpu:0")
    engine.push(together.wait, reads=[x], device="cpu:1")
    engine.waitall()


def test_a_write_waits_for_the_reads_before_it(engine):
    x, held, order = Var("x"), Held(), []
    engine.push(lambda: (held(), order.append("read")), reads=[x], device="cpu:0")
    engine.push(lambda: order.append("write"), writes=[x], device="cpu:1")
    assert held.started.wait(PATIENCE)
    assert order == []
    held.go.set()
    engine.wait(x)
    assert order == ["read", "write"]


def test_tasks_on_one_lane_start_in_the_order_pushed_even_if_a_later_one_is_ready_first(engine):
    x, held, order = Var("x"), Held(), []
    engine.push(held, writes=[x], device="cpu:0")
    engine.push(lambda: order.append("first"), reads=[x], device="cpu:1")
    engine.push(lambda: order.append("second"), device="cpu:1")
    held.go.set()
    engine.waitall()
    assert order == ["first", "second"]


def test_a_device_starts_whatever_is_ready():
    with Engine({"cpu": 2}) as engine:
        x, held, done = Var("x"), Held(), threading.Event()
        engine.push(held, writes=[x])
        engine.push(lambda: None, reads=[x])
        engine.push(done.set)
        assert done.wait(PATIENCE)
        held.go.set()


def test_tasks_for_a_device_run_on_all_of_its_lanes(engine):
    together = threading.Barrier(2, timeout=PATIENCE)
    engine.push(together.wait)
    engine.push(together.wait)
    engine.waitall()


def test_copies_run_beside_a_busy_processor(engine):
    held, copied = [Held(), Held()], threading.Event()
    for task in held:
        engine.push(task)
    engine.push(copied.set, device="copy")
    assert copied.wait(PATIENCE)
    for task in held:
        task.go.set()


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_a_higher_priority_goes_first_and_equal_ones_keep_their_order(device):
    with Engine({"cpu": 1}) as engine:
        held, order = Held(), []
        engine.push(held, device=device)
        assert held.started.wait(PATIENCE)
        for number, priority in enumerate((0, -1, 2, 0, 2, 1)):
            engine.push(lambda number=number: order.append(number), device=Placement(device, priority))
        held.go.set()
        engine.waitall()
        assert order == [2, 4, 5, 0, 3, 1]


def test_priority_decides_between_a_lane_and_its_device():
    with Engine({"cpu": 1}) as engine:
        held, order = Held(), []
        engine.push(held)
        assert held.started.wait(PATIENCE)
        engine.push(lambda: order.append("lane"), device="cpu:0")
        engine.push(lambda: order.append("device"), device="cpu")
        engine.push(lambda: order.append("urgent"), device=Placement("cpu", priority=1))
        held.go.set()
        engine.waitall()
        assert order == ["urgent", "lane", "device"]


def test_a_lane_beyond_those_of_the_device_is_made_when_named(engine):
    x = Var()
    engine.push(lambda: None, writes=[x], device="cpu:7")
    engine.wait(x)


def test_random_draws_of_one_device_keep_their_order(engine):
    order = []
    for number in range(50):
        engine.push(lambda number=number: order.append(number), writes=[engine.random_state("cpu")])
    engine.waitall()
    assert order == list(range(50))
    assert engine.random_state("cpu") is not engine.random_state("cuda:0")


def test_waitall_waits_only_for_what_was_pushed_before_it(engine):
    before, after = Held(), Held()
    finished = threading.Event()
    engine.push(before, device="cpu:0")
    assert before.started.wait(PATIENCE)
    waiter = threading.Thread(target=lambda: (engine.waitall(), finished.set()))
    waiter.start()
    while not engine.inbox and not engine._barriers:
        pass  # until the other thread's barrier is in the queue
    engine.push(after, device="cpu:1")
    before.go.set()
    assert finished.wait(PATIENCE)
    assert not after.go.is_set()
    after.go.set()
    waiter.join(PATIENCE)


def test_threads_may_push_concurrently(engine):
    shared, counts = Var("shared"), {"shared": 0}

    def add_one():
        counts["shared"] = counts["shared"] + 1  # loses counts if two run at once

    def pusher(own):
        order = []
        for number in range(300):
            engine.push(lambda number=number: order.append(number), writes=[own])
            engine.push(add_one, writes=[shared])
        engine.wait(own)
        assert order == list(range(300))
        counts[own] = True

    own = [Var(str(index)) for index in range(4)]
    threads = [threading.Thread(target=pusher, args=(variable,)) for variable in own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    engine.waitall()
    assert counts["shared"] == 1200
    assert all(counts[variable] for variable in own)


def test_waitall_inside_a_task_is_an_error(engine):
    x = Var("x")
    engine.push(engine.waitall, writes=[x])
    with pytest.raises(ExecutionError, match="waitall"):
        engine.wait(x)


def test_deletion_comes_after_the_last_user_and_then_the_variable_is_gone(engine):
    x, held, order = Var("x"), Held(), []
    engine.push(lambda: (held(), order.append("read")), reads=[x])
    engine.delete(x, lambda: order.append("released"))
    with pytest.raises(UsageError, match="was deleted"):
        engine.push(lambda: None, reads=[x])
    assert order == []
    held.go.set()
    engine.waitall()
    assert order == ["read", "released"]


def test_a_task_that_is_done_holds_neither_its_callable_nor_its_variables(engine):
    import weakref

    class Callable:
        def __call__(self):
            pass

    call, x, y = Callable(), Var("x"), Var("y")
    watched = [weakref.ref(call), weakref.ref(y)]
    engine.push(call, reads=[y], writes=[x])
    del call, y
    engine.waitall()
    assert [reference() for reference in watched] == [None, None]


def test_a_variable_read_for_ever_keeps_few_readers(engine):
    weight = Var("weight")
    for _ in range(40):
        for _ in range(50):
            engine.push(lambda: None, reads=[weight])
        engine.waitall()
    assert len(weight.readers) < 200


def test_an_unknown_device_is_an_error_at_the_push(engine):
    with pytest.raises(UsageError, match="no device 'tpu'"):
        engine.push(lambda: None, device="tpu")


@pytest.mark.parametrize("arguments", [(3,), (lambda: None, ["x"]), (lambda: None, (), ["x"])])
def test_arguments_that_make_no_sense_are_errors_at_the_push(engine, arguments):
    with pytest.raises(UsageError):
        engine.push(*arguments)


def test_statistics_count_what_happened(engine):
    x = Var("x")
    held = Held()
    engine.push(held, writes=[x], device=Placement("cpu", bytes=100))
    engine.push(lambda: None, reads=[x])
    assert held.started.wait(PATIENCE)
    during = engine.statistics()
    held.go.set()
    engine.waitall()
    after = engine.statistics()
    assert (during.pushed, during.in_flight, during.bytes_in_flight) == (2, 2, 100)
    assert (after.pushed, after.done, after.in_flight, after.bytes_in_flight) == (2, 2, 0, 0)
    assert after.most_in_flight == 2
    assert after.most_bytes_in_flight == 100


def test_closing_finishes_what_is_queued():
    order = []
    engine = Engine({"cpu": 2})
    for number in range(100):
        engine.push(lambda number=number: order.append(number), device="cpu:0")
    engine.close()
    engine.close()
    assert order == list(range(100))
    with pytest.raises(UsageError, match="closed"):
        engine.push(lambda: None)


def test_closing_can_drop_what_has_not_started(capsys):
    engine, held, x, order = Engine({"cpu": 1}), Held(), Var("x"), []
    engine.push(held)
    assert held.started.wait(PATIENCE)
    engine.push(lambda: order.append(1), writes=[x])
    engine.failures.drop_what_is_queued()  # what close does first; it then waits for the task that runs
    held.go.set()
    engine.close(finish=False)
    assert order == []
    with pytest.raises(ExecutionError, match="closed before this task could run"):
        engine.wait(x)
    assert capsys.readouterr().err == ""


def test_closing_ends_the_threads():
    engine = Engine({"cpu": 3})
    for lane in range(3):
        engine.push(lambda: None, device=f"cpu:{lane}")
    engine.waitall()
    assert any(worker.running() for worker in engine.workers.workers)
    engine.close()
    assert not any(worker.running() for worker in engine.workers.workers)


def test_what_is_pushed_during_a_turn_comes_after_it(engine):
    ran, other = [], threading.Thread(target=lambda: engine.push(lambda: ran.append("task"), writes=[var]))
    var = Var("x")
    engine.push(lambda: None, writes=[var])
    engine.waitall()
    assert engine.take_turn()
    assert not engine.take_turn()
    other.start()
    other.join(30)
    engine.perform_here(lambda: ran.append("here"), lambda: [var], "here")
    engine.give_turn_back()
    engine.waitall()
    assert ran == ["here", "task"]


def test_a_failure_in_a_turn_has_the_line_that_ran_it_and_is_told_by_a_wait(engine):
    var = Var("x")
    assert engine.skips_none
    assert engine.take_turn()
    engine.perform_here(lambda: 1 / 0, lambda: [var], "division")
    engine.give_turn_back()
    assert not engine.skips_none
    with pytest.raises(ExecutionError, match="division") as told:
        engine.wait(var)
    assert "test_engine.py" in told.value.where
