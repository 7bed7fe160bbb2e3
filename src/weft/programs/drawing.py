"""Draw a Graph as an SVG picture for light and dark screens: a box a value, arrows to what reads it.

Four steps, each deterministic: give every box a layer; let an arrow that passes a layer take a place of its own in it;
order each layer by the mean place of what its boxes are connected to; then move boxes as near as possible to what they
are connected to (least squares under the order, solved exactly a layer at a time).
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any
from xml.sax.saxutils import escape

from weft.errors import counted, source_line
from weft.files import given_file, write_atomically
from weft.ir.graph import Graph, Value
from weft.ir.library import Call
from weft.ir.literals import argument_text
from weft.ir.printer import call_text, name_inputs, path_text
from weft.ir.types import TupleType, Type

GAP_ACROSS = 18.0
GAP_DOWN = 34.0
GAP_BETWEEN = 40.0
NARROWEST_ROW = 800.0
PASSAGE = 6.0  # the width that an arrow takes in a layer it passes
ORDERING_ROUNDS = 24
MOVING_ROUNDS = 60
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """A box to place. A `light` one that no arrow leads to (a parameter) goes next to what reads it, not to the top."""

    width: float
    height: float
    light: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The middle of every box, the points that every arrow goes through, and the size of everything."""

    centres: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    width: float
    height: float


@dataclass(slots=True)
class _Node:
    """A box, or a place where an arrow passes a layer."""

    rank: int
    width: float
    height: float
    above: list[tuple[int, float]] = field(default_factory=list)
    below: list[tuple[int, float]] = field(default_factory=list)
    x: float = 0.0


def lay_out(boxes: Sequence[DrawnBox], arrows: Sequence[tuple[int, int]]) -> Layout:
    """Place boxes; an arrow goes from a box to one later in the list.

    What is connected is placed together: the largest such part first, the others in rows below it.
    """
    parts = sorted(_connected(len(boxes), arrows), key=len, reverse=True)
    placed = [_lay_out_part(boxes, arrows, part) for part in parts]
    widest = max((layout.width for layout in placed), default=0.0)
    centres: dict[int, Point] = {}
    routes: dict[tuple[int, int], tuple[Point, ...]] = {}
    across = down = row = 0.0
    for part, layout in zip(parts, placed, strict=True):
        if across and across + layout.width > max(widest, NARROWEST_ROW):
            across, down, row = 0.0, down + row + GAP_DOWN, 0.0
        centres |= {index: _moved(point, across, down) for index, point in zip(part, layout.centres, strict=True)}
        own = [arrow for arrow in arrows if arrow[0] in centres and arrow not in routes]
        for arrow, route in zip(own, layout.routes, strict=True):
            routes[arrow] = tuple(_moved(point, across, down) for point in route)
        across, row = across + layout.width + GAP_BETWEEN, max(row, layout.height)
    right = max((centres[index][0] + box.width / 2 for index, box in enumerate(boxes)), default=0.0)
    right = max(right, *(point[0] for route in routes.values() for point in route), 0.0) if routes else right
    return Layout(
        tuple(centres[index] for index in range(len(boxes))),
        tuple(routes[arrow] for arrow in arrows),
        right,
        down + row,
    )


def _moved(point: Point, across: float, down: float) -> Point:
    return point[0] + across, point[1] + down


def _connected(count: int, arrows: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The boxes in groups, such that arrows stay inside of a group."""
    group = list(range(count))

    def leader(index: int) -> int:
        while group[index] != index:
            group[index] = group[group[index]]
            index = group[index]
        return index

    for source, target in arrows:
        first, second = leader(source), leader(target)
        group[max(first, second)] = min(first, second)
    members: dict[int, list[int]] = {}
    for index in range(count):
        members.setdefault(leader(index), []).append(index)
    return list(members.values())


def _lay_out_part(boxes: Sequence[DrawnBox], arrows: Sequence[tuple[int, int]], part: Sequence[int]) -> Layout:
    """Place boxes that are connected."""
    place = {index: position for position, index in enumerate(part)}
    own = [(place[source], place[target]) for source, target in arrows if source in place]
    return _lay_out_connected([boxes[index] for index in part], own)


def _lay_out_connected(boxes: Sequence[DrawnBox], arrows: Sequence[tuple[int, int]]) -> Layout:
    ranks, floating = _ranks(boxes, arrows)
    nodes = [_Node(rank, box.width, box.height) for rank, box in zip(ranks, boxes, strict=True)]
    chains = _connect(nodes, floating, arrows)
    layers: list[list[int]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for index, node in enumerate(nodes):
        layers[node.rank].append(index)
    layers = _ordered(nodes, layers)
    _move(nodes, layers)
    return _finish(nodes, layers, len(boxes), [(chains[source], source, target) for source, target in arrows])


def _ranks(boxes: Sequence[DrawnBox], arrows: Sequence[tuple[int, int]]) -> tuple[list[int], list[bool]]:
    """The layer of each box, and whether it floats.

    Boxes go as high as what they read lets them; light boxes, and what reads only such, float down to what reads them.
    """
    before: list[list[int]] = [[] for _ in boxes]
    after: list[list[int]] = [[] for _ in boxes]
    for source, target in arrows:
        before[target].append(source)
        after[source].append(target)
    floating: list[bool] = []
    ranks = [0] * len(boxes)
    for index, box in enumerate(boxes):
        floating.append(all(floating[source] for source in before[index]) if before[index] else box.light)
        if not floating[index]:
            ranks[index] = max((ranks[source] + 1 for source in before[index] if not floating[source]), default=0)
    for index in reversed(range(len(boxes))):
        if floating[index]:
            ranks[index] = min((ranks[target] - 1 for target in after[index]), default=0)
    top = min(ranks, default=0)
    return [rank - top for rank in ranks], floating


def _connect(nodes: list[_Node], floating: Sequence[bool], arrows: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    """Connect neighbouring layers; arrows from one box share their passages. Gives each box's passages, downwards."""
    chains: dict[int, list[int]] = {}
    for source, target in arrows:
        chain = chains.setdefault(source, [])
        while nodes[source].rank + len(chain) + 1 < nodes[target].rank:
            upper = chain[-1] if chain else source
            nodes.append(_Node(nodes[upper].rank + 1, PASSAGE, 0.0))
            chain.append(len(nodes) - 1)
            _join(nodes, upper, chain[-1], 8.0 if len(chain) > 1 else 2.0)
        distance = nodes[target].rank - nodes[source].rank
        upper = chain[distance - 2] if distance > 1 else source
        _join(nodes, upper, target, 0.1 if floating[source] else 1.0)
    return chains


def _join(nodes: list[_Node], upper: int, lower: int, weight: float) -> None:
    nodes[upper].below.append((lower, weight))
    nodes[lower].above.append((upper, weight))


def _ordered(nodes: list[_Node], layers: list[list[int]]) -> list[list[int]]:
    """Sweep down and up, sorting each layer by where its neighbours are; the order with fewest crossings wins."""
    best, fewest = layers, _crossings(nodes, layers)
    for sweep in range(ORDERING_ROUNDS):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        layers = [list(layer) for layer in layers]
        order = range(1, len(layers)) if downwards else range(len(layers) - 2, -1, -1)
        for rank in order:
            neighbour = layers[rank - 1 if downwards else rank + 1]
            place = {index: position for position, index in enumerate(neighbour)}
            own = {index: position for position, index in enumerate(layers[rank])}
            scale = len(neighbour) / max(1, len(own))
            layers[rank].sort(key=lambda index: (_mean(nodes[index], place, downwards, own[index] * scale), own[index]))
        count = _crossings(nodes, layers)
        if count < fewest:
            best, fewest = layers, count
    return best


def _mean(node: _Node, place: dict[int, int], downwards: bool, otherwise: float) -> float:
    neighbours = [place[index] for index, _ in (node.above if downwards else node.below)]
    return sum(neighbours) / len(neighbours) if neighbours else otherwise


def _crossings(nodes: list[_Node], layers: list[list[int]]) -> int:
    """How many pairs of arrows cross between neighbouring layers."""
    count = 0
    for upper, lower in pairwise(layers):
        place = {index: position for position, index in enumerate(lower)}
        seen: list[int] = []
        for index in upper:
            ends = sorted(place[target] for target, _ in nodes[index].below)
            count += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return count


def _move(nodes: list[_Node], layers: list[list[int]]) -> None:
    for layer in layers:
        position = 0.0
        for index in layer:
            nodes[index].x = position + nodes[index].width / 2
            position += nodes[index].width + GAP_ACROSS
    for sweep in range(MOVING_ROUNDS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            _settle(nodes, layer)


def _settle(nodes: list[_Node], layer: list[int]) -> None:
    """Put a layer's boxes where the sum of squared distances to their neighbours is least, in their order, apart.

    With the room between boxes taken out, this is regression under an order: neighbours that would overlap are
    merged into groups that stand at their weighted mean.
    """
    groups: list[tuple[float, float, int]] = []  # weighted sum of wishes, weight, count
    offsets: list[float] = []
    for position, index in enumerate(layer):
        node = nodes[index]
        room = (nodes[layer[position - 1]].width + node.width) / 2 + GAP_ACROSS if position else 0.0
        offsets.append((offsets[-1] if offsets else 0.0) + room)
        neighbours = [*node.above, *node.below]
        weight = sum(weight for _, weight in neighbours) or 0.01
        wish = sum(nodes[other].x * pull for other, pull in neighbours) / weight if neighbours else node.x
        groups.append(((wish - offsets[-1]) * weight, weight, 1))
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] >= groups[-1][0] / groups[-1][1]:
            last = groups.pop()
            groups[-1] = (groups[-1][0] + last[0], groups[-1][1] + last[1], groups[-1][2] + last[2])
    position = 0
    for wished, weight, count in groups:
        for index in layer[position : position + count]:
            nodes[index].x = wished / weight + offsets[position]
            position += 1


def _finish(
    nodes: list[_Node], layers: list[list[int]], count: int, arrows: list[tuple[list[int], int, int]]
) -> Layout:
    left = min((node.x - node.width / 2 for node in nodes), default=0.0)
    right = max((node.x + node.width / 2 for node in nodes), default=0.0)
    tops: list[float] = []
    heights = [max(nodes[index].height for index in layer) for layer in layers]
    for height in heights:
        tops.append(tops[-1] + heights[len(tops) - 1] + GAP_DOWN if tops else 0.0)
        del height
    middles = [top + height / 2 for top, height in zip(tops, heights, strict=True)]
    centres = tuple((node.x - left, middles[node.rank]) for node in nodes[:count])
    arrivals = _arrivals(nodes, arrows)
    routes: list[tuple[Point, ...]] = []
    for chain, source, target in arrows:
        points = [(nodes[source].x - left, middles[nodes[source].rank] + nodes[source].height / 2)]
        for index in chain[: nodes[target].rank - nodes[source].rank - 1]:
            rank = nodes[index].rank
            points += [(nodes[index].x - left, tops[rank]), (nodes[index].x - left, tops[rank] + heights[rank])]
        end = arrivals[source, target] - left
        points.append((end, middles[nodes[target].rank] - nodes[target].height / 2))
        routes.append(tuple(points))
    return Layout(centres, tuple(routes), right - left, tops[-1] + heights[-1] if tops else 0.0)


def _arrivals(nodes: list[_Node], arrows: list[tuple[list[int], int, int]]) -> dict[tuple[int, int], float]:
    """Where on a box's upper side each arrow ends: side by side, in the order in which they come."""
    coming: dict[int, list[tuple[float, int]]] = {}
    for chain, source, target in arrows:
        distance = nodes[target].rank - nodes[source].rank
        last = chain[distance - 2] if distance > 1 else source
        coming.setdefault(target, []).append((nodes[last].x, source))
    found: dict[tuple[int, int], float] = {}
    for target, sources in coming.items():
        step = min(16.0, (nodes[target].width - 12.0) / len(sources))
        for position, (_, source) in enumerate(sorted(sources)):
            found[source, target] = nodes[target].x + (position - (len(sources) - 1) / 2) * step
    return found


MARGIN = 24.0
TITLE_HEIGHT = 48.0
LARGE, SMALL = 12.0, 10.0
LETTER = 0.602  # the width of a letter of a monospaced font, in parts of its size
LONGEST_LABEL = 44
NEARLY_STRAIGHT = 4.0  # an arrow that is off by less is drawn straight
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
STYLE = """
svg { background: #ffffff; }
text { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; text-anchor: middle; }
.title { font-size: 16px; font-weight: 600; text-anchor: start; fill: #1c2024; }
.subtitle { font-size: 11px; text-anchor: start; fill: #6b7280; }
.label { font-size: 12px; font-weight: 600; fill: #1c2024; }
.detail, .tiny { font-size: 10px; fill: #5b6470; }
rect { stroke-width: 1.2; }
.value rect { fill: #ffffff; stroke: #8b95a3; }
.update rect { fill: #fff6e8; stroke: #c98a2b; }
.argument rect { fill: #e8f1fd; stroke: #3b7dd8; }
.result rect { fill: #e9f7ee; stroke: #2f9e5b; }
.state rect, .constant rect { fill: #eef0f2; stroke: #d5d9de; }
.write rect { fill: #fff6e8; stroke: #e3c391; }
.box:hover rect { stroke-width: 2.4; }
.arrow { fill: none; stroke: #8b95a3; stroke-width: 1.2; }
.arrow.faint { stroke: #cfd4da; }
.head { fill: #8b95a3; }
@media (prefers-color-scheme: dark) {
  svg { background: #15181c; }
  .title, .label { fill: #e8eaed; }
  .subtitle, .detail, .tiny { fill: #9aa4b1; }
  .value rect { fill: #20252b; stroke: #6d7885; }
  .update rect { fill: #352a17; stroke: #c98a2b; }
  .argument rect { fill: #17283f; stroke: #4f8fe6; }
  .result rect { fill: #16301f; stroke: #3fb26d; }
  .state rect, .constant rect { fill: #1b1f24; stroke: #333a42; }
  .write rect { fill: #2a2216; stroke: #6b5330; }
  .arrow { stroke: #6d7885; }
  .arrow.faint { stroke: #3a424b; }
  .head { fill: #6d7885; }
}
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One box: what kind it is (a class of STYLE), its label, a line below it, and the text that hovering shows."""

    kind: str
    label: str
    detail: str
    tooltip: str
    small: bool = False

    def box(self) -> DrawnBox:
        """How much room the figure takes."""
        if self.small:
            letters = max(len(shorten(self.label)), len(shorten(self.detail)))
            return DrawnBox(letters * SMALL * LETTER + 14.0, 30.0, light=self.kind in ("state", "constant"))
        width = max(len(shorten(self.label)) * LARGE, len(shorten(self.detail)) * SMALL) * LETTER + 24.0
        return DrawnBox(max(width, 64.0), 40.0)


def shorten(text: str) -> str:
    """Cut a text to what fits in a box."""
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"


def svg_text(
    titles: tuple[str, str], figures: Sequence[Figure], arrows: Sequence[tuple[int, int]], layout: Layout
) -> str:
    """Write the picture; `arrows` are those that `layout` has routes for."""
    widest = max(len(titles[0]) * 16.0 * LETTER, len(titles[1]) * 11.0 * LETTER)
    width = max(layout.width, widest) + 2 * MARGIN
    height = layout.height + 2 * MARGIN + TITLE_HEIGHT
    shift = (width - layout.width) / 2, MARGIN + TITLE_HEIGHT
    size = f'viewBox="0 0 {_number(width)} {_number(height)}" width="{_number(width)}" height="{_number(height)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{_quoted(titles[0])}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{_number(MARGIN)}" y="{_number(MARGIN + 12)}">{_plain(titles[0])}</text>',
        f'<text class="subtitle" x="{_number(MARGIN)}" y="{_number(MARGIN + 30)}">{_plain(titles[1])}</text>',
        f'<g transform="translate({_number(shift[0])} {_number(shift[1])})">',
    ]
    lines += [
        _arrow(route, faint=figures[source].box().light)
        for (source, _), route in zip(arrows, layout.routes, strict=True)
    ]
    lines += [_figure(figure, centre) for figure, centre in zip(figures, layout.centres, strict=True)]
    return "\n".join([*lines, "</g>", "</svg>", ""])


def _figure(figure: Figure, centre: Point) -> str:
    box = figure.box()
    x, y = centre[0] - box.width / 2, centre[1] - box.height / 2
    corner = box.height / 2 if figure.kind in ("argument", "result") else 5.0
    classes = ("tiny", "tiny") if figure.small else ("label", "detail")
    upper, lower = (centre[1] - 3.0, centre[1] + 9.0) if figure.small else (centre[1] - 3.0, centre[1] + 12.0)
    if not figure.detail:
        upper = centre[1] + 4.0
    middle = _number(centre[0])
    detail = f'<text class="{classes[1]}" x="{middle}" y="{_number(lower)}">{_plain(shorten(figure.detail))}</text>'
    return (
        f'<g class="box {figure.kind}"><title>{_plain(figure.tooltip)}</title>'
        f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(box.width)}" height="{_number(box.height)}" '
        f'rx="{_number(corner)}"/>'
        f'<text class="{classes[0]}" x="{middle}" y="{_number(upper)}">{_plain(shorten(figure.label))}</text>'
        f"{detail if figure.detail else ''}</g>"
    )


def _arrow(route: Sequence[Point], *, faint: bool) -> str:
    """A line that is vertical at every point it goes through, with a head at its end."""
    head = 6.0
    *before, (end_x, end_y) = route
    if len(before) == 1 and abs(before[0][0] - end_x) < NEARLY_STRAIGHT:
        before = [(end_x, before[0][1])]
    points = [*before, (end_x, end_y - head)]
    path = f"M{_pair(points[0])}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        straight = abs(x0 - x1) < 0.05
        path += (
            f" L{_pair((x1, y1))}" if straight else f" C{_pair((x0, middle))} {_pair((x1, middle))} {_pair((x1, y1))}"
        )
    triangle = f"M{_pair((end_x, end_y))} l-3.5 -{_number(head)} h7 z"
    return f'<path class="arrow{" faint" if faint else ""}" d="{path}"/><path class="head" d="{triangle}"/>'


def _pair(point: Point) -> str:
    return f"{_number(point[0])} {_number(point[1])}"


def _number(value: float) -> str:
    return f"{value + 0.0:.1f}".removesuffix(".0")


def _plain(text: str) -> str:
    return escape(NOT_XML.sub("�", text))


def _quoted(text: str) -> str:
    return escape(NOT_XML.sub("�", text), {'"': "&quot;"})


NO_STATE: Mapping[int, str] = MappingProxyType({})
LONGEST_TOOLTIP = 400
PICTURES = (".svg",)


def draw(graph: Graph, path: str | os.PathLike[str], state: Mapping[int, str] = NO_STATE) -> None:
    """Write a picture of a Graph as SVG; `state` names the inputs, by position, that belong to the program itself."""
    target = given_file(path, "draw", 'program.draw("net.svg")', PICTURES)
    write_atomically(target, [picture(graph, state).encode("utf-8")])


def picture(graph: Graph, state: Mapping[int, str] = NO_STATE) -> str:
    """Give the text of the SVG picture that `draw` writes."""
    figures, arrows = _figures(graph, state)
    layout = lay_out([figure.box() for figure in figures], arrows)
    counts = (
        counted(len(graph.inputs) - len(state), "argument"),
        counted(len(state), "parameter"),
        counted(len(graph.values), "value"),
        counted(len(graph.results), "result"),
    )
    return svg_text((graph.name, ", ".join(counts)), figures, arrows, layout)


def _figures(graph: Graph, state: Mapping[int, str]) -> tuple[list[Figure], list[tuple[int, int]]]:
    """Boxes, and arrows between them by position; an arrow goes from a box to one later in the list."""
    names = name_inputs(graph.inputs)
    figures: list[Figure] = []
    arrows: dict[tuple[int, int], None] = {}
    position: dict[Value, int] = {}
    for index, value in enumerate(graph.inputs):
        kind, label = ("state", state[index]) if index in state else ("argument", names[value])
        position[value] = len(figures)
        figures.append(Figure(kind, label, _type_text(value.type), f"{label}: {value.type}", small=kind == "state"))
    for number, value in enumerate(graph.values):
        position[value] = len(figures)
        arrows.update(dict.fromkeys((position[operand], len(figures)) for operand in value.operands))
        figures.append(_value_figure(value, number))
    for write in graph.writes:
        target = figures[position[write.input]].label
        arrows[position[write.value], len(figures)] = None
        figures.append(Figure("write", "write", target, f"write {target}{path_text(write.path)}", small=True))
    for number, result in enumerate(graph.results):
        arrows[position[result.value], len(figures)] = None
        label = "result" if len(graph.results) == 1 else f"result {number}"
        view = "a view" if result.path else _type_text(result.value.type)
        figures.append(Figure("result", label, view, f"{label}: {result.value.type}{path_text(result.path)}"))
    return figures, list(arrows)


def _value_figure(value: Value, number: int) -> Figure:
    call = value.attributes.get("call")
    label = _operator(call) if isinstance(call, Call) else value.op
    if value.op == "item":
        label = f"item {value.attributes['index']}"
    kind = value.op if value.op in ("update", "constant") else "value"
    return Figure(kind, label, _type_text(value.type), _tooltip(value, number), small=value.op in ("constant", "item"))


def _operator(call: Call) -> str:
    """`aten.convolution.default` as people say it: convolution; other namespaces stay visible."""
    space, _, rest = call.target.partition(".")
    operator = rest.rpartition(".")[0]
    return operator if space in ("aten", "prims") else f"{space}.{operator}"


def _tooltip(value: Value, number: int) -> str:
    lines = [f"%{number}: {value.type}", f"{value.op} {_arguments(value)}".rstrip()]
    if value.place is not None:
        lines.append(source_line(value.place.filename, value.place.line))
    return "\n".join(line if len(line) <= LONGEST_TOOLTIP else line[:LONGEST_TOOLTIP] + "…" for line in lines)


def _arguments(value: Value) -> str:
    call = value.attributes.get("call")
    if isinstance(call, Call):
        return call_text(call, tuple(operand.name or operand.op for operand in value.operands))
    plain: dict[str, Any] = {
        name: item for name, item in value.attributes.items() if name not in ("tensor", "arguments", "operator")
    }
    return ", ".join(f"{name}={argument_text(item)}" for name, item in plain.items())


def _type_text(kind: Type) -> str:
    """The type without strides, which are in the tooltip."""
    if isinstance(kind, TupleType):
        return counted(len(kind.items), "result")
    return str(kind).partition("{")[0]
