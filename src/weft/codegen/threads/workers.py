"""Write the module that lets worker threads run lanes: what a worker does, and how a caller hands out lanes.

`void work(mailbox*)` is a worker's life. `void dispatch(frame*)` runs a program: lane 0 on the calling thread and the
others on workers, or all of it on the calling thread where there are not enough idle workers at once. Only then may
lanes wait for each other: a caller reserves all workers it needs before it posts to any. Where they sleep and the
calling thread has a team of PyTorch's, the team runs the lanes. `void close(workers*)` lets workers end.

    state       what happens                     next
    IDLE        the worker spins                 RESERVED by a caller; ASLEEP or GONE by the worker
    RESERVED    a caller is about to post        POSTED; what it was before, where the caller goes on alone
    POSTED      there is work                    RUNNING by the worker; RESERVED where the caller takes it back
    RUNNING     the worker does it               IDLE when its function has returned
    ASLEEP      it sleeps, or is about to        RESERVED by a caller, who wakes it; IDLE where workers end

No wait here can be for ever. Callers never wait for a worker to become free: they go on alone. A caller that has posted
waits for workers that it alone has reserved; each runs one lane of its program, and lanes wait only for each other, in
no circle. A worker waits for a word that callers change and then wake.

Lanes also run on the threads that PyTorch's own operators run on: its OpenMP team. Between the programs of a training
loop PyTorch computes the loss and updates parameters. Its threads then spin for some milliseconds on the cores that
workers of ours would need. A caller whose operators they serve runs its lanes on them.
"""

from __future__ import annotations

from weft.codegen.llvm.module import FunctionWriter, Module, Register, constant
from weft.codegen.threads.backoff import WORDS as BACKOFF_WORDS
from weft.codegen.threads.backoff import LaneBackoff
from weft.codegen.threads.flags import PUBLISH, SPINS, WAIT, emit_publish, emit_wait, give_way, pause, sleep_while, wake
from weft.codegen.threads.layout import (
    ARGUMENT_OFFSET,
    ARRIVAL_SPINS,
    ASLEEP,
    CLOSING_OFFSET,
    COUNT_OFFSET,
    EPOCH_OFFSET,
    FUNCTION_OFFSET,
    GONE,
    IDLE,
    LAST_CALL_OFFSET,
    MAILBOX_BYTES,
    MAIN_THREAD_OFFSET,
    MOST_LANES,
    MOST_THREADS_OFFSET,
    PARALLEL_OFFSET,
    POSTED,
    PROGRAM_OFFSET,
    RESERVED,
    RETURNED_OFFSET,
    RUNNING,
    TEAM_SIZE_OFFSET,
    THREAD_NUMBER_OFFSET,
    WORKERS_OFFSET,
    mailbox_offset,
)
from weft.codegen.threads.trial import WORDS as TRIAL_WORDS
from weft.codegen.threads.trial import LaneTrial
from weft.target import Target

MEMBER = "member"
# What members are told: the frame, the functions of the program, how many others are needed and have come, the block of
# mailboxes.
FRAME, SERIAL, LANES, NEEDED, ARRIVED, WORKERS = range(6)
WORDS = 6


class Team:
    """Writes the call of a program on the calling thread's team."""

    def __init__(self, f: FunctionWriter, workers: Register) -> None:
        self.f = f
        self.workers = workers
        self.words = f.scratch("i64", WORDS)

    def suits(self, needed: Register) -> Register:
        """Tell whether the calling thread has a team that is large enough: the main thread, where there is OpenMP."""
        f = self.f
        mine = f.imported("pthread_self", "i64")
        is_main = f.compare("icmp eq", mine, f.load("i64", f.offset(self.workers, "i8", MAIN_THREAD_OFFSET)))
        (enough,) = f.either(
            is_main, lambda: (f.compare("icmp sgt", self._size(), needed),), lambda: (constant("i1", 0),)
        )
        return enough

    def run(self, frame: Register, serial: Register, lanes: Register, needed: Register) -> None:
        """Run the lanes; `lanes` is where their functions are listed."""
        f = self.f
        given = {
            FRAME: frame,
            SERIAL: serial,
            LANES: lanes,
            NEEDED: needed,
            ARRIVED: f.integer(0),
            WORKERS: self.workers,
        }
        for word, value in given.items():
            f.store(value, f.offset(self.words, "i64", word))
        # All of the team is asked for, also where fewer are needed: OpenMP ends threads that a smaller team leaves out.
        size = f.convert("trunc", self._size(), "i32")
        parallel = f.load("ptr", f.offset(self.workers, "i8", PARALLEL_OFFSET))
        # SAFETY: the words are this function's own, and all members have returned when the call does.
        f.emit_void(f"call void {parallel.name}(ptr @{MEMBER}, {self.words}, {size}, i32 0)")

    def _size(self) -> Register:
        return _asked(self.f, self.workers, MOST_THREADS_OFFSET)


def emit_member(module: Module) -> None:
    """Write `void member(words*)`: what each thread of a team does; in one too small the first thread runs it all."""
    f = module.function(MEMBER, ["ptr"])
    (words,) = f.parameters
    frame, serial, lanes, workers = (
        f.load("ptr", f.offset(words, "i64", word)) for word in (FRAME, SERIAL, LANES, WORKERS)
    )
    needed = f.load("i64", f.offset(words, "i64", NEEDED))
    number = _asked(f, workers, THREAD_NUMBER_OFFSET)
    together, alone, first, other, lane, end = (
        f.label(stem) for stem in ("together", "alone", "first", "other", "lane", "end")
    )
    is_first = f.compare("icmp eq", number, f.integer(0))
    f.branch_if(f.compare("icmp sgt", _asked(f, workers, TEAM_SIZE_OFFSET), needed), together, alone)
    f.begin_block(alone)
    with f.only_if(is_first):
        f.emit_void(f"call void {serial.name}({frame})")
    f.branch(end)
    f.begin_block(together)
    f.branch_if(is_first, first, other)
    f.begin_block(first)
    _await(f, f.offset(words, "i64", ARRIVED), needed, lane)
    f.begin_block(other)
    with f.only_if(f.compare("icmp sle", number, needed)):
        f.emit("i64", f"atomicrmw add {f.offset(words, 'i64', ARRIVED)}, i64 1 seq_cst")
    f.branch_if(f.compare("icmp sle", number, needed), lane, end)
    f.begin_block(lane)
    function = f.load("ptr", f.offset(lanes, "ptr", number))
    f.emit_void(f"call void {function.name}({frame})")
    f.branch(end)
    f.begin_block(end)


def _await(f: FunctionWriter, arrived: Register, needed: Register, then: str) -> None:
    """Wait until the others are there, but not forever: each lane waits for those that it needs anyway.

    On the other side are the members of the team, which OpenMP has all begun; were one late, lane 0 goes on without it.

    Were lane 0 to run ahead of threads that still wake, each would fall asleep at its first wait for the other.
    """
    with f.loop(0, ARRIVAL_SPINS):
        still = f.label("still")
        now = f.emit("i64", f"load atomic i64, {arrived} acquire, align 8")
        f.branch_if(f.compare("icmp sge", now, needed), then, still)
        f.begin_block(still)
        pause(f)
    f.branch(then)


def _asked(f: FunctionWriter, workers: Register, offset: int) -> Register:
    """Ask OpenMP for a number."""
    function = f.load("ptr", f.offset(workers, "i8", offset))
    return f.convert("sext", f.emit("i32", f"call i32 {function.name}()"), "i64")


# A spinning worker answers within a microsecond. One that has not after so many pauses, about 3 microseconds, has lost
# its core to something else: then the program runs faster on the calling thread alone.
ANSWER_SPINS = 60
# A worker that sleeps is waited for as long as the system may take to wake it, about a millisecond.
WAKING_SPINS = 20_000
# What a program's description holds: the serial function, the number of lanes, its back-off (see backoff.py), its trial
# (see trial.py), the lanes' functions.
SERIAL_SLOT, LANES_SLOT, BACKOFF_SLOT = 0, 1, 2
TRIAL_SLOT = BACKOFF_SLOT + BACKOFF_WORDS
FIRST_LANE_SLOT = TRIAL_SLOT + TRIAL_WORDS


def worker_module(target: Target) -> str:
    """Write the module."""
    module = Module(target)
    emit_wait(module)
    emit_publish(module)
    emit_member(module)
    _Worker(_as_written(module.function("work", ["ptr"]))).write()
    _Dispatch(_as_written(module.function("dispatch", ["ptr"]))).write()
    _write_close(_as_written(module.function("close", ["ptr"])))
    return str(module)


def _as_written(f: FunctionWriter) -> FunctionWriter:
    """Let LLVM not spend time on what waits for other threads, or runs once a call: nobody would notice it."""
    f.leave_as_written()
    return f


class _Words:
    """Writes accesses to the words of mailboxes that several threads use."""

    def __init__(self, f: FunctionWriter) -> None:
        self.f = f

    def state(self, mailbox: Register) -> Register:
        """Read a mailbox's state; what its writer wrote before is seen."""
        return self.f.emit("i32", f"load atomic i32, {mailbox} acquire, align 4")

    def set_state(self, mailbox: Register, state: Register | int) -> None:
        """Write a mailbox's state; who sees it sees what was written before."""
        self.f.emit_void(f"store atomic {_word(state)}, {mailbox} seq_cst, align 4")

    def is_closing(self, mailbox: Register) -> Register:
        """Tell whether the worker is to end."""
        place = self.f.offset(mailbox, "i8", CLOSING_OFFSET)
        return self.f.compare("icmp ne", self.f.emit("i32", f"load atomic i32, {place} seq_cst, align 4"), _word(0))

    def exchange(self, mailbox: Register, old: Register | int, new: int) -> Register:
        """Change a mailbox's state if it is still the old one, and tell whether it was."""
        pair = f"cmpxchg {mailbox}, {_word(old)}, {_word(new)} seq_cst seq_cst"
        return self.f.emit("i1", f"extractvalue {self.f.emit('{ i32, i1 }', pair)}, 1")

    def is_state(self, state: Register, wanted: int) -> Register:
        """Compare a state."""
        return self.f.compare("icmp eq", state, _word(wanted))


class _Worker:
    """Writes a worker's life: spin, run what is posted, sleep when nothing comes."""

    def __init__(self, f: FunctionWriter) -> None:
        self.f = f
        self.words = _Words(f)
        (self.mailbox,) = f.parameters

    def write(self) -> None:
        f, words, mailbox = self.f, self.words, self.mailbox
        spin, look, over = (f.label(stem) for stem in ("spin", "look", "over"))
        f.branch(spin)
        f.begin_block(spin)
        with f.loop(0, SPINS):
            state = words.state(mailbox)
            posted, other = f.label("posted"), f.label("other")
            f.branch_if(words.is_state(state, POSTED), posted, other)
            f.begin_block(posted)
            self._run(spin)
            f.begin_block(other)
            f.branch_if(words.is_closing(mailbox), over, look)
            f.begin_block(look)
            pause(f)
        # Asleep is what callers see before the worker sleeps; a post in between changes the word, and the sleep ends
        # at once. Callers of any thread wake it; nobody waits for a worker that sleeps.
        words.exchange(mailbox, IDLE, ASLEEP)
        with f.only_if(words.is_state(words.state(mailbox), ASLEEP)):
            sleep_while(f, mailbox, _word(ASLEEP))
        # A caller that keeps it reserved may have been waiting for this very core.
        with f.only_if(words.is_state(words.state(mailbox), RESERVED)):
            give_way(f)
        f.branch(spin)
        f.begin_block(over)
        # A caller may have reserved the worker meanwhile: it is served first.
        gone = f.label("gone")
        f.branch_if(words.exchange(mailbox, IDLE, GONE), gone, look)
        f.begin_block(gone)

    def _run(self, spin: str) -> None:
        f, mailbox = self.f, self.mailbox
        run = f.label("run")
        # The caller may take a post back, so the worker must win it.
        f.branch_if(self.words.exchange(mailbox, POSTED, RUNNING), run, spin)
        f.begin_block(run)
        function = f.load("ptr", f.offset(mailbox, "i8", FUNCTION_OFFSET))
        argument = f.load("ptr", f.offset(mailbox, "i8", ARGUMENT_OFFSET))
        f.emit_void(f"call void {function.name}({argument})")
        # Only now may the caller return: the program and its code may end then. Idle only after that: whoever reserves
        # this worker next counts from here.
        returned = f.offset(mailbox, "i8", RETURNED_OFFSET)
        f.emit_void(f"call void @{PUBLISH}({returned}, {f.add(f.load('i64', returned), 1)})")
        self.words.set_state(mailbox, IDLE)
        f.branch(spin)


class _Dispatch:
    """Writes the call of a program with several lanes."""

    def __init__(self, f: FunctionWriter) -> None:
        self.f = f
        self.words = _Words(f)
        (self.frame,) = f.parameters
        self.taken = f.scratch("ptr", MOST_LANES)
        self.before = f.scratch("i32", MOST_LANES)
        self.returned = f.scratch("i64", MOST_LANES)
        self.program = f.load("ptr", f.offset(self.frame, "i8", PROGRAM_OFFSET))
        self.workers = f.load("ptr", f.offset(self.frame, "i8", WORKERS_OFFSET))
        self.needed = f.add(f.load("i64", f.offset(self.program, "ptr", LANES_SLOT)), -1)
        self.backoff = LaneBackoff(f, f.offset(self.program, "i64", BACKOFF_SLOT))
        self.trial = LaneTrial(f, f.offset(self.program, "i64", TRIAL_SLOT))
        self.team = Team(f, self.workers)

    def write(self) -> None:
        f = self.f
        epoch = f.offset(self.frame, "i8", EPOCH_OFFSET)
        f.store(f.add(f.load("i64", epoch), 1), epoch)
        pace, reserve, alone, together, end = map(f.label, ("pace", "reserve", "alone", "together", "end"))
        f.branch_if(self.trial.runs_alone(), alone, pace)
        f.begin_block(pace)
        resting, last = self.backoff.rests()
        f.branch_if(resting, alone, reserve)
        f.begin_block(reserve)
        self._reserve(alone)
        self._try_team(end)
        self._let_wake(last, end)
        self._post()
        self._check_answer(alone, together)
        f.begin_block(together)
        start = self.backoff.now()
        self._call(FIRST_LANE_SLOT)
        with f.loop(0, self.needed) as loop:
            # The worker is in a lane of this program. Lanes wait only for each other, in no circle, and all have begun
            # or are posted to a worker that runs nothing else: so it returns.
            returned = f.offset(self._mailbox(loop.index), "i8", RETURNED_OFFSET)
            expected = f.load("i64", f.offset(self.returned, "i64", loop.index))
            f.emit_void(f"call void @{WAIT}({returned}, {expected})")
        self._note_lanes(start)
        f.branch(end)
        f.begin_block(alone)
        self._call_alone()
        f.branch(end)
        f.begin_block(end)
        f.store(self.backoff.now(), f.offset(self.workers, "i8", LAST_CALL_OFFSET))

    def _call(self, slot: int) -> None:
        function = self.f.load("ptr", self.f.offset(self.program, "ptr", slot))
        self.f.emit_void(f"call void {function.name}({self.frame})")

    def _call_alone(self) -> None:
        start = self.backoff.now()
        self._call(SERIAL_SLOT)
        self.backoff.note_alone(start)
        self.trial.note_since(start, on_lanes=False)

    def _note_lanes(self, start: Register) -> None:
        self.backoff.note(start)
        self.trial.note_since(start, on_lanes=True)

    def _reserve(self, alone: str) -> None:
        """Take as many workers as are needed; where there are fewer, give them back and go on alone."""
        f, words = self.f, self.words
        count = f.load("i64", f.offset(self.workers, "i8", COUNT_OFFSET))
        enough = f.label("enough")
        with f.loop(0, count, carried=[f.integer(0)]) as loop:
            (found,) = loop.carried
            searching = f.label("searching")
            f.branch_if(f.compare("icmp eq", found, self.needed), enough, searching)
            f.begin_block(searching)
            mailbox = f.offset(self.workers, "i8", f.add(f.multiply(loop.index, MAILBOX_BYTES), mailbox_offset(0)))
            state = words.state(mailbox)
            free = f.binary("or", words.is_state(state, IDLE), words.is_state(state, ASLEEP))

            def take() -> tuple[Register]:
                f.store(mailbox, f.offset(self.taken, "ptr", found))
                f.store(state, f.offset(self.before, "i32", found))
                return (f.convert("zext", words.exchange(mailbox, state, RESERVED), "i64"),)

            (more,) = f.either(free, take, lambda: (f.integer(0),))
            loop.carry(f.add(found, more))
        (found,) = loop.carried
        short = f.label("short")
        f.branch_if(f.compare("icmp eq", found, self.needed), enough, short)
        f.begin_block(short)
        with f.loop(0, found) as loop:
            words.set_state(self._mailbox(loop.index), self._before(loop.index))
        f.branch(alone)
        f.begin_block(enough)

    def _try_team(self, end: str) -> None:
        """Run on the caller's team, if it has one that may be awake or the program is not short, and the workers sleep.

        They stay reserved meanwhile, so that other callers run alone instead of taking the team's cores.
        """
        f, words = self.f, self.words
        long, ready, crew = (f.label(stem) for stem in ("long", "ready", "crew"))
        f.branch_if(self._first_asleep(), long, crew)
        f.begin_block(long)
        suits = self.team.suits(self.needed)
        long_enough = f.binary("xor", self.backoff.short(), constant("i1", 1))
        awake = self.backoff.suits_team(f.load("i64", f.offset(self.workers, "i8", LAST_CALL_OFFSET)))
        fits = f.binary("and", suits, f.binary("or", long_enough, awake))
        f.branch_if(fits, ready, crew)
        f.begin_block(ready)
        start = self.backoff.now()
        serial = f.load("ptr", f.offset(self.program, "ptr", SERIAL_SLOT))
        self.team.run(self.frame, serial, f.offset(self.program, "ptr", FIRST_LANE_SLOT), self.needed)
        with f.loop(0, self.needed) as loop:
            mailbox = self._mailbox(loop.index)
            words.set_state(mailbox, self._before(loop.index))
            # Who ends the workers may have found it reserved: then it is for this thread to wake the worker.
            with f.only_if(words.is_closing(mailbox)):
                words.exchange(mailbox, ASLEEP, IDLE)
                wake(f, mailbox)
        self._note_lanes(start)
        f.branch(end)
        f.begin_block(crew)

    def _first_asleep(self) -> Register:
        return self.words.is_state(self.f.load("i32", self.before), ASLEEP)

    def _let_wake(self, last: Register, end: str) -> None:
        """Where a rest ends, or the first worker sleeps and the program is short: wake all, and run alone meanwhile."""
        f, words = self.f, self.words
        look, ask, nap, on = (f.label(stem) for stem in ("look", "ask", "nap", "on"))
        f.branch_if(last, nap, look)
        f.begin_block(look)
        f.branch_if(self._first_asleep(), ask, on)
        f.begin_block(ask)
        f.branch_if(self.backoff.short(), nap, on)
        f.begin_block(nap)
        # Reserved, they stay awake until this call is over; the next finds them spinning.
        with f.loop(0, self.needed) as loop, f.only_if(words.is_state(self._before(loop.index), ASLEEP)):
            wake(f, self._mailbox(loop.index))
        self._call_alone()
        with f.loop(0, self.needed) as loop:
            words.set_state(self._mailbox(loop.index), IDLE)
        f.branch(end)
        f.begin_block(on)

    def _post(self) -> None:
        f, words = self.f, self.words
        with f.loop(0, self.needed) as loop:
            mailbox = self._mailbox(loop.index)
            function = f.load("ptr", f.offset(self.program, "ptr", f.add(loop.index, FIRST_LANE_SLOT + 1)))
            f.store(function, f.offset(mailbox, "i8", FUNCTION_OFFSET))
            f.store(self.frame, f.offset(mailbox, "i8", ARGUMENT_OFFSET))
            returned = f.load("i64", f.offset(mailbox, "i8", RETURNED_OFFSET))
            f.store(f.add(returned, 1), f.offset(self.returned, "i64", loop.index))
            words.set_state(mailbox, POSTED)
            with f.only_if(words.is_state(self._before(loop.index), ASLEEP)):
                wake(f, mailbox)

    def _check_answer(self, alone: str, together: str) -> None:
        """Take all posts back if the first worker does not answer in time: nobody may have begun.

        Lane 0 begins only then. Were it to run ahead of a worker that is still being woken, it would fall asleep at its
        first wait, the worker at its next, and each would be woken by the other, again and again.
        """
        f, words = self.f, self.words
        first = f.load("ptr", self.taken)
        back = f.label("back")
        patience = f.select(self._first_asleep(), f.integer(WAKING_SPINS), f.integer(ANSWER_SPINS))
        with f.loop(0, patience):
            still = f.label("still")
            f.branch_if(words.is_state(words.state(first), POSTED), still, together)
            f.begin_block(still)
            pause(f)
        with f.loop(0, self.needed) as loop:
            again, on = f.label("again"), f.label("on")
            f.branch_if(words.exchange(self._mailbox(loop.index), POSTED, RESERVED), on, again)
            f.begin_block(again)
            # Somebody has begun and waits for the others: they must run too.
            with f.loop(0, loop.index) as reposted:
                words.set_state(self._mailbox(reposted.index), POSTED)
            f.branch(together)
            f.begin_block(on)
        f.branch(back)
        f.begin_block(back)
        with f.loop(0, self.needed) as loop:
            words.set_state(self._mailbox(loop.index), IDLE)
        f.branch(alone)

    def _mailbox(self, index: Register) -> Register:
        return self.f.load("ptr", self.f.offset(self.taken, "ptr", index))

    def _before(self, index: Register) -> Register:
        return self.f.load("i32", self.f.offset(self.before, "i32", index))


def _write_close(f: FunctionWriter) -> None:
    (workers,) = f.parameters
    words = _Words(f)
    with f.loop(0, f.load("i64", f.offset(workers, "i8", COUNT_OFFSET))) as loop:
        mailbox = f.offset(workers, "i8", f.add(f.multiply(loop.index, MAILBOX_BYTES), mailbox_offset(0)))
        f.emit_void(f"store atomic i32 1, {f.offset(mailbox, 'i8', CLOSING_OFFSET)} seq_cst, align 4")
        with f.only_if(words.exchange(mailbox, ASLEEP, IDLE)):
            wake(f, mailbox)


def _word(value: Register | int) -> Register:
    return constant("i32", value) if isinstance(value, int) else value
