"""Print a plan: its calls with sizes and estimated times, its lanes with runs and waits, its memory."""

from __future__ import annotations

from typing import Any

from weft.errors import counted
from weft.plan.form.dependencies import Footprints, lanes_of
from weft.plan.form.plan import KernelCall, Location, Plan, Run
from weft.plan.kernels.kernel import Kernel
from weft.plan.memory.arena import live_bytes
from weft.plan.schedule.cost import MachineModel
from weft.plan.schedule.lanes import CallCosts

MICROSECOND = 1e-6


def plan_text(plan: Plan, model: MachineModel) -> str:
    """Describe a plan, one line a call and one a lane; times are microseconds on one core, as the model estimates."""
    costs = CallCosts(Footprints(plan), model)
    total = sum(costs.whole) / MICROSECOND
    lines = [
        f"plan of {counted(len(plan.calls), 'call')}, {counted(sum(costs.tiles), 'tile')}, {total:.1f} us on one lane"
    ]
    for number, call in enumerate(plan.calls):
        time = costs.whole[number] / MICROSECOND
        lines.append(f"  call {number:<4} {time:>9.1f} us  {describe(call.kernel)}  {_arguments(plan, call)}")
    for number, lane in enumerate(lanes_of(plan)):
        lines.append(f"  lane {number}: " + ", ".join(_item(plan, item) for item in lane))
    if plan.alone:
        lines.append("  by estimate one lane is done sooner; the clock tries both")
    if plan.packing:
        lines.append(f"  packing when a weight has changed: {counted(len(plan.packing), 'call')}")
    if plan.dense:
        names = ", ".join(f"{plan.buffers[number].kind}{plan.buffers[number].index}" for number in plan.dense)
        lines.append(f"  without gaps at any sizes: {names}")
    lines.append(f"  arena of {plan.arena_bytes} bytes, {live_bytes(plan)} in use at once at most in order")
    return "\n".join(lines)


def describe(kernel: Kernel) -> str:
    """Name a kernel's kind, its sizes and its tiles."""
    kind = type(kernel).__name__.removesuffix("Kernel").lower()
    return f"{kind} {kernel.summary} in {counted(kernel.tile_count, 'tile')}"


def _arguments(plan: Plan, call: KernelCall) -> str:
    def name(place: Location) -> str:
        buffer = plan.buffers[place.buffer]
        return f"{buffer.kind}{buffer.index}" + (f"+{place.offset}" if place.offset else "")

    return f"{', '.join(map(name, call.writes))} = f({', '.join(map(name, call.reads))})"


def _item(plan: Plan, item: Any) -> str:
    if not isinstance(item, Run):
        return f"wait for {item.count} of lane {item.lane}"
    whole = (item.begin, item.end) == (0, plan.calls[item.call].kernel.tile_count)
    if item.share is not None:
        return f"{item.call}[{share_text(item.share)}]"
    return f"{item.call}" if whole else f"{item.call}[{item.begin}:{item.end}]"


def share_text(share: tuple[int, int]) -> str:
    """Say which share it is, of how many."""
    number, of = share
    return f"share {number + 1} of {of}"
