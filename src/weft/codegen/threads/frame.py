"""A plan -> where everything lies in a frame: the one block of memory that a call works in.

A frame begins with a line of flags for each lane, then the call's number, where the program and the crew of workers
are described, where a clocked program notes times and what marks a call that must not run, then the table of base
addresses of all buffers that lie elsewhere, then the arena. Any frame that is large enough serves any program: flags
lie in the same place in all of them, and numbers of calls only grow, so nothing is ever reset.
"""

from collections.abc import Collection
from dataclasses import dataclass

from weft.plan.form.plan import BufferKind, Plan

MOST_LANES = 64
LINE_BYTES = 128  # two cache lines: processors fetch them in pairs, and lanes must not disturb each other
EPOCH_OFFSET = MOST_LANES * LINE_BYTES
PROGRAM_OFFSET, CREW_OFFSET, CLOCK_OFFSET = EPOCH_OFFSET + 8, EPOCH_OFFSET + 16, EPOCH_OFFSET + 24
MARK_OFFSET = EPOCH_OFFSET + 32
TABLE_OFFSET = EPOCH_OFFSET + LINE_BYTES
POINTER_BYTES = 8
ARENA_ALIGNMENT = 4096
LASTING_KINDS: tuple[BufferKind, ...] = ("packed", "constant")


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
