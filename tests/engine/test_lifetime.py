"""Forks, interrupts and the end of the process."""

import _thread
import gc
import os
import signal
import threading
import traceback
import weakref

import pytest
from tests.engine.programs import run_program

from weft.engine import Engine, SerialEngine, Var
from weft.errors import ExecutionError

PATIENCE = 20

# Python 3.12 and later warn of every fork with threads; that it is safe for the engine is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def in_child(check):
    """Run a check in a forked child; give the text of what it raises, or ""."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            check()
        except BaseException:  # noqa: BLE001  # the parent judges it
            text = traceback.format_exc()
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def send_interrupt(thread, caught):
    """Send SIGINT until it is caught: Python misses one that comes in the instant before a lock blocks."""
    signal.pthread_kill(thread, signal.SIGINT)
    while not caught.wait(2):
        signal.pthread_kill(thread, signal.SIGINT)


@pytest.fixture
def busy():
    """An engine with one task running, three queued behind it, and the event that lets them go."""
    with Engine({"cpu": 1, "copy": 1}) as engine:
        started, go = threading.Event(), threading.Event()
        engine.x, engine.y, engine.ran = Var("x"), Var("y"), []
        engine.push(lambda: (started.set(), go.wait(PATIENCE)), writes=[engine.x])
        engine.push(lambda: engine.ran.append("reader"), reads=[engine.x], writes=[engine.y])
        engine.push(lambda: engine.ran.append("lane"), device="cpu:0")
        engine.push(lambda: engine.ran.append("copy"), reads=[engine.y], device="copy")
        assert started.wait(PATIENCE)
        engine.go = go
        yield engine
        go.set()


def test_a_child_does_not_inherit_queued_work_and_can_use_its_engine(busy):
    def check():
        assert busy.statistics().in_flight == 0
        z, order = Var("z"), []
        busy.push(lambda: order.append(1), writes=[z])
        busy.push(lambda: order.append(2), reads=[z], device="copy")
        busy.waitall()
        assert order == [1, 2]
        assert busy.ran == []

    assert in_child(check) == ""


def test_in_the_child_what_the_parent_was_computing_is_poisoned(busy):
    def check():
        for variable in (busy.x, busy.y, busy.x):
            with pytest.raises(ExecutionError, match="runs in the parent only"):
                busy.wait(variable)
        z = Var("z")
        busy.push(lambda: None, reads=[busy.y], writes=[z])
        with pytest.raises(ExecutionError, match="runs in the parent only"):
            busy.wait(z)
        busy.push(lambda: None, writes=[busy.x])
        busy.push(lambda: None, writes=[busy.y])
        busy.wait(busy.x, busy.y)

    assert in_child(check) == ""


def test_in_the_child_a_task_that_reads_an_unfinished_variable_is_skipped_before_anybody_waits(busy):
    def check():
        z, ran = Var("z"), []
        busy.push(lambda: ran.append(1), reads=[busy.x], writes=[z])
        with pytest.raises(ExecutionError, match="runs in the parent only"):
            busy.wait(z)
        assert ran == []

    assert in_child(check) == ""


def test_the_parent_goes_on_after_a_fork(busy):
    assert in_child(lambda: None) == ""
    busy.go.set()
    busy.waitall()
    assert sorted(busy.ran) == ["copy", "lane", "reader"]


def test_forking_while_tasks_run_and_are_pushed_is_safe():
    with Engine({"cpu": 2}) as engine:
        x, stop = Var("x"), threading.Event()

        def pusher():
            while not stop.is_set():
                engine.push(lambda: None, writes=[x])
                engine.push(lambda: None, reads=[x])

        engine.limit(tasks=100)
        thread = threading.Thread(target=pusher)
        thread.start()

        def check():
            y = Var("y")
            engine.push(lambda: None, writes=[y])
            engine.wait(y)
            engine.waitall()

        texts = [in_child(check) for _ in range(10)]
        stop.set()
        thread.join(PATIENCE)
        assert texts == [""] * 10


def test_a_task_may_fork():
    with Engine() as engine:
        texts = []

        def check():
            y = Var("y")
            engine.push(lambda: None, writes=[y])
            engine.wait(y)

        engine.push(lambda: texts.append(in_child(check)))
        engine.waitall()
        assert texts == [""]


def test_the_serial_engine_works_in_a_child():
    with SerialEngine() as engine:
        ran = []
        assert in_child(lambda: (engine.push(lambda: ran.append(1)), engine.waitall())) == ""
        engine.push(lambda: ran.append(1))
        assert ran == [1]


@pytest.mark.parametrize("wait", ["wait", "waitall"])
def test_an_interrupt_ends_a_wait_and_the_engine_goes_on(busy, wait):
    main, caught = threading.main_thread().ident, threading.Event()

    def interrupt():
        while not busy.blocked_waits:
            pass  # until the main thread waits
        send_interrupt(main, caught)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        busy.wait(busy.x) if wait == "wait" else busy.waitall()
    caught.set()
    thread.join(PATIENCE)
    busy.go.set()
    busy.wait(busy.x)
    busy.waitall()
    assert sorted(busy.ran) == ["copy", "lane", "reader"]


def test_an_interrupt_ends_a_push_that_waits_for_room():
    with Engine() as engine:
        engine.limit(tasks=1)
        go, x = threading.Event(), Var("x")
        engine.push(lambda: go.wait(PATIENCE), writes=[x])
        main, caught = threading.main_thread().ident, threading.Event()

        def interrupt():
            while not engine.limits.gates:
                pass
            send_interrupt(main, caught)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            engine.push(lambda: None)
        caught.set()
        thread.join(PATIENCE)
        go.set()
        engine.waitall()
        engine.push(lambda: None)
        engine.waitall()
        assert engine.statistics().pushed == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see `_interrupt_soon`
def test_interrupts_anywhere_in_pushing_leave_the_engine_consistent():
    with Engine({"cpu": 2}) as engine:
        x, counts = Var("x"), {"ran": 0}

        def add_one():
            counts["ran"] += 1

        for _ in range(60):
            stop = threading.Event()
            thread = threading.Thread(target=_interrupt_soon, args=(stop, counts["ran"] % 50))
            try:
                thread.start()
                while True:
                    engine.push(add_one, reads=[x], writes=[x])
            except KeyboardInterrupt:
                stop.set()
            thread.join(PATIENCE)
        engine.waitall()
        assert counts["ran"] == engine.statistics().pushed == engine.statistics().done


def _interrupt_soon(stop, rounds):
    """Interrupt, and again where Python dropped it: what a callback of the garbage collector raises goes nowhere."""
    for _ in range(rounds * 100):
        stop.is_set()
    _thread.interrupt_main()
    while not stop.wait(1):
        _thread.interrupt_main()


def test_an_engine_nobody_holds_is_collected_once_its_threads_are_gone():
    engine = Engine()
    engine.push(lambda: None)
    engine.close()
    reference = weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None


PROGRAM = """
from weft.engine import Engine, Var
engine, x = Engine({"cpu": 2}), Var("x")
for number in range(200):
    engine.push(lambda number=number: print(number) if number == 199 else None, writes=[x])
"""


@pytest.mark.slow
def test_the_end_of_the_program_finishes_what_is_queued():
    program = run_program(PROGRAM)
    assert program.stdout == "199\n"
    assert program.stderr == ""
