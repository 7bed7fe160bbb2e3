"""Define a Plan: kernels over buffers, cut into tiles, tiles given to lanes, buffers given places.

A Plan is immutable. Buffers are pieces of memory: tensors handed in or out, constants and packed weights that live as
long as the program, and intermediates, which share one block of memory per call (the arena). Calls are kernels with
their arguments, in an order in which they may run one after another. Lanes say which tiles of which call run where, and
where a lane waits for another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from weft.plan.kernels.kernel import Kernel

BufferKind = Literal["input", "output", "arena", "constant", "packed"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One piece of memory. `index` counts within its kind: the region's inputs, outputs, constants, packed weights."""

    kind: BufferKind
    index: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Location:
    """A byte of a buffer, by the buffer's number in the plan."""

    buffer: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class NeededTiles:
    """Which tiles of a call run, by the sizes of the call of the program, which are i32 numbers in input buffers.

    Range i of tiles is [starts[i], starts[i + 1]). It runs where each size is above the number that `least` has for it:
    a row for each size, a number for each range.
    """

    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    least: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class LoopEnd:
    """Where a loop of a kernel ends: at (size + more) * times, but at `most`; the size is an i32 in an input buffer.

    With `more` below zero the loop goes over a later part of a dimension, of which a small size has nothing. The sum is
    rounded up to a multiple of `whole`, a power of two.
    """

    size: int
    more: int
    times: int
    most: int
    whole: int = 1

    @property
    def is_exact(self) -> bool:
        """Whether it ends where a size does, or a multiple of it."""
        return self.more == 0 and self.whole == 1

    def count(self, size: int) -> int:
        """Give the count of a size."""
        return min(max(-(-(size + self.more) // self.whole) * self.whole * self.times, 0), self.most)


@dataclass(frozen=True, slots=True)
class Pitch:
    """How many elements of an argument a kernel steps for one of its dimensions: a number times sizes.

    The sizes are i32 numbers in input buffers.
    """

    number: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel and where its arguments are: what it writes, then what it reads, in the order the kernel takes them.

    Where sizes vary, some tiles are `needed` by calls of larger sizes alone, and the loops that a kernel has such ends
    for (`Kernel.ends`) end at `ends`, in this order. Of arguments that are dense (`Plan.dense`) a kernel is given the
    `pitches` and `bounds` that it asks for (`Kernel.pitches`, `Kernel.bounds`), in this order.
    """

    kernel: Kernel
    writes: tuple[Location, ...]
    reads: tuple[Location, ...]
    needed: NeededTiles | None = None
    ends: tuple[LoopEnd, ...] = ()
    pitches: tuple[Pitch, ...] = ()
    bounds: tuple[LoopEnd, ...] = ()

    @property
    def arguments(self) -> tuple[Location, ...]:
        """All arguments in the kernel's order."""
        return (*self.writes, *self.reads)


@dataclass(frozen=True, slots=True)
class Run:
    """Tiles [begin, end) of a call, run by a lane.

    A `share` is a number and of how many: such a lane runs that one of so many parts of these tiles, which together are
    all of them. Which those are is found when it runs, by the sizes of the call of the program.
    """

    call: int
    begin: int
    end: int
    share: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A lane waits until another one has finished its first `count` runs of this call of the program."""

    lane: int
    count: int


Lane = tuple[Run | Wait, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Buffers, calls, lanes; the arena's size and, for each buffer of kind arena in order of index, its offset there.

    `packing` are the calls that fill the packed buffers: they run when a weight has changed, before everything else.
    `checks` read inputs and constants alone, and write nothing: they run at each call, before all others, and if one of
    them finds an index out of range nothing else runs. Where a plan with lanes is `alone`, one lane is done sooner by
    estimate: calls begin so, and the clock decides. Of `tight` buffers nothing is touched beyond the sizes of a call.
    Those of them that are `dense` lie without gaps at any sizes: their strides are made of sizes, and what kernels have
    as constants is the same at the largest ones.
    """

    buffers: tuple[Buffer, ...]
    calls: tuple[KernelCall, ...]
    packing: tuple[KernelCall, ...] = ()
    checks: tuple[KernelCall, ...] = ()
    lanes: tuple[Lane, ...] = ()
    arena_bytes: int = 0
    offsets: tuple[int, ...] = ()
    alone: bool = False
    tight: tuple[int, ...] = ()
    dense: tuple[int, ...] = ()

    def of_kind(self, kind: BufferKind) -> Iterator[tuple[int, Buffer]]:
        """The buffers of one kind, with their numbers in the plan."""
        for number, buffer in enumerate(self.buffers):
            if buffer.kind == kind:
                yield number, buffer
