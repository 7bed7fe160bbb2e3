"""Draw a program's plans and a measured call: work by lanes, the time of one call, memory from call to call."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from weft.document.blocks import Block, Code, Document, Heading, Paragraph, Picture
from weft.document.charts import Axes, curve_text, curves
from weft.document.schedules import Piece, flow
from weft.errors import counted
from weft.ir.graph import Graph
from weft.plan.form.dependencies import Footprints, lanes_of, order_of, predecessors
from weft.plan.form.plan import Plan
from weft.plan.memory.arena import aligned, bytes_in_use
from weft.plan.plan_text import describe
from weft.programs.drawing import picture
from weft.programs.listing import listing
from weft.programs.timeline import CallTimeline, timeline_picture

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
