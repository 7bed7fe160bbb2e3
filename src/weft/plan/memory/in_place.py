"""A plan without lanes, and outputs that may take the place of inputs -> the plan that writes them there.

An output may be written over an input where one loop makes it, element by element from the same elements of the input,
or where it is a copy of the input with some elements written over, as a decoder's keys and values are: the copy is left
out. Whatever else reads the input must be able to come before. Lanes are found later and heed who touches which bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.plan.kernels.loop import LoopExpression, LoopKernel, plan_loop
from weft.plan.plan import KernelCall, Location, Plan
from weft.target import Target

Pair = tuple[int, int]


def write_in_place(plan: Plan, pairs: Sequence[Pair], target: Target) -> tuple[Plan, tuple[Pair, ...]]:
    """Let outputs take the place of inputs, pairs of both by index; gives the pairs that could."""
    inputs = {buffer.index: number for number, buffer in plan.of_kind("input")}
    outputs = {buffer.index: number for number, buffer in plan.of_kind("output")}
    done: list[Pair] = []
    for output, source in pairs:
        found = _one(plan, outputs[output], inputs[source], target)
        if found is not None:
            plan = found
            done.append((output, source))
    return plan, tuple(done)


def _one(plan: Plan, output: int, source: int, target: Target) -> Plan | None:
    if any(_touches(call.reads, source) for call in plan.packing):
        return None
    calls = [call for call in plan.calls if not _stays(call, output, source)]
    writers = [number for number, call in enumerate(calls) if _touches(call.writes, output)]
    if not writers:
        return None
    writer, own = writers[0], writers
    if len(calls) == len(plan.calls):
        changed = _over_its_input(calls[writer], Location(output), Location(source), target)
        if len(writers) != 1 or changed is None:
            return None
        calls[writer], own = changed, []
    readers = [number for number, call in enumerate(calls) if _touches(call.reads, source)]
    last = max([writer, *readers])
    after = _dependent(calls, writer, last)
    if any(number in own or (number in after and number != writer) for number in readers):
        return None
    before = [calls[number] for number in range(writer, last + 1) if number not in after]
    calls[writer : last + 1] = [*before, *(calls[number] for number in sorted(after))]
    # Most calls touch neither: a plan of a training step has hundreds of calls and of such pairs.
    touching = (_touches(call.writes, output) or _touches(call.reads, output) for call in calls)
    moved = tuple(
        _moved(call, output, source) if touched else call for call, touched in zip(calls, touching, strict=True)
    )
    return replace(plan, calls=moved)


def _stays(call: KernelCall, output: int, source: int) -> bool:
    """Whether a call only copies elements of an input to the same places of an output."""
    kernel = call.kernel
    if not isinstance(kernel, LoopKernel) or len(call.writes) != 1 or len(call.reads) != 1:
        return False
    [written], [read] = call.writes, call.reads
    moves = (written.buffer, read.buffer) != (output, source) or written.offset != read.offset
    return not moves and not kernel.body and kernel.outputs == kernel.inputs and kernel.results == (0,)


def _over_its_input(call: KernelCall, output: Location, source: Location, target: Target) -> KernelCall | None:
    """The call with its output in the place of its input, if each element is made of the same one of the input."""
    kernel = call.kernel
    if not isinstance(kernel, LoopKernel) or output not in call.writes or call.reads.count(source) != 1:
        return None
    place, number = call.writes.index(output), call.reads.index(source)
    alone = sum(read.buffer == source.buffer for read in call.reads) == 1
    taken = {entry for pair in kernel.in_place for entry in (("output", pair[0]), ("input", pair[1]))}
    if not alone or number >= len(kernel.inputs) or {("output", place), ("input", number)} & taken:
        return None
    if kernel.outputs[place] != kernel.inputs[number]:
        return None
    again = LoopExpression(
        kernel.name,
        kernel.sizes,
        kernel.outputs,
        kernel.inputs,
        kernel.body,
        kernel.results,
        (*kernel.in_place, (place, number)),
        kernel.tables,
    )
    return replace(call, kernel=plan_loop(again, target))


def _dependent(calls: Sequence[KernelCall], writer: int, last: int) -> set[int]:
    """The calls from a writer to the last one that must come after it: they touch what it, or such a call, writes."""
    found = {writer}
    wrote = {place.buffer for place in calls[writer].writes}
    read = {place.buffer for place in calls[writer].reads}
    for number in range(writer + 1, last + 1):
        writes = {place.buffer for place in calls[number].writes}
        reads = {place.buffer for place in calls[number].reads}
        if wrote & writes or wrote & reads or read & writes:
            found.add(number)
            wrote |= writes
            read |= reads
    return found


def _moved(call: KernelCall, output: int, source: int) -> KernelCall:
    def moved(place: Location) -> Location:
        return replace(place, buffer=source) if place.buffer == output else place

    return replace(call, writes=tuple(map(moved, call.writes)), reads=tuple(map(moved, call.reads)))


def _touches(places: Sequence[Location], buffer: int) -> bool:
    # A generator costs several times as much as a list of so few, and nothing is asked as often.
    return buffer in [place.buffer for place in places]
