"""Questions and orders to the engine, in a user's words: wait, is it ready, how much may be queued, what happened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from weft import devices
from weft.api.lazy.session import SESSION
from weft.api.lazy.tasks import engine
from weft.api.spawn import Spawned, placed, resolved
from weft.engine import Statistics, Timeline
from weft.engine.limit import Bound
from weft.errors import UsageError
from weft.files import given_file
from weft.trace.interception.capture import without_functions


def wait(thing: Any) -> Any:
    """Wait until a tensor, or those in nested lists, tuples and dicts, are computed; gives the ordinary tensors."""
    with without_functions():
        return SESSION.settled(resolved(thing))


def waitall() -> None:
    """Wait for everything that is queued, on all devices; raise the first failure, naming the others."""
    with without_functions():
        SESSION.waitall()


def ready(tensor: torch.Tensor | Spawned) -> bool:
    """Tell whether looking at a tensor, or at what was spawned, would not wait."""
    if isinstance(tensor, Spawned):
        return tensor.ready()
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(
            f"weft.ready was given a {type(tensor).__name__}",
            fix="give it a tensor, or what weft.spawn gave: all(map(weft.ready, tensors)) for several",
        )
    with without_functions():
        return SESSION.ready(tensor)


def limit(bytes: Bound = None, tasks: Bound = None) -> None:  # noqa: A002  # the public name
    """Bound what may be queued; past it, whoever queues more waits. None leaves a bound as it is.

    At first it is a quarter of memory and 65,536 tasks; `limit(bytes="default", tasks="default")` goes back to that.
    """
    engine().limit(bytes=bytes, tasks=tasks)


def engine_statistics() -> Statistics:
    """Count what the engine did so far."""
    return engine().statistics()


def trace_to(path: str | os.PathLike[str]) -> Timeline:
    """Record every task from now on; closing what this gives, or the end of the process, writes the file.

    To close it, also as a `with` block, waits for what is queued.
    """
    return engine().trace_to(given_file(path, "trace_to", 'weft.trace_to("tasks.json.gz")'), SESSION.finish)


@contextmanager
def on(device: str | torch.device | devices.Device) -> Iterator[devices.Device]:
    """Place the work of a block on a device by hand: `with weft.on("cpu:1"):`."""
    SESSION.end_recording()
    try:
        with devices.on(device) as place, placed(str(place)):
            yield place
    finally:
        SESSION.end_recording()
