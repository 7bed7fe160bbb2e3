"""What one core of a machine does in a second, and what lanes cost: the numbers that costs are estimated from."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from weft.errors import UsageError
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
