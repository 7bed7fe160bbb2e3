"""Estimate the seconds that one core takes for a kernel, of a call in its plan, and of each tile among the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from weft.plan.form.plan import KernelCall, Plan
from weft.plan.kernels.kernel import Boxes, Kernel
from weft.plan.memory.arena import live_bytes
from weft.plan.schedule.machine_model import MachineModel

LASTING = ("packed", "constant")
MOST_TILES = 256  # with more, those at an edge are nothing


@dataclass(frozen=True, slots=True)
class CallCost:
    """Seconds of one core for a call: computing, moving to and from caches, and from memory that all cores share.

    Computing and moving overlap. Tiles cost extra.
    """

    computing: float
    moving: float
    from_memory: float


def kernel_seconds(kernel: Kernel, model: MachineModel) -> float:
    """Estimate the seconds of all tiles on one core, with as much as possible in its caches."""
    moved = sum(argument_bytes(kernel))
    moving = moved / model.rate(moved)
    return max(computing_seconds(kernel, model), moving) + kernel.tile_count * model.tile + model.call


def tile_seconds(kernel: Kernel, model: MachineModel) -> float:
    """Estimate the seconds of one tile among the others."""
    return (kernel_seconds(kernel, model) - model.call) / max(kernel.tile_count, 1)


def computing_seconds(kernel: Kernel, model: MachineModel) -> float:
    """Estimate the seconds of a kernel whose data is always at hand."""
    return kernel.cycles * model.cycle


def argument_bytes(kernel: Kernel) -> tuple[int, ...]:
    """Count the bytes of each argument as far as the kernel alone tells."""
    if not kernel.tile_count:
        return ()
    return tuple(found.bytes if found else 0 for found in kernel.boxes(0, kernel.tile_count))


def work_before(kernel: Kernel) -> Sequence[float] | None:
    """Give the part of the work before each tile, and 1 at the end; None where all tiles count alike.

    Where tiles are few, it decides what lanes that share a kernel get: of two tiles, one may be three times the other.
    """
    if not 1 < kernel.tile_count <= MOST_TILES or kernel.tile_sizes is None:
        return None
    down, across = kernel.tile_sizes
    if min(down) == max(down) and min(across) == max(across):
        return None
    sizes = [height * width for height in down for width in across] * (kernel.tile_count // (len(down) * len(across)))
    total = sum(sizes)
    return [0.0, *(size / total for size in accumulate(sizes))]


class PlanCosts:
    """Estimates for the calls of one plan: what lasts from call to call stays in the cache where all of it fits.

    So do intermediates, which are counted together for calls that move more than the second cache holds.
    """

    def __init__(self, plan: Plan, model: MachineModel) -> None:
        self.plan = plan
        self.model = model
        self.live = live_bytes(plan)
        self.lasting = sum(buffer.bytes for buffer in plan.buffers if buffer.kind in LASTING)

    def cost(self, call: KernelCall, found: Boxes) -> CallCost:
        """Estimate what a call costs one core, from the boxes of what it touches."""
        buffers, kernel, model = self.plan.buffers, call.kernel, self.model
        fresh = lasting = 0
        for place, one in zip(call.arguments, found, strict=True):
            buffer = buffers[place.buffer]
            size = min(one.bytes, buffer.bytes) if one else buffer.bytes
            if buffer.kind in LASTING:
                lasting += size
            else:
                fresh += size
        near = far = 0.0
        # What was made before is still in the last cache only if all that is in use at once fits.
        moved = max(fresh, self.live) if fresh > model.l2_bytes else fresh
        for size, together in ((fresh, moved), (lasting, max(lasting, self.lasting))):
            rate = model.rate(together)
            if together > model.l3_bytes:
                far += size / rate
            else:
                near += size / rate
        return CallCost(computing_seconds(kernel, model), near, far)
