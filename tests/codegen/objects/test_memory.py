"""Where there is no memory, compiling and running are errors of memory: never the end of the process, never a wait."""

from __future__ import annotations

import mmap
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import weft
from weft.codegen.objects import memory
from weft.codegen.objects.compiler import assembly, object_code, object_codes, optimized_text
from weft.codegen.objects.memory import A_LETTER, A_THREAD, memory_for
from weft.errors import ExecutionError, OutOfMemoryError, memory_told
from weft.runtime.arena import ArenaBlock
from weft.runtime.lanes import LaneWorkers
from weft.target import host_target
from weft.train.devices import threads as device_threads
from weft.worker_threads import WorkerThreads

MODULE = "define void @f() {\n  ret void\n}\n"


class Limited:
    """A system that gives so many bytes to each who asks, and notes who asked."""

    def __init__(self, most: int) -> None:
        self.most, self.asked, self._map = most, [], mmap.mmap

    def __call__(self, handle: int, size: int, **how: Any) -> mmap.mmap:
        self.asked.append(size)
        if size > self.most:
            raise OSError(12, "Cannot allocate memory")
        return self._map(handle, size, **how)


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Limited:
    limit = Limited(0)
    monkeypatch.setattr(mmap, "mmap", limit)
    monkeypatch.setattr(memory, "_asked", memory._Asked())  # without what other tests' programs are being compiled
    return limit


def no_threads(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    """Let the system start so many threads, and no more."""
    start, started = threading.Thread.start, []

    def refused(thread: threading.Thread) -> None:
        if len(started) >= after:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)


def test_an_error_of_memory_is_pythons_and_wefts() -> None:
    for kind in (weft.WeftError, ExecutionError, RuntimeError, MemoryError):
        assert issubclass(OutOfMemoryError, kind)
    assert not issubclass(OutOfMemoryError, OSError)


def test_memory_is_asked_for_before_a_module_is_compiled(limited: Limited) -> None:
    with pytest.raises(OutOfMemoryError, match="no memory to compile a program: 160 MiB were asked for") as caught:
        object_code(MODULE, host_target())
    assert caught.value.why == "Cannot allocate memory"
    assert caught.value.fix
    assert limited.asked == [A_THREAD + A_LETTER * len(MODULE)]


@pytest.mark.parametrize("read", [assembly, optimized_text])
def test_memory_is_asked_for_before_code_is_read(limited: Limited, read: Callable[..., str]) -> None:
    with pytest.raises(OutOfMemoryError, match="no memory to compile a program"):
        read(MODULE, host_target())
    limited.most = 2**40
    assert "f" in read(MODULE, host_target())


def test_the_process_compiles_when_there_is_memory_again(limited: Limited) -> None:
    with pytest.raises(MemoryError):
        object_code(MODULE, host_target())
    limited.most = 2**40
    assert object_code(MODULE, host_target()).startswith(b"\x7fELF")


def test_what_is_compiled_at_the_same_time_needs_its_memory_together(limited: Limited) -> None:
    limited.most = 2 * A_THREAD
    with memory_for(0), memory_for(0), pytest.raises(OutOfMemoryError), memory_for(1):
        pass
    with memory_for(0), memory_for(0):
        assert memory._asked.size == 2 * A_THREAD
    assert memory._asked.size == 0


@pytest.mark.timeout(30)
@pytest.mark.parametrize("cores", ["1", "3"])
def test_several_modules_without_memory_are_one_error(
    cores: str, limited: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.codegen.objects.compiler.cpu_count", lambda: int(cores))
    with pytest.raises(OutOfMemoryError):
        object_codes([MODULE] * 5, host_target())


@pytest.mark.timeout(30)
@pytest.mark.parametrize("after", [0, 1])
def test_modules_are_compiled_by_as_many_threads_as_there_can_be(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.codegen.objects.compiler.cpu_count", lambda: 4)
    whole = object_code(MODULE, host_target())
    no_threads(monkeypatch, after)
    assert object_codes([MODULE] * 5, host_target()) == (whole,) * 5


def test_the_memory_of_a_call_is_no_error_of_files(limited: Limited) -> None:
    with pytest.raises(OutOfMemoryError, match="what a program computes in between: 1,048,576 bytes"):
        ArenaBlock(2**20)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("after", [0, 2])
def test_lanes_are_as_many_as_threads_can_be_started(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = LaneWorkers()
    no_threads(monkeypatch, after)
    workers.start(5)
    assert len(workers.threads) == after
    assert workers.is_ready
    workers.stop()
    assert not workers.threads


@pytest.mark.timeout(30)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_devices_whose_threads_cannot_all_be_started_are_an_error(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_threads, "_pools", {})
    with monkeypatch.context() as patch:
        no_threads(patch, after)
        with pytest.raises(OutOfMemoryError, match="no more threads can be started"):
            device_threads._pool(3)
    assert device_threads._pools == {}
    pool = device_threads._pool(3)
    assert pool.submit(int).result() == 0
    pool.shutdown()


def test_a_pool_that_cannot_start_its_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    no_threads(monkeypatch)
    with WorkerThreads(2) as pool, pytest.raises(OutOfMemoryError) as caught:
        pool.submit(int)
    assert caught.value.fix


def test_pythons_own_error_of_memory_says_what_it_was_for() -> None:
    def memory() -> torch.Tensor:
        raise MemoryError

    with pytest.raises(OutOfMemoryError, match="no memory to make a program of memory"):
        weft.hybridize(memory)()
    with pytest.raises(OutOfMemoryError, match="first"), memory_told("second"), memory_told("first"):
        raise MemoryError
    with pytest.raises(ZeroDivisionError), memory_told("x"):
        raise ZeroDivisionError


LIMITED = """
import resource, sys
import torch, weft
import weft.codegen.objects.compiler
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
x = torch.ones(4, 8)
with torch.no_grad():
    want = net(x)
    resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[1]) * 2**20, resource.RLIM_INFINITY))
    try:
        found = weft.hybridize(net)(x)
    except MemoryError:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        found = net(x)
    torch.testing.assert_close(found, want)
print("right")
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_under_any_limit_of_memory_a_first_call_is_right_or_an_error_and_the_next_one_right() -> None:
    def run(limit: int) -> str:
        command = [sys.executable, "-c", LIMITED, str(limit)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
        return f"{limit} MiB: {done.returncode} {done.stdout.strip()}"

    limits = [150, 190, 260]  # with less, Python cannot even import what PyTorch needs
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, limits)) == [f"{limit} MiB: 0 right" for limit in limits]
