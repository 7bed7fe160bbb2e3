"""Lay out the memory that lanes share: the frame that a call works in, and the mailboxes of worker threads.

A frame begins with a line of flags for each lane, then the call's number, where the program and the worker threads are
described, where a clocked program notes times and what marks a call that must not run, then the table of base addresses
of all buffers that lie elsewhere, then the arena:

    0            flags of lane 0, 1, ...            a line of LINE_BYTES each
    EPOCH        number of the call; PROGRAM, WORKERS, CLOCK: addresses; MARK
    TABLE        base addresses: inputs, outputs, lasting inputs, packed buffers, constants
    arena        intermediates, where the plan puts them

Any frame that is large enough serves any program: flags lie in the same place in all of them, and numbers of calls only
grow, so nothing is ever reset.
"""

from collections.abc import Collection
from dataclasses import dataclass

from weft.plan.form.plan import BufferKind, Plan

MOST_LANES = 64
LINE_BYTES = 128  # two cache lines: processors fetch them in pairs, and lanes must not disturb each other
EPOCH_OFFSET = MOST_LANES * LINE_BYTES
PROGRAM_OFFSET, WORKERS_OFFSET, CLOCK_OFFSET = EPOCH_OFFSET + 8, EPOCH_OFFSET + 16, EPOCH_OFFSET + 24
MARK_OFFSET = EPOCH_OFFSET + 32
TABLE_OFFSET = EPOCH_OFFSET + LINE_BYTES
POINTER_BYTES = 8
ARENA_ALIGNMENT = 4096
LASTING_KINDS: tuple[BufferKind, ...] = ("packed", "constant")

# In the block of mailboxes, which all programs of a process share.
COUNT_OFFSET = 0  # i64: how many mailboxes have a worker
# The thread whose calls may run on its OpenMP team (0: none), and OpenMP's functions that this takes; see workers.py.
MAIN_THREAD_OFFSET = 8
PARALLEL_OFFSET, THREAD_NUMBER_OFFSET, TEAM_SIZE_OFFSET, MOST_THREADS_OFFSET = 16, 24, 32, 40
LAST_CALL_OFFSET = 48  # i64: when the last call of any program has ended; whichever of several writes it last
ARRIVAL_SPINS = 20_000  # pauses, about a millisecond: as long as the system may take to wake a thread
MAILBOX_BYTES = LINE_BYTES
WORKERS_BYTES = LINE_BYTES + MOST_LANES * MAILBOX_BYTES
# In a mailbox: its state, which the worker sleeps on; whether the worker should end; the function to run, its argument;
# how many functions have returned, with the count of sleepers that flags.py keeps behind a counter.
STATE_OFFSET, CLOSING_OFFSET, FUNCTION_OFFSET, ARGUMENT_OFFSET, RETURNED_OFFSET = 0, 4, 8, 16, 32

# IDLE: the worker spins. RESERVED: a caller is about to post. POSTED: there is work. RUNNING: the worker does it.
# ASLEEP: the worker sleeps, or is about to. GONE: it has ended. A caller may take it from IDLE and ASLEEP.
IDLE, RESERVED, POSTED, RUNNING, ASLEEP, GONE = range(6)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where a plan's buffers are found in a frame: slots of the table, or offsets of the arena."""

    slots: dict[int, int]
    places: dict[int, int]
    arena_offset: int
    bytes: int

    def slot_offset(self, buffer: int) -> int:
        """Give the byte of the frame where a buffer's base address is kept."""
        return TABLE_OFFSET + self.slots[buffer] * POINTER_BYTES


def frame_of(plan: Plan, lasting: Collection[int] = ()) -> Frame:
    """Lay out the frame of a plan.

    The table has inputs and outputs first, which are others at every call, then the `lasting` inputs, packed buffers
    and constants, which are nearly always the same.
    """
    inputs = sorted(plan.of_kind("input"), key=lambda input_: input_[1].index in lasting)
    others = [entry for kind in LASTING_KINDS for entry in plan.of_kind(kind)]
    changing = [entry for entry in inputs if entry[1].index not in lasting]
    numbers = [number for number, _ in (*changing, *plan.of_kind("output"), *inputs[len(changing) :], *others)]
    slots = {number: slot for slot, number in enumerate(numbers)}
    arena_offset = -(-(TABLE_OFFSET + len(slots) * POINTER_BYTES) // ARENA_ALIGNMENT) * ARENA_ALIGNMENT
    places = {number: arena_offset + plan.offsets[buffer.index] for number, buffer in plan.of_kind("arena")}
    return Frame(slots, places, arena_offset, arena_offset + plan.arena_bytes)


def mailbox_offset(number: int) -> int:
    """Give the byte of the crew's block where a mailbox begins."""
    return LINE_BYTES + number * MAILBOX_BYTES
