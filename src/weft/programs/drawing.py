"""A Graph -> a picture of it: a box a value, parameters small and grey, arrows from what is read to what reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from weft.errors import counted, source_line
from weft.files import given_file, write_atomically
from weft.ir.calls import Call
from weft.ir.graph import Graph, Value
from weft.ir.literals import argument_text
from weft.ir.printer import call_text, name_inputs, path_text
from weft.ir.types import TupleType, Type
from weft.programs.drawing_layout import lay_out
from weft.programs.drawing_svg import Figure, svg_text

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
