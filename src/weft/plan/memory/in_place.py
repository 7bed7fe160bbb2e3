"""Write outputs of a plan without lanes over inputs, and intermediates over operands, that nobody reads afterwards.

An output may be written over an input where one loop, or what follows a product, makes it, element by element from the
same elements of the input (the momentum of a weight from its gradient), or where it is a copy of the input with some
elements written over, as a decoder's keys and values are: the copy is left out. Whatever else reads the input must be
able to come before. Lanes are found later and heed who touches which bytes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from weft.ir.graph import Graph, Value
from weft.plan.form.dependencies import Footprints, predecessors
from weft.plan.form.plan import KernelCall, Location, Plan
from weft.plan.kernels.kernel import ByteBox, disjoint
from weft.plan.kernels.loop import LoopKernel
from weft.plan.regions.indices import limit_of
from weft.plan.regions.region import NATIVE, Region
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


def _written(call: KernelCall, buffer: int) -> list[ByteBox | None]:
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


# Intermediates are written over what the same kernel's epilogue reads last. The result of a residual block takes the
# place of the block's input: a third less is in use at once, and what is written is in the cache already. It is done
# only where whoever else touches the operand comes before in any case, so no call waits for one that it did not wait
# for. Lanes, which are found later and heed who touches which bytes, may wait for each other more often: with several
# of them it is done for much memory alone.
WORTH_WAITING = 1 << 20  # bytes, which take so long to compute that a wait of a lane does not count


def write_over_operands(plan: Plan, lanes: int, target: Target) -> Plan:
    """Let the results of products and convolutions take the places of operands that nobody reads afterwards."""
    users: dict[int, list[int]] = defaultdict(list)
    for number, call in enumerate(plan.calls):
        for buffer in {place.buffer for place in call.arguments}:
            users[buffer].append(number)
    least = WORTH_WAITING if lanes > 1 else 0
    pairs = (_pair(plan, number, users, target) for number in range(len(plan.calls)))
    found = [pair for pair in pairs if pair is not None and plan.buffers[pair[1]].bytes >= least]
    if not found:
        return plan
    before = predecessors(Footprints(plan))
    instead: dict[int, int] = {}
    for number, written, read in found:
        # What is merged already is no matter: who touched the operand's place before came before the operand's maker.
        if set(users[read]) <= _ancestors(before, number, users[read][0]):
            instead[written] = instead.get(read, read)
    return replace(plan, calls=tuple(_with_buffers(call, instead) for call in plan.calls)) if instead else plan


def _pair(plan: Plan, number: int, users: dict[int, list[int]], target: Target) -> tuple[int, int, int] | None:
    """A call, the intermediate that it alone writes, and one that it reads last and at the very same places."""
    call = plan.calls[number]
    if len(call.writes) != 1:
        return None
    [out] = call.writes
    whole, touched = plan.buffers[out.buffer], [place.buffer for place in call.arguments]
    written_here = users[out.buffer][0] == number and touched.count(out.buffer) == 1
    others = (plan.calls[user] for user in users[out.buffer][1:])
    if whole.kind != "arena" or not written_here or any(_writes(other, out.buffer) for other in others):
        return None
    for position, place in enumerate(call.reads):
        buffer = plan.buffers[place.buffer]
        alike = (buffer.kind, buffer.bytes, place.offset) == ("arena", whole.bytes, out.offset)
        last = users[place.buffer][-1] == number and touched.count(place.buffer) == 1
        # A loop would have to be planned again: that is for outputs alone, in `in_place`.
        if alike and last and call.kernel.written_over(0, position, target) is call.kernel:
            return number, out.buffer, place.buffer
    return None


def _ancestors(before: list[list[int]], number: int, first: int) -> set[int]:
    """A call and all, from a first one on, that must be done before it."""
    found, waiting = {number}, [number]
    while waiting:
        new = {one for one in before[waiting.pop()] if one >= first} - found
        found |= new
        waiting += new
    return found


def _writes(call: KernelCall, buffer: int) -> bool:
    return any(place.buffer == buffer for place in call.writes)


def _with_buffers(call: KernelCall, instead: dict[int, int]) -> KernelCall:
    def moved(places: Sequence[Location]) -> tuple[Location, ...]:
        return tuple(replace(place, buffer=instead.get(place.buffer, place.buffer)) for place in places)

    return replace(call, writes=moved(call.writes), reads=moved(call.reads))


# What computes, whatever the data: only calls of operators, and what has an index, can fail.
SAFE = frozenset(
    {
        "item",
        "constant",
        "convolution_input_gradient",
        "convolution_weight_gradient",
        "max_pool_gradient",
        "average_pool_gradient",
    }
)
Pairs = tuple[tuple[int, int], ...]


def replaceable(
    lifted: Graph, compiled: Graph, regions: Sequence[Region], owned: Collection[Value] = ()
) -> list[Pairs]:
    """For each region, pairs of an output and an input by index; `compiled` is the graph with a value a region.

    A program's writes happen when all is computed, so that a call that fails changes nothing. A region may do its
    writes itself where nothing comes after it that can fail, or that reads what the inputs held before. What a call
    that fails leaves in `owned` inputs, nobody sees.
    """
    wanted = Counter(lifted.roots())
    steps = {
        value.attributes["region"]: position for position, value in enumerate(compiled.values) if value.op == NATIVE
    }
    found: list[Pairs] = []
    for number, region in enumerate(regions):
        # A region's own indices are checked before it writes anything.
        after = compiled.values[steps[number] + 1 :]
        can_fail = any(_can_fail(value, regions) for value in after)
        read_later = {operand for value in after for operand in value.operands}
        found.append(
            tuple(
                (region.outputs.index(write.value), region.inputs.index(write.input))
                for write in lifted.writes
                if write.value in region.outputs
                and write.input in region.inputs
                and not write.path
                and wanted[write.value] == 1
                and write.value.type == write.input.type
                and write.input not in read_later
                and _is_own(write.input, lifted)
                and (not can_fail or write.input in owned)
            )
        )
    return found


def _can_fail(value: Value, regions: Sequence[Region]) -> bool:
    if value.op == NATIVE:
        return any(limit_of(inside) is not None for inside in regions[value.attributes["region"]].values)
    return value.op not in SAFE


def _is_own(value: Value, graph: Graph) -> bool:
    """Whether an input is written once, and not handed out as it was."""
    return sum(write.input is value for write in graph.writes) == 1 and all(
        value is not write.value for write in graph.writes
    )
