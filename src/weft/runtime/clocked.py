"""Run a Plan with a clock: what each lane did in a call, from when to when."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from struct import pack_into

import torch

from weft.codegen.plan_module import TICK_WORDS, first_ticks, serial_tick
from weft.codegen.threads.layout import CLOCK_OFFSET
from weft.plan.form.order import lanes_of
from weft.plan.form.plan import Lane, Plan, Run, Wait
from weft.plan.plan_text import describe
from weft.runtime.arena import ArenaBlock
from weft.runtime.executable import NativeExecutable
from weft.target import Target

NANOSECOND = 1e-9


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """What a lane did, from when to when, in seconds of `perf_counter`."""

    lane: int
    name: str
    is_wait: bool
    start: float
    end: float


class ClockedExecutable(NativeExecutable):
    """A plan in machine code that notes times; for one thread at a time."""

    _clocked = True

    def __init__(
        self, plan: Plan, target: Target, constants: Sequence[torch.Tensor] = (), lasting: Collection[int] = ()
    ) -> None:
        super().__init__(plan, target, constants, lasting)
        self._serial = lanes_of(replace(plan, lanes=()))
        self._lanes = plan.lanes if len(plan.lanes) > 1 else ()
        count = serial_tick(self._lanes) + first_ticks(self._serial)[-1]
        self._ticks = (ctypes.c_int64 * (TICK_WORDS * count))()

    def _prepare(self, block: ArenaBlock) -> None:
        # SAFETY: the memory has room for all ticks of the plan, and is held by this object, whose call this is.
        pack_into("@Q", block.memory, CLOCK_OFFSET, ctypes.addressof(self._ticks))

    def __call__(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        """Run without the shortcut that does not know where to note times."""
        ctypes.memset(self._ticks, 0, ctypes.sizeof(self._ticks))
        block = self._pool.take()
        self._start_workers()
        done = self._run_slowly(block, inputs, outputs)
        self._pool.give_back(block)
        return done

    def spans(self) -> list[LaneSpan]:
        """Give what each lane did in the last call; lane 0 has done all where no worker was free."""
        words = iter(self._ticks)
        ticks = [seconds + nanoseconds * NANOSECOND for seconds, nanoseconds in zip(words, words, strict=True)]
        return self._spans(self._lanes, ticks) or self._spans(self._serial, ticks[serial_tick(self._lanes) :])

    def _spans(self, lanes: tuple[Lane, ...], ticks: list[float]) -> list[LaneSpan]:
        places, spans = first_ticks(lanes), []
        for lane, items in enumerate(lanes):
            times = ticks[places[lane] : places[lane + 1]]
            for item, start, end in zip(items, times, times[1:], strict=False):
                if start and end:
                    spans.append(LaneSpan(lane, self._name(item), isinstance(item, Wait), start, end))
        return spans

    def _name(self, item: Run | Wait) -> str:
        if isinstance(item, Wait):
            return f"wait for {item.count} of lane {item.lane}"
        return f"{describe(self.plan.calls[item.call].kernel)}: {item.begin} to {item.end}"
