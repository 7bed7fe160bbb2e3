"""When calls on lanes are made alone: after stalls, and where waking takes longer than computing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from weft.codegen.llvm.module import Module
from weft.codegen.objects.native import compile_native
from weft.codegen.threads import backoff
from weft.codegen.threads.backoff import (
    COMPARED,
    LONGEST_REST,
    REST,
    SHORTEST_REST,
    SOLO,
    UNIT,
    USUAL,
    WORDS,
    WORTH_WAKING,
    LaneBackoff,
)
from weft.target import host_target

MILLISECOND = 1_000_000


class Paced:
    """The words of one program, with each question as a function; calls of any length can be noted."""

    def __init__(self) -> None:
        module = Module(host_target())
        for name in ("rests", "short", "note", "note_alone"):
            f = module.function(name, ["ptr", "ptr"])
            memory, result = f.parameters
            written = LaneBackoff(f, memory)
            if name.startswith("note"):
                getattr(written, name)(f.binary("sub", written.now(), f.load("i64", result)))
                continue
            found = written.rests() if name == "rests" else (written.short(),)
            for place, value in enumerate(found):
                f.store(f.convert("zext", value, "i64"), f.offset(result, "i64", place))
        self.library = compile_native(module, host_target(), use_cache=False)
        self.words = (ctypes.c_int64 * WORDS)()

    def _call(self, name: str, *given: int) -> list[int]:
        function: Callable[..., None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
            self.library.address(name)
        )
        result = (ctypes.c_int64 * 2)(*given)
        function(ctypes.addressof(self.words), ctypes.addressof(result))
        return list(result)

    def call(self, nanoseconds: int) -> None:
        """A call on lanes that took so long."""
        self._call("note", nanoseconds)

    def call_alone(self, nanoseconds: int) -> None:
        """A call on the calling thread that took so long."""
        self._call("note_alone", nanoseconds)

    def rest(self) -> int:
        """Count the calls that are made alone now, the last one with an eye to the next."""
        count = 0
        while True:
            resting, last = self._call("rests")
            if not resting and not last:
                return count
            count += 1

    def short(self) -> bool:
        return bool(self._call("short")[0])


@pytest.fixture
def paced() -> Paced:
    return Paced()


def test_one_call_is_made_alone_after_the_first_that_did_not_take_very_long(paced: Paced) -> None:
    paced.call(100 * MILLISECOND)
    assert paced.rest() == 0
    paced.call(MILLISECOND)
    assert paced.rest() == COMPARED
    paced.call_alone(MILLISECOND)
    paced.call(MILLISECOND)
    assert paced.rest() == 0


def test_calls_of_usual_length_are_never_followed_by_a_rest(paced: Paced) -> None:
    paced.call(MILLISECOND)
    paced.rest()
    paced.call_alone(int(1.5 * MILLISECOND))
    for length in (1.2, 0.8, 2.5, 1.0):
        paced.call(int(length * MILLISECOND))
        assert paced.rest() == 0
    assert paced.words[USUAL] == pytest.approx(MILLISECOND, rel=0.2)


def test_a_single_stall_costs_about_half_of_itself_again(paced: Paced) -> None:
    paced.call(MILLISECOND)
    paced.call(8 * MILLISECOND)
    assert paced.rest() == pytest.approx(8 * SHORTEST_REST // UNIT, abs=1)
    assert paced.rest() == 0


def test_a_machine_that_stood_still_for_long_costs_no_long_rest(paced: Paced) -> None:
    paced.call(MILLISECOND)
    paced.call(5_000 * MILLISECOND)
    assert paced.rest() == pytest.approx(11 * SHORTEST_REST // UNIT, abs=1)


def test_rests_grow_with_every_stall_up_to_a_limit_and_shrink_with_calls_that_are_not_stalled(paced: Paced) -> None:
    paced.call(MILLISECOND)
    found = []
    for _ in range(8):
        paced.words[USUAL] = MILLISECOND
        paced.call(10 * MILLISECOND)
        found.append(paced.rest())
    assert found == sorted(found)
    assert found[-1] == pytest.approx(10 * LONGEST_REST // UNIT, abs=1)
    for _ in range(5000):
        paced.call(MILLISECOND)
    assert paced.words[REST] == SHORTEST_REST


def test_lanes_that_were_slow_from_the_first_call_rest_because_calls_alone_are_faster(paced: Paced) -> None:
    paced.call(12 * MILLISECOND)
    rests = [paced.rest()]
    for _ in range(10):
        paced.call_alone(MILLISECOND)
        paced.call(12 * MILLISECOND)
        rests.append(paced.rest())
    assert rests[1] > 0
    assert rests[-1] > 8 * rests[1]


def test_lanes_that_gain_nothing_rest_and_work_again_when_they_do(paced: Paced) -> None:
    paced.call(int(1.3 * MILLISECOND))
    for _ in range(10):
        paced.call_alone(MILLISECOND)
        paced.call(int(1.3 * MILLISECOND))
    assert paced.rest() >= 10
    paced.call(int(0.6 * MILLISECOND))
    assert paced.rest() == 0


def test_one_slow_call_alone_says_little_and_one_fast_one_much(paced: Paced) -> None:
    paced.call_alone(MILLISECOND)
    paced.call_alone(100 * MILLISECOND)
    assert paced.words[SOLO] < 1.2 * MILLISECOND
    paced.call_alone(MILLISECOND // 2)
    assert paced.words[SOLO] < 0.9 * MILLISECOND


def test_a_program_that_became_slower_for_good_is_not_taken_for_stalled_for_ever(paced: Paced) -> None:
    paced.call_alone(8 * MILLISECOND)
    paced.call(MILLISECOND)
    rests = []
    for _ in range(60):
        paced.call(5 * MILLISECOND)
        rests.append(paced.rest())
    assert rests[0] > 0
    assert rests[-20:] == [0] * 20


def test_a_short_program_does_not_wait_for_a_sleeping_worker_and_a_long_one_does(
    paced: Paced, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not paced.short()  # nothing is known of it yet
    paced.call(WORTH_WAKING // 2)
    assert paced.short()
    longer = Paced()
    longer.call(WORTH_WAKING * 2)
    assert not longer.short()
    monkeypatch.setattr(backoff, "LONG_PAUSE", -1)
    deep = Paced()
    deep.call(WORTH_WAKING * 2)
    assert deep.short()
