"""The lanes of a plan -> one native function each, which hand over to one another by counters in the frame.

A lane's counter is the call's number and how many of its runs are done; as numbers of calls only grow, counters need
no reset. A lane publishes where another one waits for it. That all lanes have ended is not seen here: the code of a
lane may go as soon as its caller returns, so who waits for its end must wait until it has returned.
"""

from weft.codegen.call_writer import CallWriter
from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register
from weft.codegen.plan_kernels import KernelFunctions
from weft.codegen.threads.clock import Clock, first_ticks
from weft.codegen.threads.flags import PUBLISH, WAIT, emit_publish, emit_wait
from weft.codegen.threads.frame import EPOCH_OFFSET, LINE_BYTES, MOST_LANES, Frame
from weft.errors import InternalError
from weft.plan.form.plan import Plan, Wait

COUNT_BITS = 24  # of a counter, for the runs that are done; the call's number is above


def emit_lanes(functions: KernelFunctions, frame: Frame, plan: Plan, *, clocked: bool = False) -> None:
    """Write the functions of all lanes; a plan without lanes, or with one, is run by its serial function alone."""
    if len(plan.lanes) < 2:
        return
    if len(plan.lanes) > MOST_LANES:
        raise InternalError(f"a plan has {len(plan.lanes)} lanes", why=f"a frame has room for {MOST_LANES}")
    emit_wait(functions.module)
    emit_publish(functions.module)
    for number in range(len(plan.lanes)):
        writer = functions.module.function(f"lane_{number}", ["ptr"])
        clock = Clock(writer, first_ticks(plan.lanes)[number]) if clocked else None
        _LaneWriter(CallWriter(writer, functions, frame), plan, clock).lane(number)


class _LaneWriter:
    """Writes the function of one lane."""

    def __init__(self, calls: CallWriter, plan: Plan, clock: Clock | None) -> None:
        self.calls = calls
        self.clock = clock
        self.plan = plan
        self.writer: FunctionWriter = calls.writer
        (self.frame,) = self.writer.parameters
        epoch = self.writer.load("i64", self.writer.offset(self.frame, "i8", EPOCH_OFFSET))
        self.base = self.writer.binary("shl", epoch, self.writer.integer(COUNT_BITS))

    def lane(self, number: int) -> None:
        """Write the items of a lane."""
        lane, done = self.plan.lanes[number], 0
        awaited = {
            item.count for other in self.plan.lanes for item in other if isinstance(item, Wait) and item.lane == number
        }
        self.writer.leave_as_written()
        self._tick()
        for item in lane:
            if isinstance(item, Wait):
                self._wait(item.lane, item.count)
            else:
                self.calls.run(self.plan.calls[item.call], item.begin, item.end)
                done += 1
                if done in awaited:
                    self._publish(number, done)
            self._tick()

    def _tick(self) -> None:
        if self.clock is not None:
            self.clock.tick()

    def _wait(self, lane: int, count: int) -> None:
        if count:
            self.writer.call(WAIT, (self._counter(lane), self.writer.add(self.base, count)))

    def _publish(self, lane: int, count: int) -> None:
        self.writer.call(PUBLISH, (self._counter(lane), self.writer.add(self.base, count)))

    def _counter(self, lane: int) -> Register:
        return self.writer.offset(self.frame, "i8", lane * LINE_BYTES)
