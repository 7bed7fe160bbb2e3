"""Lanes of the main thread's calls run on the threads of PyTorch's operators."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator

import pytest
import torch
from tests.runtime.plans import TARGET, chain_plan

from weft.codegen.threads.backoff import USUAL, WORDS
from weft.codegen.threads.layout import ASLEEP, RETURNED_OFFSET, STATE_OFFSET, mailbox_offset
from weft.codegen.threads.workers import BACKOFF_SLOT
from weft.runtime import lanes
from weft.runtime.executable import NativeExecutable
from weft.runtime.lanes import openmp_functions

SIZE = 7777
WORKERS = 3
pytestmark = pytest.mark.skipif(not openmp_functions(), reason="PyTorch has no OpenMP of GNU's kind")


@pytest.fixture(autouse=True)
def crew() -> Iterator[None]:
    """Have a crew of three, asleep, and OpenMP's threads as they were afterwards."""
    threads = torch.get_num_threads()
    lanes.stop_crew()
    lanes.start_crew(WORKERS)
    while any(word(number, STATE_OFFSET, 4) != ASLEEP for number in range(WORKERS)):
        threading.Event().wait(0.001)
    yield
    lanes.stop_crew()
    torch.set_num_threads(threads)


def program(count: int) -> NativeExecutable:
    return NativeExecutable(chain_plan(SIZE, "exp", "sin", lanes=count, repeat=3), TARGET)


def expected(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(SIZE)
    NativeExecutable(chain_plan(SIZE, "exp", "sin", repeat=3), TARGET)([x], [out])
    return out


def word(worker: int, offset: int, size: int) -> int:
    start = mailbox_offset(worker) + offset
    return int.from_bytes(lanes._crew.memory[start : start + size], "little")


def returned() -> list[int]:
    """How many functions each worker has returned from."""
    return [word(number, RETURNED_OFFSET, 8) for number in range(WORKERS)]


def call_until_workers_answer(run: NativeExecutable, x: torch.Tensor, out: torch.Tensor) -> None:
    """Call a program as if it were new: on a busy machine workers may be too late for the first calls."""
    assert run._program is not None
    for _ in range(2000):
        run([x], [out])
        if any(returned()):
            return
        for number in range(WORDS):
            run._program[BACKOFF_SLOT + number] = 0


def ran_on_lanes(run: NativeExecutable) -> bool:
    assert run._program is not None
    return run._program[BACKOFF_SLOT + USUAL] > 0


@pytest.mark.parametrize(("threads", "count"), [(2, 2), (3, 2), (4, 4)])
def test_a_large_enough_team_runs_all_lanes(threads: int, count: int) -> None:
    torch.set_num_threads(threads)
    run, x, out = program(count), torch.randn(SIZE), torch.empty(SIZE)
    run([x], [out])
    assert torch.equal(out, expected(x))
    assert ran_on_lanes(run)
    assert returned() == [0] * WORKERS


def test_workers_run_more_lanes_than_the_team_has_threads() -> None:
    torch.set_num_threads(2)
    run, x, out = program(3), torch.randn(SIZE), torch.empty(SIZE)
    call_until_workers_answer(run, x, out)
    assert torch.equal(out, expected(x))
    assert returned() == [1, 1, 0]


def test_workers_run_the_lanes_of_other_threads() -> None:
    torch.set_num_threads(2)
    run, x, out = program(2), torch.randn(SIZE), torch.empty(SIZE)
    thread = threading.Thread(target=call_until_workers_answer, args=(run, x, out))
    thread.start()
    thread.join(30)
    assert torch.equal(out, expected(x))
    assert returned() == [1, 0, 0]


def test_operators_and_programs_share_a_team_again_and_again() -> None:
    torch.set_num_threads(2)
    x, out = torch.randn(SIZE), torch.empty(SIZE)
    right, large = expected(x), torch.randn(200_000)
    for _ in range(20):
        run = program(2)  # a program that is new is not short yet
        total = large.exp().sum()
        run([x], [out.zero_()])
        assert torch.equal(out, right)
        assert torch.equal(large.exp().sum(), total)


def test_callers_of_several_threads_get_the_bits_of_one_lane() -> None:
    torch.set_num_threads(3)
    x = torch.randn(SIZE)
    right, wrong = expected(x), []

    def work() -> None:
        for count in (2, 3, 2, 3):
            run, out = program(count), torch.empty(SIZE)
            for _ in range(20):
                run([x], [out.zero_()])
                if not torch.equal(out, right):
                    wrong.append(count)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def _in_child(
    run: NativeExecutable, x: torch.Tensor, right: torch.Tensor, answers: multiprocessing.Queue[bool]
) -> None:
    out = torch.empty(SIZE)
    run([x], [out])
    answers.put(torch.equal(out, right))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_leaves_openmp_alone() -> None:
    torch.set_num_threads(2)
    run, x, out = program(2), torch.randn(SIZE), torch.empty(SIZE)
    run([x], [out])
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[bool] = context.Queue()
    child = context.Process(target=_in_child, args=(program(2), x, out, answers))
    child.start()
    assert answers.get(timeout=30)
    child.join(30)
    assert child.exitcode == 0
