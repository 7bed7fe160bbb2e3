"""Behaviour of what ranks say of themselves, and of who is silent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from weft.train.processes.rank_watch import BUSY_SILENCE, SILENCE, Sign, is_gone, silent, this_machine

LONG = SILENCE + 1


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield started
    started.kill()
    started.wait()


def sign_of(process: subprocess.Popen[bytes]) -> Sign:
    return Sign(process=process.pid, machine=this_machine())


def test_a_busy_process_of_this_machine_is_not_gone(process) -> None:
    assert not is_gone(sign_of(process), LONG)
    assert is_gone(sign_of(process), BUSY_SILENCE + 1)
    assert "runs, but has given no sign of life for 60 seconds" in silent(1, sign_of(process)).reason


def test_a_stopped_process_is_gone(process) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    limit = time.monotonic() + 10
    while not is_gone(sign_of(process), LONG):
        assert time.monotonic() < limit
    assert not is_gone(sign_of(process), SILENCE / 2)


def test_a_killed_process_is_gone_before_and_after_somebody_waits_for_it(process) -> None:
    process.kill()
    limit = time.monotonic() + 10
    while not is_gone(sign_of(process), LONG):
        assert time.monotonic() < limit
    process.wait()
    assert is_gone(sign_of(process), LONG)


def test_of_another_machine_silence_is_all_that_is_known(process) -> None:
    sign = sign_of(process)
    sign.machine = "another"
    assert is_gone(sign, LONG)


def test_a_rank_that_has_ended_is_gone_though_its_process_lives(process) -> None:
    sign = sign_of(process)
    sign.doing = "ended"
    assert is_gone(sign, LONG)
