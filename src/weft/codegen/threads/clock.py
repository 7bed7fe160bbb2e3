"""Where a lane is -> times in memory: writes into a function what notes the system's clock, for timelines.

A clocked function notes the time at its start and after each of its items: seconds and nanoseconds, as `clock_gettime`
gives them. The frame says where to. (The processor's own counter is quicker, but in virtual machines that of one core
may be a tenth of a millisecond behind that of another.)
"""

from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import constant
from weft.codegen.threads.frame import CLOCK_OFFSET
from weft.plan.form.plan import Lane

TICK_WORDS = 2  # seconds, nanoseconds
MONOTONIC = 1  # the clock that Python's perf_counter reads too


def first_ticks(lanes: tuple[Lane, ...]) -> list[int]:
    """Give the place of each lane's first time among all; the last number is how many there are."""
    places = [0]
    for lane in lanes:
        places.append(places[-1] + len(lane) + 1)
    return places


def serial_tick(lanes: tuple[Lane, ...]) -> int:
    """Give the place of the first time of the function that runs all calls in order: behind those of the lanes."""
    return first_ticks(lanes)[-1] if len(lanes) > 1 else 0


class Clock:
    """Writes the notes of one function, whose parameter is the frame, from a place on."""

    def __init__(self, writer: FunctionWriter, place: int) -> None:
        self._writer = writer
        self._place = place

    def tick(self) -> None:
        """Note the time."""
        f = self._writer
        (frame,) = f.parameters
        # SAFETY: whoever runs a clocked function has put there the address of memory for all ticks of its plan.
        times = f.load("ptr", f.offset(frame, "i8", CLOCK_OFFSET))
        place = f.offset(times, "i64", TICK_WORDS * self._place)
        f.imported("clock_gettime", "i32", constant("i32", MONOTONIC), place)
        self._place += 1
