"""A plan without lanes -> the same plan with intermediates written over what the same kernel's epilogue reads last.

The result of a residual block takes the place of the block's input: a third less is in use at once, and what is written
is in the cache already. It is done only where whoever else touches the operand comes before in any case, so no call
waits for one that it did not wait for. Lanes, which are found later and heed who touches which bytes, may wait for each
other more often: with several of them it is done for much memory alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from weft.plan.form.dependencies import Footprints, predecessors
from weft.plan.form.plan import KernelCall, Location, Plan
from weft.target import Target

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
    return replace(plan, calls=tuple(_moved(call, instead) for call in plan.calls)) if instead else plan


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


def _moved(call: KernelCall, instead: dict[int, int]) -> KernelCall:
    def moved(places: Sequence[Location]) -> tuple[Location, ...]:
        return tuple(replace(place, buffer=instead.get(place.buffer, place.buffer)) for place in places)

    return replace(call, writes=moved(call.writes), reads=moved(call.reads))
