"""A plan without lanes -> the same plan with intermediates written over what the same kernel's epilogue reads last.

The result of a residual block takes the place of the block's input: a third less is in use at once, and what is written
is in the cache already. It is done only where whoever else touches the operand comes before in any case, so no call
waits for one that it did not wait for. Lanes, which are found later and heed who touches which bytes, may wait for each
other more often: with several of them it is done for much memory alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from weft.plan.form.dependencies import Footprints, predecessors
from weft.plan.form.plan import Kernel, KernelCall, Location, Plan
from weft.plan.kernels.conv import ConvKernel, Images
from weft.plan.kernels.epilogue import Operand
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.winograd import WinogradKernel, WinogradStage

WORTH_WAITING = 1 << 20  # bytes, which take so long to compute that a wait of a lane does not count


def write_over_operands(plan: Plan, lanes: int) -> Plan:
    """Let the results of products and convolutions take the places of operands that nobody reads afterwards."""
    users: dict[int, list[int]] = defaultdict(list)
    for number, call in enumerate(plan.calls):
        for buffer in {place.buffer for place in call.arguments}:
            users[buffer].append(number)
    least = WORTH_WAITING if lanes > 1 else 0
    pairs = (_pair(plan, number, users) for number in range(len(plan.calls)))
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


def read_where_written(kernel: Kernel, number: int) -> bool:
    """Whether a kernel reads an argument only where it writes an element of the same kind, when the sum is complete."""
    find = RULES.get(type(kernel))
    return find is not None and find(kernel, number)


def _pair(plan: Plan, number: int, users: dict[int, list[int]]) -> tuple[int, int, int] | None:
    """A call, the intermediate that it alone writes, and one that it reads last and at the very same places."""
    call = plan.calls[number]
    if type(call.kernel) not in RULES or len(call.writes) != 1:
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
        if alike and last and read_where_written(call.kernel, position):
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


def _product(kernel: GemmKernel, number: int) -> bool:
    operand = _operand(kernel, number, factors=2)
    if operand is None or kernel.accumulate or kernel.walk.parts.count > 1:
        return False  # partial sums wait in the output
    return operand == Operand(kernel.out.batch, kernel.out.row, kernel.out.column)


def _convolution(kernel: ConvKernel, number: int) -> bool:
    operand = _operand(kernel, number, factors=2)
    if operand is None or kernel.walk.parts.count > 1:
        return False  # partial sums wait in the output
    return _same_pixels(operand, kernel.output, (kernel.images, *kernel.out_size))


def _winograd(kernel: WinogradKernel, number: int) -> bool:
    operand = _operand(kernel, number, factors=2)
    return operand is not None and _same_pixels(operand, kernel.output, (kernel.images, *kernel.out_size))


def _winograd_stage(stage: WinogradStage, number: int) -> bool:
    operand = _operand(stage.of, number, factors=1) if stage.makes == "pixels" else None
    return operand is not None and _same_pixels(operand, stage.of.output, (stage.of.images, *stage.of.out_size))


def _operand(kernel: GemmKernel | ConvKernel | WinogradKernel, number: int, *, factors: int) -> Operand | None:
    """The operand that an argument behind the factors is, if what is stored is of its kind."""
    inputs, body = kernel.epilogue.inputs, kernel.epilogue.body
    stored = body[-1].dtype if body else kernel.element
    return inputs[number - factors] if 0 <= number - factors < len(inputs) and stored == kernel.element else None


def _same_pixels(operand: Operand, output: Images, sizes: tuple[int, int, int]) -> bool:
    """Whether an operand's rows, counted through all images, are where the output's pixels are."""
    strides = (output.image, output.row, output.column)
    counted = (operand.row * prod(sizes[place + 1 :]) for place in range(len(sizes)))
    same = all(size == 1 or one == other for size, one, other in zip(sizes, strides, counted, strict=True))
    return same and output.offset == 0 and operand.column == output.channel == 1


def _writes(call: KernelCall, buffer: int) -> bool:
    return any(place.buffer == buffer for place in call.writes)


def _moved(call: KernelCall, instead: dict[int, int]) -> KernelCall:
    def moved(places: Sequence[Location]) -> tuple[Location, ...]:
        return tuple(replace(place, buffer=instead.get(place.buffer, place.buffer)) for place in places)

    return replace(call, writes=moved(call.writes), reads=moved(call.reads))


RULES: dict[type, Callable[[Any, int], bool]] = {
    GemmKernel: _product,
    ConvKernel: _convolution,
    WinogradKernel: _winograd,
    WinogradStage: _winograd_stage,
}
