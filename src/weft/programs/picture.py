"""Draw a program's plans and a measured call: work by lanes, the time of one call, memory; also as a Chrome trace.

Open the file in https://ui.perfetto.dev or chrome://tracing.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from time import perf_counter
from typing import Any

from weft.document.blocks import Block, Code, Document, Heading, Paragraph, Picture
from weft.document.charts import Axes, curve_text, curves
from weft.document.html import notebook
from weft.document.schedules import LaneBlock, Piece, flow, lanes, lanes_text
from weft.errors import counted
from weft.files import given_file, write_atomically
from weft.ir.graph import Graph
from weft.plan.form.dependencies import Footprints, lanes_of, order_of, predecessors
from weft.plan.form.plan import Plan
from weft.plan.memory.arena import aligned, bytes_in_use
from weft.plan.plan_text import describe
from weft.programs.drawing import picture
from weft.programs.listing import listing
from weft.runtime.compiled_graph import CompiledGraph
from weft.runtime.executable import LaneSpan

WARM_CALLS, MEASURED_CALLS = 5, 20
MICROSECONDS = 1e6
CALL = 'program.timeline("call.json")'
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


MOST_PIECES, MOST_VALUES = 300, 300  # of a picture that one can still look at
TEXT_WIDTH = 60


def program_blocks(plans: Sequence[Plan], timeline: CallTimeline) -> list[Block]:
    """Give a program's pictures, each under a heading."""
    blocks: list[Block] = [Heading("One call, lane by lane"), timeline_picture(timeline)]
    if plans:
        blocks += [Heading("The program as a graph, by lanes"), *flow_pictures(plans)]
        blocks += [Heading("Memory over one call"), *memory_pictures(plans)]
    return blocks


def program_card(summary: str, graph: Graph, state: Mapping[int, str], plans: Sequence[Plan]) -> Document:
    """Give what a notebook shows of a program: a line, the graph drawn and as text, its work by lanes."""
    blocks: list[Block] = [Paragraph(summary)]
    if len(graph.values) <= MOST_VALUES:
        # As an image: the rules inside the drawing are for it alone.
        data = base64.b64encode(picture(graph, state).encode("utf-8")).decode("ascii")
        image = (
            f'<img style="max-width:100%" alt="the graph {escape(graph.name)}" src="data:image/svg+xml;base64,{data}">'
        )
        blocks.append(Picture(image))
    return Document((*blocks, *flow_pictures(plans), Code(listing(graph, short_places=True))))


def flow_pictures(plans: Sequence[Plan]) -> Iterator[Block]:
    """Draw the work of each region as boxes in the column of its lane; one that is too long is named."""
    for number, plan in enumerate(plans):
        name = f"region {number}: " if len(plans) > 1 else ""
        pieces = _pieces(plan)
        if len(pieces) > MOST_PIECES:
            yield Paragraph(f"{name}{len(pieces)} pieces of work: too many to draw, print(program.plan) lists them")
        else:
            size = f"{counted(len(plan.calls), 'kernel')} as {counted(len(pieces), 'piece')} of work"
            told = f"{name}{size}; arrows show what needs what"
            yield Picture(flow(pieces, told))


def memory_pictures(plans: Sequence[Plan]) -> Iterator[Block]:
    """Draw the bytes that intermediates take while a region's kernels run in order, with and without sharing memory."""
    axes = Axes(lambda x: f"kernel {x:.0f}", _size, stairs=True)
    for number, plan in enumerate(plans):
        name = f"region {number}: " if len(plans) > 1 else ""
        in_use = bytes_in_use(plan)
        kept = _kept(plan)
        if not any(kept):
            yield Paragraph(f"{name}nothing lies between the kernels: what goes in and what comes out is all")
            continue
        shared = [(float(place), float(used)) for place, used in enumerate(in_use)]
        unshared = [(float(place), float(used)) for place, used in enumerate(kept)]
        told = f"{name}one block of {_size(plan.arena_bytes)} holds all that lies between, by the plan"
        drawn = curves({"kept until the end": unshared, "in use": shared}, axes, told)
        yield Picture(drawn, f"{curve_text(in_use, TEXT_WIDTH)}  {told}")


def _pieces(plan: Plan) -> list[Piece]:
    """The runs of a plan, in an order in which they may run, each with those that it needs and that are surely before.

    A run knows of more that is done than any run before it, so sums of clocks only grow along the order.
    """
    before = predecessors(Footprints(plan))
    order = order_of(lanes_of(plan))
    runs = [(lane, position) for lane, row in enumerate(order.runs) for position in range(len(row))]
    runs.sort(key=lambda place: (sum(order.clocks[place[0]][place[1]]), place))
    places: dict[int, list[int]] = {}
    pieces = []
    for number, (lane, position) in enumerate(runs):
        run = order.runs[lane][position]
        kernel = plan.calls[run.call].kernel
        needed = [earlier for call in before[run.call] for earlier in places.get(call, ())]
        after = tuple(sorted(earlier for earlier in needed if order.before(runs[earlier], (lane, position))))
        name, _, rest = describe(kernel).partition(" ")
        sizes = rest.partition(" in ")[0]
        part = "" if (run.begin, run.end) == (0, kernel.tile_count) else f", tiles {run.begin} to {run.end - 1}"
        pieces.append(Piece(lane, f"{run.call} {name}{part}", sizes, name, after))
        places.setdefault(run.call, []).append(number)
    return pieces


def _kept(plan: Plan) -> list[int]:
    """The bytes of all intermediates so far, call by call, if none gave its memory to another."""
    arena = {number: aligned(buffer.bytes) for number, buffer in plan.of_kind("arena")}
    seen: set[int] = set()
    found = []
    for call in plan.calls:
        seen.update(argument.buffer for argument in call.arguments if argument.buffer in arena)
        found.append(sum(arena[buffer] for buffer in seen))
    return found


def _size(size: float) -> str:
    for unit in ("B", "KiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} MiB"
