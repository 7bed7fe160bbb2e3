"""Run a function for each device at the same time: a thread a device, with its share of the cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

import torch

from weft.api.thread_modes import ThreadModes, same_modes, thread_modes
from weft.devices import Device, cpu_count
from weft.errors import OutOfMemoryError
from weft.lazy_tensors.tasks import operator_cores
from weft.worker_threads import WorkerThreads, is_ending

Result = TypeVar("Result")

# Held to make the pool once. On the other side: another thread's first use; making it waits for nothing.
_lock = threading.Lock()
_pools: dict[int, WorkerThreads] = {}


def run_on(functions: Sequence[Callable[[], Result]], places: Sequence[Device]) -> list[Result]:
    """Call each function in the thread of its device, in the caller's modes; raise the first error, in their order."""
    if len(functions) <= 1:
        return [function() for function in functions]
    modes = thread_modes()
    share = max(1, cpu_count() // max(1, sum(place.kind == "cpu" for place in places)))
    pool = _pool(len(functions))
    futures = [
        pool.submit(_run, function, place, share, modes) for function, place in zip(functions, places, strict=True)
    ]
    # All are waited for, also after an error: none may go on in the background with tensors of the caller.
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None:
            raise error
    return [future.result() for future in futures]


def _pool(count: int) -> WorkerThreads:
    with _lock:
        if count not in _pools:
            _pools[count] = _started(count)
        return _pools[count]


def _started(count: int) -> WorkerThreads:
    """Start all threads of a pool at once: the work of devices waits for one another, without end for one not there."""
    pool, all_of_them = WorkerThreads(count, thread_name_prefix="weft-device"), threading.Barrier(count)
    if is_ending():  # no thread is started any more: the caller does the work
        return pool
    try:
        started = [pool.submit(all_of_them.wait) for _ in range(count)]
    except OutOfMemoryError:
        all_of_them.abort()
        pool.shutdown(wait=False)
        raise
    for one in started:
        one.result()
    return pool


def _run(function: Callable[[], Result], place: Device, share: int, modes: ThreadModes) -> Result:
    with ExitStack() as stack:
        stack.enter_context(same_modes(modes))
        if place.kind == "cpu":
            stack.enter_context(operator_cores(share))
        else:
            stack.enter_context(torch.cuda.device(place.torch_device))
        return function()


def finish(place: Device) -> None:
    """Wait for what a device was given; on the CPU it is done when the call returns."""
    if place.kind == "cuda":
        torch.cuda.synchronize(place.torch_device)
