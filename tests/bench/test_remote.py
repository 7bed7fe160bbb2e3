"""A contestant's own process: it answers, runs when asked, is stopped in between, and says why it cannot run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from bench import workloads
from bench.answers import reference
from bench.contestants import by_name
from bench.job import CannotRunError
from bench.remote import Remote
from bench.worker import Task

from weft.console.bench.harness import DroppedOutError

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path: Path):
    started = []

    def make(contestant: str, workload: str) -> Remote:
        started.append(Remote(by_name(contestant), Task(contestant, workload, 1, first_setting_only=True), tmp_path))
        return started[-1]

    yield make
    for remote in started:
        remote.close()


def test_a_process_gives_the_right_answer_and_the_time_of_a_call(start) -> None:
    remote = start("eager", "fancy_func")
    prepared = remote.prepare(50.0)
    assert reference(workloads.by_name("fancy_func")).judge(prepared.answer).word == "right"
    assert prepared.setting == "all threads"
    assert 0 < remote.turn(0.01) < 1


def test_a_process_that_is_not_asked_is_stopped(start) -> None:
    remote = start("eager", "fancy_func")
    remote.prepare(50.0)
    # Asked of the kernel, which answers once it is so: a file under /proc may be read before the signal arrives.
    found = os.waitid(os.P_PID, remote.process.pid, os.WSTOPPED)
    assert found is not None
    assert found.si_status == signal.SIGSTOP
    assert remote.turn(0.01) > 0


def test_a_process_that_cannot_run_a_workload_says_why(start) -> None:
    with pytest.raises(CannotRunError, match="has no images"):
        start("channels_last", "fancy_func").prepare(50.0)


def test_a_process_that_ends_drops_out_with_a_sentence(start) -> None:
    remote = start("eager", "fancy_func")
    remote.prepare(50.0)
    remote.process.kill()
    with pytest.raises(DroppedOutError, match="its process ended"):
        remote.turn(0.01)
