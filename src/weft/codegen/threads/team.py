"""Run lanes on the threads that PyTorch's own operators run on: its OpenMP team, which spins behind each operator.

Between the programs of a training loop PyTorch computes the loss and updates parameters. Its threads then spin for some
milliseconds on the cores that workers of ours would need. A caller whose operators they serve runs its lanes on them.
"""

from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register, constant
from weft.codegen.threads.flags import pause
from weft.codegen.threads.layout import (
    ARRIVAL_SPINS,
    MAIN_THREAD_OFFSET,
    MOST_THREADS_OFFSET,
    PARALLEL_OFFSET,
    TEAM_SIZE_OFFSET,
    THREAD_NUMBER_OFFSET,
)

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
