"""Where a lane is -> times in memory: writes into a function what notes the processor's clock, for timelines.

A clocked function notes the time at its start and after each of its items. The frame says where to.
"""

from weft.codegen.frame import CLOCK_OFFSET
from weft.codegen.module import FunctionWriter
from weft.plan.plan import Lane


def first_ticks(lanes: tuple[Lane, ...]) -> list[int]:
    """Give the place of each lane's first time among all; the last number is how many there are."""
    places = [0]
    for lane in lanes:
        places.append(places[-1] + len(lane) + 1)
    return places


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
        f.store(f.intrinsic("llvm.readcyclecounter", "i64", suffix=[]), f.offset(times, "i64", self._place))
        self._place += 1
