"""A Plan -> the times of one measured call: what each lane did, from when to when."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from struct import pack_into
from time import perf_counter

import torch

from weft.codegen.clock import first_ticks
from weft.codegen.frame import CLOCK_OFFSET
from weft.plan.order import lanes_of
from weft.plan.plan import Plan, Run, Wait
from weft.plan.plan_text import describe
from weft.runtime.arena import Block
from weft.runtime.executable import NativeExecutable
from weft.target import Target

WARM_CALLS, MEASURED_CALLS = 5, 20


@dataclass(frozen=True, slots=True)
class Span:
    """What a lane did, from when to when, in seconds from the start of the call."""

    lane: int
    name: str
    is_wait: bool
    start: float
    end: float


class ClockedExecutable(NativeExecutable):
    """A plan in machine code that notes times; for one thread at a time."""

    def __init__(
        self, plan: Plan, target: Target, constants: Sequence[torch.Tensor] = (), lasting: Collection[int] = ()
    ) -> None:
        super().__init__(plan, target, constants, lasting, clocked=True)
        self._lanes = lanes_of(plan)
        self._ticks = (ctypes.c_uint64 * first_ticks(self._lanes)[-1])()

    def _prepare(self, block: Block) -> None:
        # SAFETY: the memory has room for all ticks of the plan, and is held by this object, whose call this is.
        pack_into("@Q", block.memory, CLOCK_OFFSET, ctypes.addressof(self._ticks))

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Run without the shortcut that does not know where to note times."""
        block = self._pool.take()
        self._start_workers()
        self._run_slowly(block, inputs, outputs)
        self._pool.give_back(block)

    def measure(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[Span]:
        """Call several times, and give the fastest call's times."""
        best, found = float("inf"), []
        for number in range(WARM_CALLS + MEASURED_CALLS):
            ctypes.memset(self._ticks, 0, ctypes.sizeof(self._ticks))
            begin = perf_counter()
            self(inputs, outputs)
            seconds = perf_counter() - begin
            if number >= WARM_CALLS and seconds < best:
                best, found = seconds, list(self._ticks)
        return self._spans(found, best)

    def _spans(self, ticks: list[int], seconds: float) -> list[Span]:
        noted = [tick for tick in ticks if tick]
        if not noted:
            return []
        first, last = min(noted), max(noted)
        # Clocks of all cores count alike. Of the call's time a little is outside of the first and last tick.
        unit = seconds / max(last - first, 1)
        places, spans = first_ticks(self._lanes), []
        for lane, items in enumerate(self._lanes):
            times = ticks[places[lane] : places[lane + 1]]
            for item, start, end in zip(items, times, times[1:], strict=False):
                if start and end:
                    name, is_wait = self._name(item), isinstance(item, Wait)
                    spans.append(Span(lane, name, is_wait, (start - first) * unit, (end - first) * unit))
        return spans

    def _name(self, item: Run | Wait) -> str:
        if isinstance(item, Wait):
            return f"wait for {item.count} of lane {item.lane}"
        return f"{describe(self.plan.calls[item.call].kernel)}: {item.begin} to {item.end}"
