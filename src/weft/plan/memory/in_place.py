"""A plan without lanes, and outputs that may take the place of inputs -> the plan that writes them there.

An output may be written over an input where one loop, or what follows a product, makes it, element by element from the
same elements of the input (the momentum of a weight from its gradient), or where it is a copy of the input with some
elements written over, as a decoder's keys and values are: the copy is left out. Whatever else reads the input must be
able to come before. Lanes are found later and heed who touches which bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from weft.plan.form.plan import KernelCall, Location, Plan
from weft.plan.kernels.box import Box, disjoint
from weft.plan.kernels.loop import LoopKernel
from weft.target import Target

Pair = tuple[int, int]


def write_in_place(plan: Plan, pairs: Sequence[Pair], target: Target) -> tuple[Plan, tuple[Pair, ...]]:
    """Let outputs take the place of inputs, pairs of both by index; gives the pairs that could."""
    inputs = {buffer.index: number for number, buffer in plan.of_kind("input")}
    outputs = {buffer.index: number for number, buffer in plan.of_kind("output")}
    calls = _Calls(plan, target)
    done = [pair for pair in pairs if calls.join(outputs[pair[0]], inputs[pair[1]])]
    return replace(plan, calls=tuple(calls.calls)), tuple(done)


class _Calls:
    """The calls of a plan while outputs take the place of inputs."""

    def __init__(self, plan: Plan, target: Target) -> None:
        self.calls = list(plan.calls)
        self._target = target
        self._packed = {place.buffer for call in plan.packing for place in call.reads}
        # A plan of a training step has hundreds of calls and of pairs: most calls touch neither buffer of a pair.
        self._touched = [{place.buffer for place in call.arguments} for call in self.calls]

    def join(self, output: int, source: int) -> bool:
        """Let an output take the place of an input, both by buffer; tells whether it could."""
        if source in self._packed:
            return False
        near = [number for number, buffers in enumerate(self._touched) if output in buffers or source in buffers]
        copies = {number for number in near if _stays(self.calls[number], output, source)}
        rest = [number for number in near if number not in copies]
        writers = [number for number in rest if _touches(self.calls[number].writes, output)]
        if not writers or any(
            number < copy and _may_meet(self.calls[number], self.calls[copy], output)
            for copy in copies
            for number in writers
        ):
            return False  # what the copy writes over would stay: a border, say, for which all is filled at first
        writer, own = writers[0], writers
        changed: KernelCall | None = self.calls[writer]
        if not copies:
            changed, own = _over_its_input(self.calls[writer], Location(output), Location(source), self._target), []
            if len(writers) != 1:
                return False
        if changed is None:
            return False
        readers = [number for number in rest if _touches(self.calls[number].reads, source)]
        last = max([writer, *readers])
        after = self._dependent(writer, last, copies)
        if any(number in own or (number in after and number != writer) for number in readers):
            return False
        self.calls[writer] = changed
        before = [number for number in range(writer, last + 1) if number not in after]
        order = [*range(writer), *before, *sorted(after), *range(last + 1, len(self.calls))]
        self._take([number for number in order if number not in copies], output, source)
        return True

    def _dependent(self, writer: int, last: int, copies: Collection[int]) -> set[int]:
        """The calls from a writer to the last one that must come after it: they touch what it, or such a call, writes.

        Copies are left out.
        """
        found = {writer}
        wrote = {place.buffer for place in self.calls[writer].writes}
        read = {place.buffer for place in self.calls[writer].reads}
        for number in range(writer + 1, last + 1):
            writes = {place.buffer for place in self.calls[number].writes}
            reads = {place.buffer for place in self.calls[number].reads}
            if number not in copies and (wrote & writes or wrote & reads or read & writes):
                found.add(number)
                wrote |= writes
                read |= reads
        return found

    def _take(self, order: Sequence[int], output: int, source: int) -> None:
        """Put calls in an order, with one buffer in the place of another."""
        for number in order:
            if output in self._touched[number]:
                self.calls[number] = _moved(self.calls[number], output, source)
                self._touched[number] = {place.buffer for place in self.calls[number].arguments}
        self.calls = [self.calls[number] for number in order]
        self._touched = [self._touched[number] for number in order]


def _stays(call: KernelCall, output: int, source: int) -> bool:
    """Whether a call only copies elements of an input to the same places of an output."""
    kernel = call.kernel
    if not isinstance(kernel, LoopKernel) or len(call.writes) != 1 or len(call.reads) != 1:
        return False
    [written], [read] = call.writes, call.reads
    moves = (written.buffer, read.buffer) != (output, source) or written.offset != read.offset
    return not moves and not kernel.body and kernel.outputs == kernel.inputs and kernel.results == (0,)


def _may_meet(one: KernelCall, other: KernelCall, buffer: int) -> bool:
    """Whether two calls may write the same byte of a buffer."""
    return any(
        first is None or second is None or not disjoint(first, second)
        for first in _written(one, buffer)
        for second in _written(other, buffer)
    )


def _written(call: KernelCall, buffer: int) -> list[Box | None]:
    tiles = call.kernel.tile_count
    found = call.kernel.boxes(0, tiles) if tiles else (None,) * len(call.writes)
    places = zip(call.writes, found, strict=False)
    return [None if one is None else one.moved(place.offset) for place, one in places if place.buffer == buffer]


def _over_its_input(call: KernelCall, output: Location, source: Location, target: Target) -> KernelCall | None:
    """The call with its output in the place of its input, if each element is made of the same one of the input."""
    if output not in call.writes or call.reads.count(source) != 1:
        return None
    if sum(read.buffer == source.buffer for read in call.reads) != 1:
        return None
    kernel = call.kernel.written_over(call.writes.index(output), call.reads.index(source), target)
    return None if kernel is None else replace(call, kernel=kernel)


def _moved(call: KernelCall, output: int, source: int) -> KernelCall:
    def moved(place: Location) -> Location:
        return replace(place, buffer=source) if place.buffer == output else place

    return replace(call, writes=tuple(map(moved, call.writes)), reads=tuple(map(moved, call.reads)))


def _touches(places: Sequence[Location], buffer: int) -> bool:
    # A generator costs several times as much as a list of so few, and nothing is asked as often.
    return buffer in [place.buffer for place in places]
