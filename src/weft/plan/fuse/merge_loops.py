"""Merge loops of a plan that read the same elements into one with several outputs.

What an optimizer keeps of a parameter and the parameter itself are then written in one pass over memory. Loops become
one where they run over the same space, and each element of what either writes is touched at that element alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.plan.form.plan import KernelCall, Location, Plan
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.loop import LoopExpression, LoopKernel, plan_loop
from weft.target import Target

FARTHEST = 16  # calls between two loops: what waits longer is out of the cache, and its inputs stay in memory
LONGEST_BODY = 64
MOST_BUFFERS = 16

Access = tuple[Location, View]


def merge_loops(plan: Plan, target: Target) -> Plan:
    """Make loops that share elements one, as far as the order of calls allows."""
    calls = [*plan.calls]
    position = 1
    while position < len(calls):
        merged = _merged_with_earlier(calls, position, target)
        if merged is None:
            position += 1
        else:
            earlier, call = merged
            calls[position] = call
            del calls[earlier]
    return replace(plan, calls=tuple(calls))


def _merged_with_earlier(calls: Sequence[KernelCall], position: int, target: Target) -> tuple[int, KernelCall] | None:
    """The nearest earlier loop that a call can be one with, by position, and that one call."""
    second = calls[position]
    if not isinstance(second.kernel, LoopKernel):
        return None
    for earlier in range(position - 1, max(-1, position - 1 - FARTHEST), -1):
        first = calls[earlier]
        if _fit(first, second) and not any(_depend(first, between) for between in calls[earlier + 1 : position]):
            return earlier, _one(first, second, target)
    return None


def _fit(first: KernelCall, second: KernelCall) -> bool:
    one, other = first.kernel, second.kernel
    if not isinstance(one, LoopKernel) or not isinstance(other, LoopKernel) or one.sizes != other.sizes:
        return False
    if any(loop.tables or loop.in_place or loop.schedule.transposed for loop in (one, other)):
        return False
    # What the second writes the first has nothing to do with: buffers of one kernel do not overlap.
    if {place.buffer for place in second.writes} & {place.buffer for place in first.arguments}:
        return False
    seen = {*_accesses(first), *_accesses(second)}
    if len(seen) > MOST_BUFFERS or len(one.body) + len(other.body) > LONGEST_BODY:
        return False
    written = {place.buffer for place in (*first.writes, *second.writes)}
    views: dict[int, set[Access]] = {}
    for place, view in seen:
        views.setdefault(place.buffer, set()).add((place, view))
    shared = {*_accesses(first)} & {*_accesses(second)}
    return any(any(view.strides) for _, view in shared) and all(len(views[buffer]) == 1 for buffer in written)


def _accesses(call: KernelCall) -> list[Access]:
    assert isinstance(call.kernel, LoopKernel)
    return list(zip(call.arguments, (*call.kernel.outputs, *call.kernel.inputs), strict=True))


def _depend(first: KernelCall, second: KernelCall) -> bool:
    """Whether calls must stay in order: one of them writes what the other one touches."""
    written, also = ({place.buffer for place in call.writes} for call in (first, second))
    touched, others = ({place.buffer for place in call.arguments} for call in (first, second))
    return bool(written & others or also & touched)


def _one(first: KernelCall, second: KernelCall, target: Target) -> KernelCall:
    one, other = first.kernel, second.kernel
    assert isinstance(one, LoopKernel)
    assert isinstance(other, LoopKernel)
    written = _accesses(first)[: len(one.outputs)]
    inputs = _accesses(first)[len(one.outputs) :]
    wanted = _accesses(second)[len(other.outputs) :]
    inputs += [access for access in dict.fromkeys(wanted) if access not in inputs and access not in written]
    own = _renumbered(one, [*range(len(one.inputs))], len(inputs))
    known = [*own.results]
    places = [known[written.index(access)] if access in written else inputs.index(access) for access in wanted]
    rest = _renumbered(other, places, len(inputs) + len(one.body))
    expression = LoopExpression(
        other.name,
        other.sizes,
        (*one.outputs, *other.outputs),
        tuple(view for _, view in inputs),
        (*own.body, *rest.body),
        (*own.results, *rest.results),
    )
    return KernelCall(
        plan_loop(expression, target), (*first.writes, *second.writes), tuple(place for place, _ in inputs)
    )


def _renumbered(kernel: LoopKernel, inputs: Sequence[int], first: int) -> LoopKernel:
    """A kernel's body as it is where its inputs have these numbers, and its instructions begin at a number."""
    numbers = [*inputs, *range(first, first + len(kernel.body))]

    def renumbered(line: Instruction) -> Instruction:
        return replace(line, operands=tuple(numbers[operand] for operand in line.operands))

    results = tuple(numbers[result] for result in kernel.results)
    return replace(kernel, body=tuple(map(renumbered, kernel.body)), results=results)
