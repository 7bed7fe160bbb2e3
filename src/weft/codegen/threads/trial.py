"""Try lanes and one lane by turns on calls as they come, and keep what is faster by the clock.

What a plan takes is estimated before it has run; some twenty calls later the clock tells. A trial makes pairs: a call
on lanes and one alone, each the third in a row of its kind, when its caches are as they would be for good. A sign test
over the pairs decides: each is a win or a loss for lanes, whatever an outlier takes, and the trial ends when one side
leads by SURE. Which of a pair comes first takes turns. A call on lanes that was stalled says that another program had
a core, and so do threads that were put off theirs: what such a trial decides is for now alone, and another one follows
soon. Others are repeated at ever longer intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from weft.codegen.llvm.module import FunctionWriter, Register, constant

FIRST_TRIAL = 20  # calls before it
SHORTEST_INTERVAL, LONGEST_INTERVAL, GROWTH = 1 << 12, 1 << 20, 4  # calls between two trials
WARM = 2  # calls of a kind before one that is timed
SURE, MOST_PAIRS = 6, 20
MOST_CALLS = 400  # in a trial; where lanes find no worker pairs are never made
# Lanes win a pair only by so many parts in 64: they take cores that others could use.
PARTS, LEAST_GAIN = 64, 3
STALLED, STALL = 3, 20_000  # so many times a call alone, and so many nanoseconds more
FAR_SLOWER = 2  # of a call alone: many cores are faster than one by more
LOST_AT_ONCE = 3
# Beside nothing else threads of a process are put off their cores seldom: so often in a trial, and once in so many
# nanoseconds.
FEW_SWITCHES, SWITCH_INTERVAL = 4, 50_000_000
RUSAGE_BYTES, RUSAGE_SWITCHES = 144, 136  # of what getrusage fills, and where it counts such switches
MONOTONIC, SECOND = 1, 1_000_000_000
WORDS = 15
# Whether calls run alone, 1, or on lanes, 0; what comes: 0 no trial ever, 1 there is one now, else one more than so
# many calls until it. Then what a trial counts, the next interval, and the shortest times of both kinds, 0 before the
# first; how often the clock has decided; of this trial, stalls, when it began, and switches until then.
ALONE, LEFT, SKIPPED, ON_LANES, SINGLE, PAIRS, SCORE, CALLS, INTERVAL, BEST_LANES, BEST_SINGLE, DECIDED = range(12)
STALLS, BEGAN, SWITCHES = range(12, WORDS)


def first_words(*, alone: bool, decided: bool) -> list[int]:
    """Give the words of a program that has not run; where it was decided before, the trial is far off."""
    words = [0] * WORDS
    words[ALONE] = int(alone)
    words[LEFT] = 1 + (SHORTEST_INTERVAL if decided else FIRST_TRIAL)
    words[SKIPPED], words[INTERVAL] = WARM, SHORTEST_INTERVAL
    return words


def running_as_before(words: Sequence[int]) -> list[int]:
    """Give the same words with no trial ever: calls run as has been decided, or estimated."""
    return [0 if place == LEFT else word for place, word in enumerate(words)]


class LaneTrial:
    """Writes what a dispatcher asks and notes; `memory` has the words of one program.

    Several callers change them at once; a pair that is mixed up by that is one of many. What a trial does in several
    places is a function of the module, written once: a dispatcher is part of the first program of a machine.
    """

    def __init__(self, f: FunctionWriter, memory: Register) -> None:
        self.f = f
        self.memory = memory

    @cached_property
    def _room(self) -> Register:
        return self.f.scratch("i64", RUSAGE_BYTES // 8)

    def _by(self, name: str, write: Callable[[LaneTrial, Sequence[Register]], None], *given: Register) -> None:
        """Call a function of the module on the words and numbers, and write it if it is not there yet."""
        module = self.f.module
        if all(function.name != name for function in module.functions):
            writer = module.inner_function(name, ["ptr", *["i64"] * len(given)])
            writer.leave_as_written()
            memory, *numbers = writer.parameters
            write(type(self)(writer, memory), numbers)
        self.f.call(name, (self.memory, *given))

    def runs_alone(self) -> Register:
        """Count a call, and tell whether it is to run on the calling thread alone."""
        f = self.f
        left, zero = self._number(LEFT), f.integer(0)
        with f.only_if(f.compare("icmp sgt", left, f.integer(1))):
            self._set(LEFT, f.add(left, -1))
        lanes, single = self._number(ON_LANES), self._number(SINGLE)
        is_odd = f.compare("icmp ne", f.binary("and", self._number(PAIRS), f.integer(1)), zero)
        lacks_single = f.compare("icmp eq", single, zero)
        # The first of a pair is a call on lanes in every other one; the second is what the first was not.
        second = f.compare("icmp ne", lanes, zero)
        first = f.binary("and", lacks_single, is_odd)
        turn = f.binary("or", second, first)
        return f.select(self._is_on(left), turn, f.compare("icmp ne", self._number(ALONE), zero))

    def note_since(self, start: Register, *, on_lanes: bool) -> None:
        """Learn from a call that has just ended, and began at a time."""
        with self.f.only_if(self._is_on(self._number(LEFT))):
            self.note(self.f.binary("sub", self.now(), start), on_lanes=on_lanes)

    def note(self, taken: Register, *, on_lanes: bool) -> None:
        """Learn from a call that took so many nanoseconds."""
        kind = "lanes" if on_lanes else "alone"
        self._by(f"trial_{kind}", lambda trial, numbers: trial._note(numbers[0], on_lanes=on_lanes), taken)

    def _note(self, taken: Register, *, on_lanes: bool) -> None:
        f = self.f
        with f.only_if(self._is_on(self._number(LEFT))):
            place, best = (ON_LANES, BEST_LANES) if on_lanes else (SINGLE, BEST_SINGLE)
            taken = f.select(f.compare("icmp sgt", taken, f.integer(0)), taken, f.integer(1))
            calls = self._number(CALLS)
            with f.only_if(f.compare("icmp eq", calls, f.integer(0))):
                self._set(BEGAN, self.now())
                self._set(SWITCHES, self.switches())
                self._set(BEST_LANES, f.integer(0))
                self._set(BEST_SINGLE, f.integer(0))
            self._set(CALLS, f.add(calls, 1))
            end, stalled, well, timed = (f.label(stem) for stem in ("end", "stalled", "well", "timed"))
            # What takes far longer than the other has told enough: it is not done three times in a row.
            is_slow = self._is_stalled(taken) if on_lanes else self._is_far_slower(taken)
            f.branch_if(is_slow, stalled, well)
            f.begin_block(stalled)
            if on_lanes:
                self._set(STALLS, f.add(self._number(STALLS), 1))
            self._settle(f.integer(-LOST_AT_ONCE if on_lanes else LOST_AT_ONCE))
            f.branch(end)
            f.begin_block(well)
            skipped = self._number(SKIPPED)
            with f.only_if(f.compare("icmp sgt", skipped, f.integer(0))):
                self._set(SKIPPED, f.add(skipped, -1))
            f.branch_if(f.compare("icmp sgt", skipped, f.integer(0)), end, timed)
            f.begin_block(timed)
            before = self._number(best)
            is_first = f.compare("icmp eq", before, f.integer(0))
            self._set(best, f.select(is_first, taken, f.minimum(before, taken)))
            self._set(place, taken)
            self._set(SKIPPED, f.integer(WARM))
            lanes, single = self._number(ON_LANES), self._number(SINGLE)
            both = f.binary(
                "and", f.compare("icmp ne", lanes, f.integer(0)), f.compare("icmp ne", single, f.integer(0))
            )
            with f.only_if(both):
                wins = f.compare("icmp slt", f.multiply(lanes, PARTS), f.multiply(single, PARTS - LEAST_GAIN))
                self._settle(f.select(wins, f.integer(1), f.integer(-1)))
            f.branch(end)
            f.begin_block(end)
            with f.only_if(f.compare("icmp sge", self._number(CALLS), f.integer(MOST_CALLS))):
                self._finish()

    def _is_on(self, left: Register) -> Register:
        return self.f.compare("icmp eq", left, self.f.integer(1))

    def _is_far_slower(self, taken: Register) -> Register:
        f, best = self.f, self._number(BEST_LANES)
        known = f.compare("icmp ne", best, f.integer(0))
        return f.binary("and", known, f.compare("icmp sgt", taken, f.multiply(best, FAR_SLOWER)))

    def _is_stalled(self, taken: Register) -> Register:
        f, best = self.f, self._number(BEST_SINGLE)
        longest = f.add(f.multiply(best, STALLED), STALL)
        known = f.compare("icmp ne", best, f.integer(0))
        return f.binary("and", known, f.compare("icmp sgt", taken, longest))

    def _settle(self, sign: Register) -> None:
        """Count a pair, and end the trial where it has told."""
        self._by("trial_settle", lambda trial, numbers: trial._write_settle(numbers[0]), sign)

    def _write_settle(self, sign: Register) -> None:
        f = self.f
        score, pairs = f.add(self._number(SCORE), sign), f.add(self._number(PAIRS), 1)
        self._set(SCORE, score)
        self._set(PAIRS, pairs)
        for word, value in ((ON_LANES, 0), (SINGLE, 0), (SKIPPED, WARM)):
            self._set(word, f.integer(value))
        for wins, alone in (
            (f.compare("icmp sge", score, f.integer(SURE)), 0),
            (f.compare("icmp sle", score, f.integer(-SURE)), 1),
        ):
            with f.only_if(wins):
                self._set(ALONE, f.integer(alone))
                self._decide()
                self._finish()
        with f.only_if(f.compare("icmp sge", self._number(PAIRS), f.integer(MOST_PAIRS))):
            self._decide()
            self._finish()

    def _decide(self) -> None:
        """Count a decision, but for one beside another program."""
        self._by("trial_decide", lambda trial, _: trial._write_decide())

    def _write_decide(self) -> None:
        f = self.f
        undisturbed = self._is_undisturbed()
        self._set(DECIDED, f.add(self._number(DECIDED), f.convert("zext", undisturbed, "i64")))
        self._set(INTERVAL, f.select(undisturbed, self._number(INTERVAL), f.integer(SHORTEST_INTERVAL)))

    def _is_undisturbed(self) -> Register:
        f = self.f
        taken = f.binary("sub", self.now(), self._number(BEGAN))
        most = f.add(f.binary("sdiv", taken, f.integer(SWITCH_INTERVAL)), FEW_SWITCHES)
        switches = f.binary("sub", self.switches(), self._number(SWITCHES))
        few = f.compare("icmp sle", switches, most)
        return f.binary("and", few, f.compare("icmp eq", self._number(STALLS), f.integer(0)))

    def now(self) -> Register:
        """Read the clock, in nanoseconds."""
        f = self.f
        f.imported("clock_gettime", "i32", constant("i32", MONOTONIC), self._room)
        seconds, rest = f.load("i64", self._room), f.load("i64", f.offset(self._room, "i64", 1))
        return f.add(f.multiply(seconds, SECOND), rest)

    def switches(self) -> Register:
        """Count how often threads of this process were put off their cores; 0 where the system does not tell."""
        f = self.f
        if "windows" in f.target.triple:
            return f.integer(0)
        f.imported("getrusage", "i32", constant("i32", 0), self._room)
        return f.load("i64", f.offset(self._room, "i8", RUSAGE_SWITCHES))

    def _finish(self) -> None:
        self._by("trial_finish", lambda trial, _: trial._write_finish())

    def _write_finish(self) -> None:
        f, interval = self.f, self._number(INTERVAL)
        self._set(LEFT, f.add(interval, 1))
        self._set(INTERVAL, f.minimum(f.multiply(interval, GROWTH), f.integer(LONGEST_INTERVAL)))
        for word, value in (
            (ON_LANES, 0),
            (SINGLE, 0),
            (PAIRS, 0),
            (SCORE, 0),
            (CALLS, 0),
            (STALLS, 0),
            (SKIPPED, WARM),
        ):
            self._set(word, f.integer(value))

    def _number(self, word: int) -> Register:
        return self.f.emit("i64", f"load atomic i64, {self.f.offset(self.memory, 'i64', word)} monotonic, align 8")

    def _set(self, word: int, number: Register) -> None:
        place = self.f.offset(self.memory, "i64", word)
        self.f.emit_void(f"store atomic {number}, {place} monotonic, align 8")
