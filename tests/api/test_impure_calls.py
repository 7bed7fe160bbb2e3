"""Calls whose answer is another one each time are refused with their line; what a context holds is compared."""

from __future__ import annotations

import contextvars
import datetime as dt
import gc
import inspect
import io
import itertools
import os
import random
import secrets
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import weft

pytestmark = pytest.mark.usefixtures("by_library")

rng, legacy, bits = np.random.default_rng(0), np.random.RandomState(0), np.random.PCG64(1)
own, system = random.Random(0), random.SystemRandom()
scale: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=1.0)
unset: contextvars.ContextVar[float] = contextvars.ContextVar("unset")
of_thread = threading.local()
of_thread.scale = 2.0
count, numbers = itertools.count(1), iter([1.0, 2.0, 3.0])
rows = (row for row in (1.0, 2.0, 3.0))
text = io.StringIO("1\n2\n3\n")


def draws_twice(x: torch.Tensor) -> torch.Tensor:
    return x + rng.integers(10) + rng.random()


def by_a_helper(x: torch.Tensor) -> torch.Tensor:
    return x + drawn()


def drawn() -> float:
    return float(legacy.rand(3)[0])


def decides(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if own.random() < 0.5 else x


def loops(x: torch.Tensor) -> torch.Tensor:
    for number in numbers:
        return x + number
    return x


REFUSED = {
    "a generator of NumPy": (lambda x: x + float(rng.normal(size=1)[0]), "normal"),
    "two draws": (draws_twice, "rng.integers"),
    "an old generator of NumPy": (by_a_helper, "legacy.rand(3)"),
    "the bits of a generator": (lambda x: x + int(np.random.Generator(bits).integers(100)), "bits"),
    "a choice": (lambda x: x + own.choice([1, 2]), "choice"),
    "a branch": (decides, "own.random() < 0.5"),
    "a shuffled list": (lambda x: x + own.sample([1, 2, 3], 2)[0], "sample"),
    "the system's": (lambda x: x + system.random(), "system.random"),
    "secrets": (lambda x: x + secrets.randbelow(100), "randbelow"),
    "a token": (lambda x: x + secrets.token_bytes(1)[0], "token_bytes"),
    "bytes of the system": (lambda x: x + os.urandom(1)[0], "urandom"),
    "a number for a name": (lambda x: x + uuid.uuid4().int % 7, "uuid4"),
    "a new generator of NumPy": (lambda x: x + float(np.random.default_rng().normal()), "default_rng()"),
    "a new old one": (lambda x: x + float(np.random.RandomState().rand()), "RandomState()"),
    "a new generator of Python": (lambda x: x + random.Random().random(), "random.Random()"),
    "a clock": (lambda x: x + time.time(), "time.time()"),
    "text that is run": (lambda x: x + eval("scale.get()"), "eval"),
    "a stop watch": (lambda x: x + time.perf_counter(), "perf_counter"),
    "nanoseconds": (lambda x: x + time.monotonic_ns(), "monotonic_ns"),
    "now": (lambda x: x + dt.datetime.now(dt.UTC).microsecond, "now"),
    "today": (lambda x: x + dt.date.today().day, "today"),  # noqa: DTZ011
    "the process": (lambda x: x + os.getpid(), "getpid"),
    "a file": (lambda x: x + len(Path(__file__).read_text()), "read_text"),
    "a file that is opened": (lambda x: x + len(open(__file__, "rb").read()), "open(__file__"),  # noqa: SIM115, PTH123
    "a count": (lambda x: x + next(count), "next(count)"),
    "an iterator": (lambda x: x + next(numbers), "next(numbers)"),
    "a loop over an iterator": (loops, "for number in numbers"),
    "a generator function": (lambda x: x + sum(rows), "sum(rows)"),
    "pairs": (lambda x: x + sum(a * b for a, b in zip(count, [1.0], strict=False)), "zip(count"),
    "lines of a file": (lambda x: x + float(text.readline()), "readline"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_its_line_and_nothing_has_been_drawn(name: str) -> None:
    function, shown = REFUSED[name]
    before = (rng.bit_generator.state, own.getstate(), repr(count), text.tell(), bits.state)
    with pytest.raises(weft.UnsupportedError) as caught:
        weft.hybridize(function)(torch.zeros(2))
    assert shown in str(caught.value.where)
    assert inspect.getsourcefile(test_it_is_refused_with_its_line_and_nothing_has_been_drawn) is not None
    assert (rng.bit_generator.state, own.getstate(), repr(count), text.tell(), bits.state) == before


def test_with_a_fallback_each_call_draws_as_eager_does() -> None:
    ours, theirs = (np.random.default_rng(3) for _ in range(2))
    hybrid = weft.hybridize(lambda x: x + float(ours.normal(size=1)[0]), fallback="eager")
    with pytest.warns(UserWarning, match="runs imperatively"):
        found = [hybrid(torch.zeros(1, dtype=torch.float64)).item()]
    found += [hybrid(torch.zeros(1, dtype=torch.float64)).item() for _ in range(2)]
    assert found == [theirs.normal(size=1)[0] for _ in range(3)]


@pytest.mark.parametrize("way", ["argument", "attribute"])
def test_generators_and_iterators_that_are_given_are_refused_too(way: str) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rng, self.numbers = np.random.default_rng(1), iter([1.0, 2.0])

        def forward(self, x: torch.Tensor, source: Any = None, drawn: bool = True) -> torch.Tensor:
            if drawn:
                return x + float((source or self.rng).normal(size=1)[0])
            return x + next(source or self.numbers)

    net = weft.hybridize(Noisy())
    source, items = (np.random.default_rng(2), iter([3.0, 4.0])) if way == "argument" else (None, None)
    for given, drawn in ((source, True), (items, False)):
        with pytest.raises(weft.UnsupportedError):
            net(torch.zeros(1), given, drawn)
    assert next(items or net.numbers) == (3.0 if items else 1.0)


def test_what_is_seeded_or_made_inside_is_the_same_at_each_call() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        numbers, order = iter([1.0, 2.0]), random.Random(5).sample(range(9), 3)
        noise = np.random.default_rng(3).normal() + np.random.Generator(np.random.PCG64(4)).random()
        return x * next(numbers) + float(noise) + order[0] + sum(itertools.islice(itertools.count(), 3))

    hybrid = weft.hybridize(function)
    for _ in range(3):
        torch.testing.assert_close(hybrid(torch.ones(2)), function(torch.ones(2)))
    assert hybrid.traces == 1


def test_generators_that_are_there_and_not_used_are_no_obstacle() -> None:
    class Augments(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rng, self.order = np.random.default_rng(1), iter(range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + float(self.rng.normal()) + next(self.order) if self.training else x * 2

    net = weft.hybridize(Augments().eval())
    assert net(torch.ones(1)).item() == 2


def test_what_a_context_variable_holds_is_compared() -> None:
    hybrid = weft.hybridize(lambda x: x * scale.get() + unset.get(0.0))
    for value in (None, 5.0, 5.0, 1.0, 7.0):
        if value is not None:
            scale.set(value)
        assert hybrid(torch.ones(1)).item() == scale.get()
    token = unset.set(3.0)
    assert hybrid(torch.ones(1)).item() == scale.get() + 3
    unset.reset(token)
    assert hybrid(torch.ones(1)).item() == scale.get()
    context = contextvars.copy_context()
    context.run(scale.set, 100.0)
    assert context.run(hybrid, torch.ones(1)).item() == 100
    assert hybrid(torch.ones(1)).item() == scale.get()


def test_a_context_variable_that_is_set_is_set_at_each_call() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        scale.set(9.0)
        return x * scale.get()

    hybrid = weft.hybridize(function)
    for before in (1.0, 2.0, 1.0):
        scale.set(before)
        assert hybrid(torch.ones(1)).item() == 9
        assert scale.get() == 9


def test_each_thread_has_its_own_attributes_of_a_thread() -> None:
    hybrid, found = weft.hybridize(lambda x: x * of_thread.scale), []

    def other(value: float) -> None:
        of_thread.scale = value
        found.append(hybrid(torch.ones(1)).item())

    assert hybrid(torch.ones(1)).item() == 2
    for value in (3.0, 5.0):
        thread = threading.Thread(target=other, args=(value,))
        thread.start()
        thread.join(30)
    assert found == [3, 5]
    assert hybrid(torch.ones(1)).item() == 2


def test_logs_and_warnings_may_ask_for_the_time(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    def function(x: torch.Tensor) -> torch.Tensor:
        import statistics

        logging.getLogger("of a test").warning("at %s", "now")
        return x * statistics.mean([1, 3])

    function.now = time  # type: ignore[attr-defined]
    assert weft.hybridize(function)(torch.ones(1)).item() == 2
    assert "at now" in caplog.text


def test_a_step_refuses_a_loss_that_draws_and_trains_nothing() -> None:
    net = nn.Linear(2, 1)
    before = net.weight.detach().clone()
    loss = lambda out, y: ((out - y) ** 2).mean() * float(rng.random(1)[0])  # noqa: E731
    with pytest.raises(weft.UnsupportedError, match="draws random numbers in Python"):
        weft.step(net, loss, torch.optim.SGD(net.parameters(), 0.1))(torch.ones(3, 2), torch.ones(3, 1))
    assert torch.equal(net.weight, before)


def test_what_the_collector_of_garbage_calls_is_none_of_the_program_s() -> None:
    asked: list[float] = []

    def told(phase: str, info: dict[str, int]) -> None:
        del phase, info
        asked.append(time.perf_counter())

    def function(x: torch.Tensor) -> torch.Tensor:
        gc.collect(0)
        return x * 2 if x.dim() else x * time.perf_counter()

    gc.callbacks.append(told)
    try:
        assert torch.equal(weft.hybridize(function, whole=True)(torch.ones(3)), torch.full((3,), 2.0))
    finally:
        gc.callbacks.remove(told)
    assert asked


def test_the_environment_is_a_fact_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SCALE", "2")
    function = weft.hybridize(lambda x: x * float(os.environ.get("A_SCALE", "1")), whole=True)
    for scale in (2, 2, 3, 2):
        monkeypatch.setenv("A_SCALE", str(scale))
        assert torch.equal(function(torch.ones(3)), torch.full((3,), float(scale)))
    monkeypatch.delenv("A_SCALE")
    assert torch.equal(function(torch.ones(3)), torch.ones(3))
