"""Measure what each lane does in one call of a program, and write it as a Chrome trace.

Open the file in https://ui.perfetto.dev or chrome://tracing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

from weft.document.blocks import Document, Picture
from weft.document.html import notebook
from weft.document.schedules import LaneBlock, lanes, lanes_text
from weft.files import given_file, write_atomically
from weft.runtime.compiled_graph import CompiledGraph
from weft.runtime.executable import LaneSpan

WARM_CALLS, MEASURED_CALLS = 5, 20
MICROSECONDS = 1e6
CALL = 'program.timeline("call.json")'
TEXT_WIDTH = 60
LIBRARY, OUTSIDE = "PyTorch's operators", "outside machine code"


@dataclass(frozen=True, slots=True, repr=False)
class CallTimeline:
    """What each lane did in one call, in seconds from its start; `seconds` is what the call took."""

    seconds: float
    spans: tuple[LaneSpan, ...]

    def __str__(self) -> str:
        lanes = sorted({span.lane for span in self.spans})
        shares = []
        for lane in lanes:
            busy = sum(span.end - span.start for span in self.spans if span.lane == lane and not span.is_wait)
            shares.append(f"lane {lane} {busy / self.seconds:.0%} busy")
        return f"{self.seconds * MICROSECONDS:.1f} us: " + (", ".join(shares) or "nothing in machine code")

    def __repr__(self) -> str:
        return f"<timeline of a call: {self}>"

    def _repr_html_(self) -> str:
        """Show it in a notebook as a picture of the lanes."""
        return notebook(Document((timeline_picture(self),)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as a Chrome trace."""
        document = {"traceEvents": list(self._events()), "displayTimeUnit": "ns"}
        write_atomically(given_file(path, "timeline", CALL), [json.dumps(document).encode("utf-8")])

    def _events(self) -> Iterator[dict[str, object]]:
        for lane in sorted({span.lane for span in self.spans}):
            yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": lane, "args": {"name": f"lane {lane}"}}
        for span in self.spans:
            times = {"ts": span.start * MICROSECONDS, "dur": (span.end - span.start) * MICROSECONDS}
            kind = "wait" if span.is_wait else "work"
            yield {"ph": "X", "name": span.name, "cat": kind, "pid": 1, "tid": span.lane, **times}


def measure_timeline(graph: CompiledGraph, inputs: Sequence[Any]) -> CallTimeline:
    """Run a graph on some inputs several times, and give what happened in the fastest call."""
    run, regions = graph.clocked()
    steps = graph.executable.plan.steps
    name = LIBRARY if any(step.value.op in ("library", "update") for step in steps) else OUTSIDE
    best: CallTimeline | None = None
    for number in range(WARM_CALLS + MEASURED_CALLS):
        start = perf_counter()
        run(inputs)
        end = perf_counter()
        if number >= WARM_CALLS and (best is None or end - start < best.seconds):
            spans = [span for region in regions for span in region.spans()]
            calls = sorted(region.calls[-1] for region in regions)
            spans += _between(name, [(start, start), *calls, (end, end)]) if len(steps) > len(regions) else []
            best = CallTimeline(end - start, tuple(_from(span, start) for span in spans))
    assert best is not None
    return best


def _between(name: str, calls: list[tuple[float, float]]) -> Iterator[LaneSpan]:
    """The time of the call that is in no region."""
    for (_, begin), (finish, _) in pairwise(calls):
        if finish > begin:
            yield LaneSpan(0, name, False, begin, finish)


def _from(span: LaneSpan, start: float) -> LaneSpan:
    return LaneSpan(span.lane, span.name, span.is_wait, span.start - start, span.end - start)


def timeline_picture(timeline: CallTimeline, caption: str | None = None) -> Picture:
    """Draw what each lane did in a measured call; the caption is its time, or the one that is given."""
    busy = [
        LaneBlock(f"lane {span.lane}", span.name, None if span.is_wait else _kind(span.name), span.start, span.end)
        for span in timeline.spans
    ]
    told = f"the fastest of some calls took {timeline}" if caption is None else caption
    return Picture(lanes(busy, timeline.seconds, told), lanes_text(busy, timeline.seconds, TEXT_WIDTH))


def _kind(name: str) -> str:
    return name.partition(" ")[0] if name.partition(" ")[2][:1].isdigit() else name
