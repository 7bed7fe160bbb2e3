"""Lanes run on the caller and a crew of workers, and give the bits of one lane, whatever the workers do."""

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from tests.runtime.plans import TARGET, chain_plan

from weft.runtime import lanes
from weft.runtime.executable import NativeExecutable

SIZE = 7777


@pytest.fixture(autouse=True)
def crew() -> Iterator[None]:
    """Have a crew of three, also where there are fewer cores, and the usual one afterwards."""
    lanes.stop_crew()
    lanes.start_crew(3)
    yield
    lanes.stop_crew()


def expected(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(SIZE)
    NativeExecutable(chain_plan(SIZE, "exp", "sin", repeat=3), TARGET)([x], [out])
    return out


@pytest.mark.parametrize("count", [2, 3, 4])
def test_any_number_of_lanes_gives_the_same_bits(count: int) -> None:
    run = NativeExecutable(chain_plan(SIZE, "exp", "sin", lanes=count, repeat=3), TARGET)
    x, out = torch.randn(SIZE), torch.empty(SIZE)
    right = expected(x)
    for _ in range(100):
        run([x], [out.zero_()])
        assert torch.equal(out, right)


def test_more_lanes_than_workers_run_on_the_caller_alone() -> None:
    run = NativeExecutable(chain_plan(SIZE, "exp", "sin", lanes=6, repeat=3), TARGET)
    x, out = torch.randn(SIZE), torch.empty(SIZE)
    run([x], [out])
    assert torch.equal(out, expected(x))


def test_workers_that_fell_asleep_are_woken() -> None:
    run = NativeExecutable(chain_plan(SIZE, "exp", "sin", lanes=2, repeat=3), TARGET)
    x, out = torch.randn(SIZE), torch.empty(SIZE)
    right = expected(x)
    for _ in range(5):
        run([x], [out.zero_()])
        assert torch.equal(out, right)
        threading.Event().wait(0.005)


def test_a_stopped_crew_starts_again() -> None:
    run = NativeExecutable(chain_plan(SIZE, "exp", "sin", lanes=2, repeat=3), TARGET)
    x, out = torch.randn(SIZE), torch.empty(SIZE)
    run([x], [out])
    lanes.stop_crew()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weft lane")]
    run([x], [out.zero_()])
    assert torch.equal(out, expected(x))


def test_threads_with_programs_of_several_lanes_do_not_wait_for_each_other() -> None:
    runs = [NativeExecutable(chain_plan(SIZE, "exp", "sin", lanes=count, repeat=3), TARGET) for count in (2, 3, 4)]
    x = torch.randn(SIZE)
    right, wrong = expected(x), []

    def work(run: NativeExecutable) -> None:
        out = torch.empty(SIZE)
        for _ in range(40):
            run([x], [out.zero_()])
            if not torch.equal(out, right):
                wrong.append(run)

    threads = [threading.Thread(target=work, args=(run,)) for run in runs * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def _in_child(
    run: NativeExecutable, x: torch.Tensor, right: torch.Tensor, answers: "multiprocessing.Queue[bool]"
) -> None:
    out = torch.empty(SIZE)
    run([x], [out])
    answers.put(torch.equal(out, right))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_makes_workers_of_its_own() -> None:
    run = NativeExecutable(chain_plan(SIZE, "exp", "sin", lanes=2, repeat=3), TARGET)
    x, out = torch.randn(SIZE), torch.empty(SIZE)
    run([x], [out])
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_child, args=(run, x, out, answers))
    child.start()
    assert answers.get(timeout=30)
    child.join(30)
    assert child.exitcode == 0
    run([x], [out])


@pytest.mark.slow
def test_a_process_with_workers_ends_at_once() -> None:
    program = """
import torch
from tests.runtime.plans import TARGET, chain_plan
from weft.runtime.executable import NativeExecutable
run = NativeExecutable(chain_plan(5000, "neg", "relu", lanes=2), TARGET)
out = torch.empty(5000)
run([torch.zeros(5000)], [out])
print(float(out.sum()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": "src:."},
    )
    assert done.stdout.split() == [b"0.0"]
    assert done.stderr == b""
