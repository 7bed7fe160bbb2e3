"""Kernel calls of a plan -> calls in a native function, with addresses from the frame that the function is given."""

from collections.abc import Sequence

from weft.codegen.llvm.module import FunctionWriter
from weft.codegen.llvm.register import Register
from weft.codegen.plan_kernels import KernelFunctions
from weft.codegen.threads.frame import Frame
from weft.plan.form.plan import KernelCall, Location


class CallWriter:
    """Writes calls of kernels into a function whose one parameter is the frame."""

    def __init__(self, writer: FunctionWriter, functions: KernelFunctions, frame: Frame) -> None:
        self.writer = writer
        self.functions = functions
        self.frame = frame

    def run(self, call: KernelCall, begin: int, end: int) -> None:
        """Write the call of some tiles of a kernel."""
        if begin < end:
            addresses = [self.address(place) for place in call.arguments]
            write_call(self.writer, self.functions.name(call.kernel), addresses, (begin, end))

    def address(self, place: Location) -> Register:
        """Write where a place of a buffer is in memory."""
        # SAFETY: the executable fills the table with the addresses of tensors as large as the plan's buffers, and the
        # frame is as long as its layout says.
        (frame,) = self.writer.parameters
        if place.buffer in self.frame.slots:
            base = self.writer.load("ptr", self.writer.offset(frame, "i8", self.frame.slot_offset(place.buffer)))
            return self.writer.offset(base, "i8", place.offset)
        return self.writer.offset(frame, "i8", self.frame.places[place.buffer] + place.offset)


def write_call(writer: FunctionWriter, name: str, addresses: Sequence[Register], tiles: tuple[int, int]) -> None:
    """Write the call of a kernel's function."""
    writer.call(name, (*addresses, *map(writer.integer, tiles)))
