"""Back off from lanes: tell by how long calls take whether the next one is better made on the calling thread alone.

Lanes are worth their workers only where these have their cores. A call that takes much longer than usual was stalled:
something else ran on a worker's core. Then calls run alone for about as long as the stall took: so what a single one
costs is little more than itself, and where stall follows on stall, rests become longer, and the odd call that looks
whether lanes work again costs little. What calls alone take is noted too: where lanes were slow from the start, that is
what tells. A short program does not wait for a worker that sleeps.
"""

from weft.codegen.llvm.module import FunctionWriter, Register, constant

# Nanoseconds: a program that takes less is done before a sleeping worker is up. After a long pause cores sleep deeply.
WORTH_WAKING, WORTH_WAKING_DEEPLY = 200_000, 1_500_000
LONG_PAUSE = 5_000_000
# So soon after another call the caller's team is taken for awake, and a program of so much time may run on it.
TEAM_AWAKE, WORTH_TEAM = 2_000_000, 50_000
STALLED, STALL = 3, 20_000  # so many times the usual, and so many nanoseconds more
LONGEST_STALL = 10_000_000  # what is counted of one: more is no turn of another thread, but a machine that stood still
UNIT = 64
SHORTEST_REST, LONGEST_REST = UNIT // 2, 16 * UNIT  # how long a rest is, in units of the stall
SMOOTHING = 4  # a power of two: how many calls make what is usual
FORGETTING = 8  # likewise: how many calls without a stall make the next rest shorter
MONOTONIC = 1
SECOND = 1_000_000_000  # nanoseconds
# After the first call that takes no longer, one runs alone, to know what that takes.
WORTH_COMPARING = 50_000_000
COMPARED = 2  # the last call of a rest may run on the caller's team
SLOWER, FASTER = 3, 1  # powers of two: of what calls alone take, one that took longer counts less than a faster one
# Several callers change these numbers at once; whichever of them comes last is as good as the others.
WORDS = 5
# How long a call on lanes takes, 0 before the first; calls left to run alone; the next rest; when the last call ended;
# how long a call alone takes, 0 before the first.
USUAL, ALONE, REST, LAST, SOLO = range(WORDS)


class LaneBackoff:
    """Writes what a dispatcher asks and notes; `memory` has the words of one program."""

    def __init__(self, f: FunctionWriter, memory: Register) -> None:
        self.f = f
        self.memory = memory
        self.time = f.scratch("i64", 2)

    def rests(self) -> tuple[Register, Register]:
        """Tell whether this call should run alone, and count it; and whether it is the last one of a rest."""
        f = self.f
        left = self._number(ALONE)
        resting = f.compare("icmp sgt", left, f.integer(0))
        with f.only_if(resting):
            self._set_number(ALONE, f.add(left, -1))
        return f.compare("icmp sgt", left, f.integer(1)), f.compare("icmp eq", left, f.integer(1))

    def short(self) -> Register:
        """Tell whether the program is known to be done before a sleeping worker is up."""
        f = self.f
        pause = f.binary("sub", self.now(), self._number(LAST))
        deep = f.compare("icmp sgt", pause, f.integer(LONG_PAUSE))
        worth = f.select(deep, f.integer(WORTH_WAKING_DEEPLY), f.integer(WORTH_WAKING))
        # As an unsigned number, one less than 0 is the largest: nothing is known before the first call.
        return f.compare("icmp ult", f.add(self._number(USUAL), -1), worth)

    def suits_team(self, last: Register) -> Register:
        """Tell whether the program may run on a team that other calls have used; `last` is when one has ended."""
        f = self.f
        awake = f.compare("icmp slt", f.binary("sub", self.now(), last), f.integer(TEAM_AWAKE))
        worth = f.compare("icmp sgt", self._number(USUAL), f.integer(WORTH_TEAM))
        return f.binary("and", awake, worth)

    def note_alone(self, start: Register) -> None:
        """Learn from a call that has just ended and did not run on lanes."""
        f = self.f
        now = self.now()
        self._set_number(LAST, now)
        taken, solo = f.binary("sub", now, start), self._number(SOLO)
        more = f.binary("sub", f.minimum(taken, f.multiply(solo, 2)), solo)
        faster = f.compare("icmp slt", more, f.integer(0))
        learned = f.add(solo, f.select(faster, self._part(more, FASTER), self._part(more, SLOWER)))
        self._set_number(SOLO, f.select(f.compare("icmp eq", solo, f.integer(0)), taken, learned))

    def now(self) -> Register:
        """Read the clock, in nanoseconds."""
        f = self.f
        f.imported("clock_gettime", "i32", constant("i32", MONOTONIC), self.time)
        seconds, rest = f.load("i64", self.time), f.load("i64", f.offset(self.time, "i64", 1))
        return f.add(f.multiply(seconds, SECOND), rest)

    def note(self, start: Register) -> None:
        """Learn from a call on lanes that has just ended."""
        f = self.f
        now = self.now()
        self._set_number(LAST, now)
        taken = f.binary("sub", now, start)
        usual, rest, solo = self._number(USUAL), self._number(REST), self._number(SOLO)
        first, known, stalled, well, done = (f.label(stem) for stem in ("first", "known", "stalled", "well", "done"))
        f.branch_if(f.compare("icmp eq", usual, f.integer(0)), first, known)
        f.begin_block(first)
        self._set_number(USUAL, taken)
        self._set_number(REST, f.integer(SHORTEST_REST))
        self._compare_once(taken, solo)
        f.branch(done)
        f.begin_block(known)
        is_known = f.compare("icmp ne", solo, f.integer(0))
        least = f.select(is_known, f.minimum(usual, solo), usual)
        is_stalled = f.compare("icmp sgt", taken, f.add(f.multiply(least, STALLED), STALL))
        # Lanes that do not pay: this call and most before it were slower than calls alone.
        pays = f.compare("icmp sle", f.minimum(taken, usual), f.select(is_known, solo, usual))
        f.branch_if(f.binary("or", is_stalled, f.binary("xor", pays, constant("i1", 1))), stalled, well)
        f.begin_block(stalled)
        counted = f.minimum(taken, f.add(least, LONGEST_STALL))
        self._set_number(ALONE, f.binary("sdiv", f.binary("mul", counted, rest), f.multiply(least, UNIT)))
        self._set_number(REST, f.minimum(f.multiply(rest, 2), f.integer(LONGEST_REST)))
        # What is usual may have changed for good: then a call like this is no stall after a few.
        more = f.minimum(f.binary("sub", taken, usual), usual)
        self._set_number(USUAL, f.add(usual, self._part(more, SMOOTHING)))
        f.branch(done)
        f.begin_block(well)
        least = f.integer(SHORTEST_REST)
        self._set_number(USUAL, f.add(usual, self._part(f.binary("sub", taken, usual), SMOOTHING)))
        shorter = f.binary("sub", rest, self._part(f.add(rest, (1 << FORGETTING) - 1), FORGETTING))
        self._set_number(REST, f.select(f.compare("icmp sgt", shorter, least), shorter, least))
        self._compare_once(taken, solo)
        f.branch(done)
        f.begin_block(done)

    def _compare_once(self, taken: Register, solo: Register) -> None:
        f = self.f
        unknown = f.compare("icmp eq", solo, f.integer(0))
        with f.only_if(f.binary("and", unknown, f.compare("icmp slt", taken, f.integer(WORTH_COMPARING)))):
            self._set_number(ALONE, f.integer(COMPARED))

    def _part(self, number: Register, power: int) -> Register:
        return self.f.binary("ashr", number, self.f.integer(power))

    def _number(self, word: int) -> Register:
        return self.f.emit("i64", f"load atomic i64, {self.f.offset(self.memory, 'i64', word)} monotonic, align 8")

    def _set_number(self, word: int, number: Register) -> None:
        place = self.f.offset(self.memory, "i64", word)
        self.f.emit_void(f"store atomic {number}, {place} monotonic, align 8")
