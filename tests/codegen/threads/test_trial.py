"""Lanes and one lane take turns for some calls, and what is faster by the clock stays, whatever noise says."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable

import pytest

from weft.codegen.llvm.module import Module, Register
from weft.codegen.objects.native import compile_native
from weft.codegen.threads import trial
from weft.codegen.threads.trial import ALONE, BEST_LANES, BEST_SINGLE, DECIDED, FIRST_TRIAL, LEFT, LaneTrial
from weft.codegen.threads.workers import worker_module
from weft.target import host_target

MICROSECOND = 1_000


class Told(LaneTrial):
    """A trial that is told how often threads were put off their cores, by a word behind its own."""

    def switches(self) -> Register:
        return self._number(trial.WORDS)


class Tried:
    """The words of one program; calls of any length can be made."""

    def __init__(self, *, alone: bool = False, decided: bool = False) -> None:
        module = Module(host_target())
        f = module.function("runs_alone", ["ptr", "ptr"])
        memory, result = f.parameters
        f.store(f.convert("zext", Told(f, memory).runs_alone(), "i64"), result)
        for name, on_lanes in (("lanes", True), ("single", False)):
            f = module.function(name, ["ptr", "ptr"])
            memory, result = f.parameters
            Told(f, memory).note(f.load("i64", result), on_lanes=on_lanes)
        self.library = compile_native(module, host_target(), use_cache=False)
        self.words = words_of(alone=alone, decided=decided)
        self.kinds: list[str] = []

    def _call(self, name: str, given: int = 0) -> int:
        function: Callable[..., None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
            self.library.address(name)
        )
        result = ctypes.c_int64(given)
        function(ctypes.addressof(self.words), ctypes.addressof(result))
        return result.value

    def run(self, count: int, lanes: Callable[[], float], single: Callable[[], float], *, free: bool = True) -> None:
        """Make calls that take so many nanoseconds; where workers are not `free` all run alone."""
        for _ in range(count):
            alone = bool(self._call("runs_alone")) or not free
            self.kinds.append("single" if alone else "lanes")
            self._call(self.kinds[-1], int(single() if alone else lanes()))

    @property
    def left(self) -> int:
        return self.words[LEFT]


def words_of(*, alone: bool, decided: bool) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * (trial.WORDS + 1))(*trial.first_words(alone=alone, decided=decided))


@pytest.fixture(params=[False, True], ids=["lanes first", "one lane first"])
def tried(request: pytest.FixtureRequest) -> Tried:
    return Tried(alone=request.param)


def taking(microseconds: float) -> Callable[[], float]:
    return lambda: microseconds * MICROSECOND


def finished(tried: Tried, lanes: Callable[[], float], single: Callable[[], float]) -> None:
    """Make calls until the first trial has ended."""
    tried.run(FIRST_TRIAL, lanes, single)
    for _ in range(trial.MOST_CALLS):
        if tried.left != 1:
            return
        tried.run(1, lanes, single)
    raise AssertionError("the trial does not end")


def test_nothing_is_tried_in_the_first_calls(tried: Tried) -> None:
    first = "single" if tried.words[ALONE] else "lanes"
    tried.run(FIRST_TRIAL, taking(100), taking(100))
    assert {*tried.kinds} == {first}


@pytest.mark.parametrize(("lanes", "single", "alone"), [(60, 100, 0), (100, 60, 1), (3300, 5700, 0), (98, 100, 1)])
def test_what_is_faster_stays_whatever_was_estimated(tried: Tried, lanes: int, single: int, alone: int) -> None:
    finished(tried, taking(lanes), taking(single))
    assert tried.words[ALONE] == alone
    assert tried.words[DECIDED] == 1
    assert (tried.words[BEST_LANES], tried.words[BEST_SINGLE]) == (lanes * MICROSECOND, single * MICROSECOND)
    assert len(tried.kinds) <= FIRST_TRIAL + 2 * trial.SURE * (trial.WARM + 1)
    tried.kinds.clear()
    tried.run(50, taking(lanes), taking(single))
    assert {*tried.kinds} == {"single" if alone else "lanes"}


def test_where_many_lanes_are_far_faster_two_calls_alone_are_enough() -> None:
    tried = Tried()
    finished(tried, taking(100), taking(3000))
    assert (tried.words[ALONE], tried.words[DECIDED]) == (0, 1)
    assert tried.kinds.count("single") == 2


def test_calls_of_a_kind_come_three_in_a_row_and_either_kind_begins_pairs(tried: Tried) -> None:
    tried.run(FIRST_TRIAL, taking(90), taking(90))
    tried.kinds.clear()
    tried.run(24, taking(90), taking(95))
    shown = "".join(kind[0] for kind in tried.kinds)
    assert shown == "llssssssllllllssssssllll"  # behind the last of the first calls, which counts as one of the pairs


def test_noise_does_not_decide(tried: Tried) -> None:
    chance = random.Random(3)

    def noisy(microseconds: float) -> Callable[[], float]:
        # Now and then half as long again, as on a machine that others use a little.
        return lambda: microseconds * MICROSECOND * (1 + 0.1 * chance.random() + (chance.random() < 0.1) * 0.5)

    wrong = 0
    for _ in range(40):
        for lanes, single, alone in ((80, 100, 0), (100, 80, 1)):
            again = Tried.__new__(Tried)
            again.library, again.kinds = tried.library, []
            again.words = words_of(alone=bool(tried.words[ALONE]), decided=False)
            finished(again, noisy(lanes), noisy(single))
            wrong += again.words[ALONE] != alone
    assert wrong == 0


def test_first_calls_of_a_kind_whose_caches_are_cold_do_not_count() -> None:
    tried = Tried()

    def lanes() -> float:
        cold = tried.kinds[-2:-1] != ["lanes"]
        return (150 if cold else 50) * MICROSECOND

    finished(tried, lanes, taking(80))
    assert tried.words[ALONE] == 0


def test_a_stall_ends_a_trial_soon_and_nothing_of_it_is_kept(tried: Tried) -> None:
    finished(tried, taking(4000), taking(100))
    assert tried.words[ALONE] == 1
    assert tried.words[DECIDED] == 0
    assert tried.kinds[FIRST_TRIAL:].count("lanes") <= 2 * (trial.WARM + 1)


def test_what_is_decided_while_threads_are_put_off_their_cores_is_for_now_alone(tried: Tried) -> None:
    def beside_another() -> float:
        tried.words[trial.WORDS] += 1
        return 130 * MICROSECOND

    finished(tried, beside_another, taking(100))
    assert (tried.words[ALONE], tried.words[DECIDED]) == (1, 0)
    assert tried.left == 1 + trial.SHORTEST_INTERVAL
    tried.words[LEFT] = FIRST_TRIAL + 1
    finished(tried, taking(60), taking(100))
    assert (tried.words[ALONE], tried.words[DECIDED]) == (0, 1)


def test_without_free_workers_a_trial_ends_and_decides_nothing(tried: Tried) -> None:
    before = tried.words[ALONE]
    tried.run(FIRST_TRIAL + trial.MOST_CALLS, taking(50), taking(100), free=False)
    assert tried.left > 1
    assert (tried.words[ALONE], tried.words[DECIDED]) == (before, 0)


def test_trials_are_repeated_at_longer_intervals(tried: Tried) -> None:
    lengths = []
    for lanes in (50, 150, 50):
        finished(tried, taking(lanes), taking(100))
        assert tried.words[ALONE] == (lanes > 100)
        lengths.append(tried.left - 1)
        tried.words[LEFT] = FIRST_TRIAL + 1
    assert lengths == [trial.SHORTEST_INTERVAL * trial.GROWTH**number for number in range(3)]


def test_what_was_decided_before_is_tried_again_much_later() -> None:
    tried = Tried(alone=True, decided=True)
    tried.run(200, taking(50), taking(100))
    assert {*tried.kinds} == {"single"}
    assert tried.left == 1 + trial.SHORTEST_INTERVAL - 200


def test_words_of_zeros_are_no_trial() -> None:
    tried = Tried()
    tried.words[:] = [0] * len(tried.words)
    tried.run(500, taking(100), taking(10))
    assert {*tried.kinds} == {"lanes"}


def test_what_a_trial_does_in_several_places_is_written_once() -> None:
    texts = worker_module(host_target()).split("\ndefine ")
    names = [text.partition("(")[0].partition("@")[2] for text in texts[1:]]
    trials = sorted(name for name in names if name.startswith("trial_"))
    assert trials == ["trial_alone", "trial_decide", "trial_finish", "trial_lanes", "trial_settle"]
    # Four calls of a dispatcher lead here: each text of the whole trial was four fifths of the module.
    assert len("".join(texts)) < 60_000
