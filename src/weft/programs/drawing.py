"""Draw a Graph as an SVG picture for light and dark screens: a box a value, arrows to what reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any
from xml.sax.saxutils import escape

from weft.errors import counted, source_line
from weft.files import given_file, write_atomically
from weft.ir.calls import Call
from weft.ir.graph import Graph, Value
from weft.ir.literals import argument_text
from weft.ir.printer import call_text, name_inputs, path_text
from weft.ir.types import TupleType, Type
from weft.programs.layout import DrawnBox, Layout, Point, lay_out

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
