"""This machine is measured quickly, and what is measured is plausible, also beside others."""

import ctypes
import os
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import chain, cycle, repeat
from time import process_time
from typing import Any

import pytest

from weft.codegen.measure_module import can_flush, measure_module
from weft.plan.schedule.cost import MachineModel
from weft.runtime import measure
from weft.runtime.arena import ArenaBlock
from weft.runtime.measure import HANDED_BYTES, measure_machine
from weft.runtime.shared_code import shared_library
from weft.target import host_target


def test_a_machine_is_measured_in_under_a_second() -> None:
    begin = process_time()
    model = measure_machine(host_target())
    assert process_time() - begin < 1
    assert all(getattr(model, field.name) > 0 for field in fields(MachineModel))
    assert 1e9 < model.multiply_adds < 1e13
    assert model.memory < model.l1
    assert 1e-9 <= model.wait <= 1e-5


@pytest.mark.skipif(not can_flush(host_target()), reason="programs cannot put memory out of this machine's caches")
def test_what_was_flushed_is_in_no_cache() -> None:
    functions, size = measure._functions(shared_library(measure_module)), 512 * 1024
    block = ArenaBlock(size)
    ctypes.memset(block.address, 1, size)  # memory that nobody has written is all one page
    read = measure._sweep(functions, block, size, 1)
    warm = measure._best(read)
    assert measure._fastest(read, 5, lambda: functions["flush"](block.address, size)) > 1.3 * warm


def test_what_another_core_has_written_comes_as_fast_as_a_hand_over_with_it_takes_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "_hand_over", lambda _, __, size: 0.1e-6 + 0.5 * size / 11e9)
    model = measure_machine(replace(host_target(), cores=2))
    assert model.wait == pytest.approx(0.1e-6)
    assert model.transfer == pytest.approx(11e9)
    monkeypatch.setattr(measure, "_hand_over", lambda _, __, size: 0.1e-6)
    model = measure_machine(replace(host_target(), cores=2))
    assert model.transfer == model.l3


class Clock:
    """A clock that goes on by what hand-overs take."""

    def __init__(self, spans: Iterator[float]) -> None:
        self.now = 0.0
        self.spans = spans
        self.spoken: list[range] = []

    def ping(self, _own: object, _other: object, first: int, last: int, *_: object) -> None:
        self.spoken.append(range(first, last))
        self.now += 2 * measure.HANDOVERS * next(self.spans)


def hand_over(spans: Iterator[float], monkeypatch: pytest.MonkeyPatch) -> tuple[float, Clock]:
    clock = Clock(spans)
    monkeypatch.setattr(measure, "perf_counter", lambda: clock.now)
    functions: dict[str, Any] = {"ping": clock.ping, "pong": lambda *_: None}
    return measure._hand_over(functions, ArenaBlock(HANDED_BYTES), HANDED_BYTES), clock


def test_a_hand_over_that_nobody_disturbs_is_known_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    found, clock = hand_over(repeat(2e-6), monkeypatch)
    assert found == pytest.approx(2e-6)
    assert clock.now < 2 * measure.LONGEST_HAND_OVER
    assert [one.stop for one in clock.spoken[:-1]] == [one.start for one in clock.spoken[1:]]  # as both sides count


def test_spans_in_which_threads_shared_a_core_tell_nothing_and_more_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = chain([5e-5] * 40, cycle([5e-5, 5e-5, 5e-5, 1e-7, 4e-7, 1.05e-7]))
    found, clock = hand_over(spans, monkeypatch)
    assert found == pytest.approx(1e-7)
    assert measure.LONGEST_HAND_OVER < clock.now <= measure.LONGEST_PATIENCE


def test_where_nothing_tells_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    found, clock = hand_over(repeat(5e-5), monkeypatch)
    assert found == pytest.approx(5e-5)
    longest_round = measure.MANY_SPANS * 2 * measure.HANDOVERS * 5e-5
    assert clock.now <= measure.LONGEST_PATIENCE + longest_round


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="threads cannot be put on cores here")
def test_a_thread_may_run_where_it_could_before_it_was_kept_apart() -> None:
    before = os.sched_getaffinity(0)
    with measure._kept_apart() as elsewhere:
        assert (elsewhere is None) == (len(before) < 2)
    assert os.sched_getaffinity(0) == before
