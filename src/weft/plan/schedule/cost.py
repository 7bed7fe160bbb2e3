"""Estimate the seconds that one core of a machine takes for a kernel, of a call, and of each tile among the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate

from weft.errors import UsageError
from weft.plan.form.plan import KernelCall, Plan
from weft.plan.kernels.kernel import Boxes, Kernel
from weft.plan.memory.arena import live_bytes
from weft.target import Target

# Multiply-adds per lane and second by the bytes of a vector, where nobody has measured: cautious for today's servers.
LANE_RATES = {64: 3.6e9, 32: 5.6e9, 16: 2.8e9}
NARROW_RATE = 2.8e9


@dataclass(frozen=True, slots=True)
class MachineModel:
    """Rates per second of one core, times in seconds.

    `multiply_adds` are those of f32 in the widest vectors; `l1`, `l2`, `l3` and `memory` are bytes read or written;
    `shared_memory` is what all cores together get from memory, `transfer` what a core gets that another one has just
    written. `wait` is from the end of a run to the start of one that waits for it, `check` the cost of a wait that is
    over already, for both lanes; `lane` is from the start of a call to the first run of another lane.
    """

    vector_bytes: int
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    multiply_adds: float
    l1: float = 100e9
    l2: float = 50e9
    l3: float = 20e9
    memory: float = 10e9
    shared_memory: float = 16e9
    transfer: float = 12e9
    call: float = 20e-9
    tile: float = 10e-9
    wait: float = 250e-9
    check: float = 60e-9
    lane: float = 1.5e-6

    @property
    def cycle(self) -> float:
        """Give the seconds of one cycle, in which a core does two multiply-adds of whole vectors of any element."""
        return 2 * (self.vector_bytes // 4) / self.multiply_adds

    def rate(self, size: int) -> float:
        """Give the bytes per second of data that is so large and in use again and again."""
        levels = ((self.l1_bytes, self.l1), (self.l2_bytes, self.l2), (self.l3_bytes, self.l3))
        return next((rate for limit, rate in levels if size <= limit), self.memory)

    def __str__(self) -> str:
        return "\n".join(f"{field.name:<14} {getattr(self, field.name):.6g}" for field in fields(self))


MEASURED = tuple(field.name for field in fields(MachineModel) if field.type == "float")


def default_model(target: Target) -> MachineModel:
    """Guess the model of a machine that nobody has measured."""
    rate = LANE_RATES.get(target.vector_bytes, NARROW_RATE)
    return MachineModel(
        vector_bytes=target.vector_bytes,
        cores=target.cores,
        l1_bytes=target.l1_bytes,
        l2_bytes=target.l2_bytes,
        l3_bytes=target.l3_bytes,
        multiply_adds=rate * (target.vector_bytes // 4),
    )


def parse_model(text: str, target: Target) -> MachineModel:
    """Read what `str(model)` wrote, for the same machine; anything else is a UsageError."""
    try:
        pairs = {name: float(value) for name, value in (line.split() for line in text.splitlines())}
        found = {name: pairs[name] for name in MEASURED}
    except (ValueError, KeyError) as error:
        raise UsageError("this is not the text of a machine model", why=str(error)) from error
    if any(not value > 0 or value == float("inf") for value in found.values()):
        raise UsageError("a machine model holds a number that is not positive and finite")
    return replace(default_model(target), **found)  # type: ignore[arg-type]  # the names are those of float fields


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
