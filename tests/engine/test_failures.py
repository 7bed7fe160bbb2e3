"""What a failing task does, under each engine and each rule."""

import gc
import sys
import threading
import traceback
import weakref
from functools import partial
from itertools import pairwise

import pytest
from tests.engine.programs import run_program

from weft.engine import Engine, SerialEngine, SimulatedEngine, Var
from weft.engine.failures import Damage, PartialFailure
from weft.errors import ExecutionError, UsageError

ENGINES = {
    "threads": lambda errors="every": Engine({"cpu": 2}, errors),
    "serial": SerialEngine,
    "simulated": lambda errors="every": SimulatedEngine(seed=1, errors=errors),
}


def fail():
    raise ZeroDivisionError("no luck")


def push(engine, *arguments, **options):
    """Push, and let the serial engine raise at the push as it does."""
    try:
        engine.push(*arguments, **options)
    except ExecutionError:
        assert isinstance(engine, SerialEngine)


@pytest.fixture(params=ENGINES)
def make(request):
    made = []

    def make(errors="every"):
        made.append(ENGINES[request.param](errors))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def test_who_waits_gets_the_error_with_the_line_that_pushed_and_the_original_traceback(make):
    engine, x = make(), Var("x")
    push(engine, fail, writes=[x], name="divide")
    with pytest.raises(ExecutionError) as caught:
        engine.wait(x)
    error = caught.value
    assert error.fact == "the task divide failed"
    assert error.why == "it raised ZeroDivisionError: no luck"
    assert "test_failures.py" in error.where
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert [frame.name for frame in traceback.extract_tb(error.__cause__.__traceback__)] == ["fail"]


def test_the_line_of_the_push_is_that_of_the_users_code():
    with Engine() as engine:
        x = Var("x")
        engine.push(fail, writes=[x])  # this very line
        with pytest.raises(ExecutionError) as caught:
            engine.wait(x)
        assert caught.value.where.endswith("engine.push(fail, writes=[x])  # this very line")


def test_by_default_a_poisoned_variable_raises_at_every_wait_and_its_traceback_stays_the_same(make):
    engine, x = make(), Var("x")
    push(engine, fail, writes=[x])
    for _ in range(3):
        with pytest.raises(ExecutionError) as caught:
            engine.wait(x)
        assert len(traceback.extract_tb(caught.value.__cause__.__traceback__)) == 1
    with pytest.raises(ExecutionError):
        engine.waitall()
    with pytest.raises(ExecutionError):
        engine.waitall()


def test_a_failure_keeps_nothing_alive_that_its_task_had_in_hand():
    def fail_again(held: Var) -> None:
        try:
            fail()
        except ZeroDivisionError as error:
            raise ValueError(f"no luck with {held}") from error

    with Engine() as engine:  # the other engines run tasks below the user's own frames, which the error leads to
        variable = Var("x")
        engine.push(partial(fail_again, variable), writes=[variable])
        with pytest.raises(ExecutionError):
            engine.wait(variable)
        died = weakref.ref(variable)
        del variable
        gc.collect()
        assert died() is None
        engine.waitall()


def test_once_a_failure_is_raised_by_one_wait_and_then_forgotten(make):
    engine, x = make("once"), Var("x")
    push(engine, fail, writes=[x])
    if not isinstance(engine, SerialEngine):  # which has raised at the push
        with pytest.raises(ExecutionError):
            engine.wait(x)
    engine.wait(x)
    engine.waitall()


def test_once_forgets_the_failure_for_all_variables_it_poisons():
    with Engine(errors="once") as engine:
        x, y = Var("x"), Var("y")
        engine.push(fail, writes=[x])
        engine.push(lambda: None, reads=[x], writes=[y])
        with pytest.raises(ExecutionError):
            engine.wait(y)
        engine.wait(x, y)


def test_once_waitall_raises_the_first_failure_naming_the_others_and_clears_all():
    with Engine({"cpu": 2}, errors="once") as engine:
        x, y = Var("x"), Var("y")
        engine.push(fail, writes=[x], name="first", device="cpu:0")
        engine.push(fail, writes=[y], name="second", device="cpu:1")
        with pytest.raises(ExecutionError, match=r"(?s)task first failed.*also failed: the task second"):
            engine.waitall()
        engine.wait(x, y)
        engine.waitall()


def test_one_wait_may_follow_the_other_rule(make):
    engine, x = make(), Var("x")
    push(engine, fail, writes=[x])
    with pytest.raises(ExecutionError):
        engine.wait(x, errors="once")
    engine.wait(x)


def test_an_unknown_rule_is_an_error():
    with pytest.raises(UsageError, match="no rule for errors"):
        Engine(errors="never")


def test_what_depends_on_a_failure_is_skipped_and_raises_the_first_cause(make):
    engine, chain, ran = make(), [Var(str(index)) for index in range(6)], []
    push(engine, fail, writes=[chain[0]], name="culprit")
    for before, after in pairwise(chain):
        push(engine, lambda: ran.append(1), reads=[before], writes=[after])
    with pytest.raises(ExecutionError, match="culprit"):
        engine.wait(chain[-1])
    assert ran == []
    assert engine.statistics().failed == 1
    assert engine.statistics().skipped == 5


def test_a_task_that_reads_two_failures_is_poisoned_by_the_one_pushed_first(make):
    engine, x, y, z = make(), Var("x"), Var("y"), Var("z")
    push(engine, fail, writes=[x], name="early", device="cpu:0")
    push(engine, fail, writes=[y], name="late", device="cpu:1")
    push(engine, lambda: None, reads=[y, x], writes=[z])
    with pytest.raises(ExecutionError, match="early"):
        engine.wait(z)


def test_other_variables_are_unaffected(make):
    engine, x, y, ran = make(), Var("x"), Var("y"), []
    push(engine, fail, writes=[x])
    push(engine, lambda: ran.append(1), writes=[y])
    engine.wait(y)
    assert ran == [1]


def test_overwriting_without_reading_heals(make):
    engine, x, y = make(), Var("x"), Var("y")
    push(engine, fail, writes=[x])
    push(engine, lambda: None, reads=[x], writes=[y])
    push(engine, lambda: None, writes=[x])
    engine.wait(x)
    with pytest.raises(ExecutionError):
        engine.wait(y)


def test_changing_a_poisoned_variable_in_place_does_not_heal(make):
    engine, x, ran = make(), Var("x"), []
    push(engine, fail, writes=[x])
    push(engine, lambda: ran.append(1), reads=[x], writes=[x])
    with pytest.raises(ExecutionError):
        engine.wait(x)
    assert ran == []


def test_a_failure_told_and_healed_is_forgotten(make):
    engine, x = make(), Var("x")
    push(engine, fail, writes=[x])
    with pytest.raises(ExecutionError):
        engine.wait(x)
    push(engine, lambda: None, writes=[x])
    engine.waitall()
    assert not engine.failures.known


def test_a_failure_told_whose_variables_are_gone_is_forgotten():
    with Engine() as engine:
        x = Var("x")
        engine.push(fail, writes=[x])
        with pytest.raises(ExecutionError):
            engine.wait(x)
        del x
        gc.collect()
        engine.waitall()


def test_deleting_a_poisoned_variable_still_releases_it(make):
    engine, x, released = make(), Var("x"), []
    push(engine, fail, writes=[x])
    engine.delete(x, lambda: released.append(1))
    engine.finish_all()
    assert released == [1]


def test_a_task_without_writes_that_fails_is_raised_by_waitall(make):
    engine = make()
    push(engine, fail)
    if not isinstance(engine, SerialEngine):
        with pytest.raises(ExecutionError, match="no luck"):
            engine.waitall()
    engine.waitall()


def test_even_what_ends_a_program_is_only_a_failure_in_a_task(make):
    engine, x, y = make(), Var("x"), Var("y")
    push(engine, sys.exit, writes=[x])
    with pytest.raises(ExecutionError, match="SystemExit"):
        engine.wait(x)
    push(engine, lambda: None, writes=[y])
    engine.wait(y)


def test_every_thread_that_waits_gets_the_error():
    with Engine() as engine:
        x, go, errors = Var("x"), threading.Event(), []
        engine.push(lambda: (go.wait(20), fail()), writes=[x])

        def waiter():
            try:
                engine.wait(x)
            except ExecutionError as error:
                errors.append(error)

        threads = [threading.Thread(target=waiter) for _ in range(4)]
        for thread in threads:
            thread.start()
        go.set()
        for thread in threads:
            thread.join(20)
        assert len({id(error) for error in errors}) == 4


def test_the_serial_engine_raises_at_the_push_and_poisons_all_the_same():
    with SerialEngine() as engine:
        x = Var("x")
        with pytest.raises(ExecutionError, match="no luck"):
            engine.push(fail, writes=[x])
        with pytest.raises(ExecutionError, match="no luck"):
            engine.wait(x)


PROGRAM = """
from weft.engine import Engine, Var
engine, x, y = Engine(), Var("x"), Var("y")
def fail():
    raise ZeroDivisionError("nobody hears")
engine.push(fail, writes=[x], name="lonely")
engine.push(fail, writes=[y], name="heard")
try:
    engine.wait(y)
except RuntimeError:
    pass
"""


@pytest.mark.slow
def test_an_error_nobody_waited_for_is_printed_at_exit():
    program = run_program(PROGRAM)
    assert "weft: an error that nobody waited for:" in program.stderr
    assert "the task lonely failed" in program.stderr
    assert "ZeroDivisionError: nobody hears" in program.stderr
    assert "heard" not in program.stderr.replace("nobody hears", "")


def test_an_error_nobody_waited_for_is_printed_when_the_engine_closes(capsys):
    with Engine() as engine:
        engine.push(fail, name="lonely")
    printed = capsys.readouterr().err
    assert "nobody waited for" in printed
    assert "the task lonely failed" in printed
    assert "ZeroDivisionError: no luck" in printed


def test_a_failure_reaches_nobody_through_a_variable_that_only_orders(make):
    engine, x, y, order, ran = make(), Var("x"), Var("y"), Var("order", only_orders=True), []
    push(engine, fail, writes=[x, order])
    push(engine, lambda: ran.append("after"), reads=[order], writes=[y])
    engine.wait(y)
    assert ran == ["after"]
    with pytest.raises(ExecutionError):
        engine.wait(x)


def test_a_skipped_change_keeps_its_variable_until_somebody_was_told():
    with Engine() as engine:
        lost, changed, made = Var(), Var(), Var()
        engine.push(fail, writes=(lost,))
        engine.push(lambda: None, reads=(lost, changed), writes=(changed, made))
        for _ in range(2):
            with pytest.raises(ExecutionError):
                engine.wait(changed)
        engine.failures.recover()
        engine.wait(changed)
        for variable in (lost, made):
            with pytest.raises(ExecutionError):
                engine.wait(variable)


def test_a_change_of_what_was_never_written_keeps_nothing():
    with Engine() as engine:
        lost = Var()
        engine.push(fail, writes=(lost,))
        engine.push(lambda: None, reads=(lost,), writes=(lost,))
        with pytest.raises(ExecutionError):
            engine.wait(lost)
        engine.failures.recover()
        with pytest.raises(ExecutionError):
            engine.wait(lost)


def test_a_task_that_looks_for_failures_itself_is_not_skipped_and_says_what_it_lost():
    class Selective:
        def __init__(self):
            self.calls = []

        def __call__(self):
            self.calls.append("as usual")

        def among_failures(self):
            self.calls.append("among failures")
            raise PartialFailure([Damage(lost.failure, (spoiled,)), Damage(KeyError("mine"), (own,), title="second")])

    with Engine() as engine:
        lost, fine, spoiled, own = Var(), Var(), Var(), Var()
        task = Selective()
        engine.push(task, writes=(fine,))
        engine.wait(fine)
        engine.push(fail, writes=(lost,))
        engine.push(task, reads=(lost,), writes=(fine, spoiled, own))
        engine.wait(fine)
        with pytest.raises(ExecutionError, match="fail"):
            engine.wait(spoiled)
        with pytest.raises(KeyError, match="the task second failed"):
            engine.wait(own)
        assert task.calls == ["as usual", "among failures"]
