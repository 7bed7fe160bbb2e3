"""Push work to Weft's engine with the variables it reads and writes, and wait as MXNet does: an error is told once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch

from weft.config import asks_for_naive_engine
from weft.engine import Engine, Placement, Var
from weft.errors import ExecutionError
from weft.lazy_tensors.session import SESSION
from weft.lazy_tensors.tasks import engine
from weft.mx.base.context import Context
from weft.mx.base.errors import as_mxnet_error
from weft.runtime.process_memory import keep_freed_memory

_LANE = Placement("cpu")
_generators: dict[Context, torch.Generator] = {}
_base = [torch.initial_seed() % 2**62]
_SEEDING = threading.Lock()  # On the other side: a thread that draws or seeds; it waits for nothing while it has this.
_bulk = [15]
WATCH: list[Callable[[Callable[[], object], str], Callable[[], object]] | None] = [
    None
]  # what is given each task that is queued
NAIVE = [asks_for_naive_engine()]  # whether each operator runs at its call, and raises there


def push(task: Callable[[], object], reads: Sequence[Var], writes: Sequence[Var], name: str) -> None:
    """Queue a task. What it writes it also reads: MXNet skips a write into an array that a failure spoilt."""
    keep_freed_memory()
    if WATCH[0] is not None:
        task = WATCH[0](task, name)
    try:
        engine().push(task, (*reads, *writes), writes, _LANE, name)
    except ExecutionError as error:  # the engine to debug with has run it
        engine().failures.heal(writes)
        raise as_mxnet_error(error) from error.__cause__
    if NAIVE[0]:
        wait(*writes)


def push_cheap(task: Callable[[], object], reads: Sequence[Var], writes: Sequence[Var], name: str) -> None:
    """Run a task that is known to be cheap here, if nothing is queued, else queue it; who waits is told if it fails."""
    runner = engine()
    if not isinstance(runner, Engine) or WATCH[0] is not None or not runner.is_quiet() or not runner.take_turn():
        push(task, reads, writes, name)
        return
    try:
        is_here = runner.is_quiet()
        if is_here:
            runner.perform_here(task, lambda: writes, name)
    finally:
        runner.give_turn_back()
    if not is_here:
        push(task, reads, writes, name)
    elif NAIVE[0]:
        wait(*writes)


def watch_tasks(watch: Callable[[Callable[[], object], str], Callable[[], object]] | None) -> None:
    """Let a function be given each task, and its name, that is queued from now on; what it gives is queued."""
    WATCH[0] = watch


def wait(*variables: Var) -> None:
    """Wait until arrays have their elements; raise, once, what kept them from having them."""
    try:
        engine().wait(*variables, errors="once")
    except ExecutionError as error:
        raise as_mxnet_error(error) from error.__cause__


def waitall() -> None:
    """Wait for all that is queued; raise the first failure, and forget all."""
    SESSION.flush_all()
    try:
        engine().waitall(errors="once")
    except ExecutionError as error:
        raise as_mxnet_error(error) from error.__cause__


def random_state(context: Context) -> Var:
    """What orders the random operators of a context.

    Its generator is made now, by the thread that queues: made by the task that first draws, it would not be there yet
    when the next seed asks which generators there are.
    """
    generator_of(context)
    return engine().random_state(f"mx {context}")


def generator_of(context: Context) -> torch.Generator:
    """The random numbers of a context."""
    found = _generators.get(context)
    if found is None:
        with _SEEDING:
            found = _generators.get(context)
            if found is None:
                found = torch.Generator(context.torch_device)
                found.manual_seed(_base[0] + context.device_id)
                _generators[context] = found
    return found


def seed(number: int, context: Context | None = None) -> None:
    """Begin the random numbers of a context, or of all, anew: a task, as draws that were queued before come first."""
    if context is None:
        with _SEEDING:
            _base[0] = number
            contexts = list(_generators)
    else:
        contexts = [context]
    for one in contexts:
        task = partial(generator_of(one).manual_seed, number + one.device_id)
        push(task, (), (random_state(one),), "seed")


def set_bulk_size(size: int) -> int:
    """Note how many operators may be one task, and give the number before: a hint, which changes no result."""
    before, _bulk[0] = _bulk[0], size
    return before


@contextmanager
def bulk(size: int) -> Iterator[None]:
    """Let up to so many operators be one task: a hint, which changes no result."""
    before = set_bulk_size(size)
    try:
        yield
    finally:
        set_bulk_size(before)
