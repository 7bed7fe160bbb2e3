"""Print a Graph as text that says everything and parses back.

    graph mlp(%x: f32[1,512], %w: f32[256,512], %b: f32[256]) {
      %0: f32[512,256]{1,512} = library aten.t.default(%w)  # net.py:12
      %1: f32[1,256] = library aten.addmm.default(%b, %x, %0)  # net.py:12 in forward
      %2: f32[1,256] = relu %1
      %3: f32[4,4] = update aten.add_.Tensor(!0, %2) on !0 = %m via aten.select.int(_, 0, 1)
      write %m <- %3
      return %2, %m via aten.view.default(_, [16])
    }

Values are `name: type = op operands, attribute=literal, ...`; four ops have a form of their own:

    constant [1.0, 2.0]                 elements row by row (at most 8), or `constant #0` from the table of constants
    number mul(%n, 2)                   Python arithmetic
    library TARGET(arguments)           a PyTorch operator
    update TARGET(arguments) on !0 = %base via VIEW, !1 = !0 via VIEW, !2 = %base
                                        each written argument: a view of a private copy of a value (`= %base`), or of
                                        the copy that an earlier one is in (`= !0`)

Inputs go by their names, values by their numbers. Where sizes vary, they are inputs too, with the largest ones that the
text's types are made for, and types are made of their names:

    graph tail(%x: f32[batch,length], %batch: size(16), %length: size(512)) {
      %0: f32[batch,length-1] = library aten.slice.Tensor(%x, 1, 1, length)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

import torch

from weft.errors import UsageError, short_path
from weft.ir.graph import Graph, Place, Value
from weft.ir.library import Call, Path
from weft.ir.literals import argument_text, inline_elements
from weft.ir.ops import OPS
from weft.ir.size_text import largest_sizes

WIDEST_HEADER = 120
GOOD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*", re.ASCII)
PLAIN_PLACE = re.compile(r'[^\s":#]+', re.ASCII)


def print_graph(graph: Graph, *, short_places: bool = False, places: bool = True) -> str:
    """Write a Graph as text; `short_places` shortens file names, which then no longer parse back to the same files."""
    return _Writer(graph, short_places=short_places, places=places).text()


def constants_of(graph: Graph) -> list[torch.Tensor]:
    """The constants that the text names by number, in order: what `parse_graph` needs besides the text."""
    found = {id(tensor): tensor for tensor in _constants(graph) if inline_elements(tensor) is None}
    return list(found.values())


def name_inputs(inputs: Iterable[Value]) -> dict[Value, str]:
    """Give every input a name of its own: its own name where that is one, else its position.

    Sizes that vary come first, as types call them by their names.
    """
    names: dict[Value, str] = {}
    used: set[str] = set()
    numbered = [*enumerate(inputs)]
    sizes = largest_sizes(value for _, value in numbered)
    for position, value in sorted(numbered, key=lambda item: item[1] not in sizes):
        name = value.name if GOOD_NAME.fullmatch(value.name) and value.name not in used else f"input{position}"
        while name in used:
            name += "_"
        used.add(name)
        names[value] = name
    return names


def _constants(graph: Graph) -> Iterable[torch.Tensor]:
    return (value.attributes["tensor"] for value in graph if value.op == "constant")


def path_text(path: Path) -> str:
    """Write the view steps of a path, each after `via`."""
    text = ""
    for step in path:
        text += f" via {call_text(Call(step.target, step.arguments, step.keywords), ())}"
        text += "" if step.item is None else f"[{step.item}]"
    return text


def call_text(call: Call, operands: tuple[str, ...]) -> str:
    """Write a call without its written places."""
    arguments = [argument_text(argument, operands) for argument in call.arguments]
    arguments += [f"{name}={argument_text(argument, operands)}" for name, argument in call.keywords]
    return f"{call.target}({', '.join(arguments)})"


class _Writer:
    """Writes one Graph: knows the names of its values and the numbers of its constants."""

    def __init__(self, graph: Graph, *, short_places: bool, places: bool) -> None:
        self.graph = graph
        self.short_places = short_places
        self.places = places
        self.names = {value: f"%{name}" for value, name in name_inputs(graph.inputs).items()}
        self.sizes = largest_sizes(graph.inputs)
        self.names |= {value: f"%{number}" for number, value in enumerate(graph.values)}
        self.numbers = {id(tensor): number for number, tensor in enumerate(constants_of(graph))}
        self.forms: dict[str, Callable[[Value, tuple[str, ...]], str]] = {
            "constant": self._constant,
            "number": self._number,
            "library": lambda value, operands: f" {call_text(value.attributes['call'], operands)}",
            "update": self._update,
        }

    def text(self) -> str:
        lines = [self._header()]
        lines += [f"  {self.names[value]}: {value.type} = {self._value(value)}" for value in self.graph]
        lines += [
            f"  write {self.name(write.input)}{path_text(write.path)} <- {self.name(write.value)}"
            for write in self.graph.writes
        ]
        results = [self.name(result.value) + path_text(result.path) for result in self.graph.results]
        return "\n".join([*lines, f"  return {', '.join(results)}".rstrip(), "}", ""])

    def name(self, value: Value) -> str:
        if value not in self.names:
            raise UsageError(f"{value!r} is used in graph {self.graph.name} but is neither an input nor computed there")
        return self.names[value]

    def _header(self) -> str:
        inputs = [
            f"{self.names[value]}: {value.type if value not in self.sizes else f'size({self.sizes[value]})'}"
            for value in self.graph.inputs
        ]
        name = self.graph.name if GOOD_NAME.fullmatch(self.graph.name) else json.dumps(self.graph.name)
        line = f"graph {name}({', '.join(inputs)}) {{"
        if len(line) <= WIDEST_HEADER:
            return line
        return f"graph {name}(\n    " + ",\n    ".join(inputs) + "\n) {"

    def _value(self, value: Value) -> str:
        operands = tuple(map(self.name, value.operands))
        form = self.forms.get(value.op, self._plain)
        return value.op + form(value, operands) + self._place(value.place)

    def _plain(self, value: Value, operands: tuple[str, ...]) -> str:
        order = [attribute.name for attribute in OPS[value.op].attributes] if value.op in OPS else []
        order += [name for name in value.attributes if name not in order]
        given = [f"{name}={argument_text(value.attributes[name])}" for name in order if name in value.attributes]
        parts = ", ".join([*operands, *given])
        return f" {parts}" if parts else ""

    def _constant(self, value: Value, operands: tuple[str, ...]) -> str:
        del operands
        tensor = value.attributes["tensor"]
        if id(tensor) in self.numbers:
            return f" #{self.numbers[id(tensor)]}"
        return f" {argument_text(inline_elements(tensor))}"

    def _number(self, value: Value, operands: tuple[str, ...]) -> str:
        arguments = ", ".join(argument_text(argument, operands) for argument in value.attributes["arguments"])
        return f" {value.attributes['operator']}({arguments})"

    def _update(self, value: Value, operands: tuple[str, ...]) -> str:
        call: Call = value.attributes["call"]
        owner: dict[int, str] = {}
        places = []
        for number, place in enumerate(call.written):
            source = owner.get(place.base, operands[place.base])
            owner.setdefault(place.base, f"!{number}")
            places.append(f"!{number} = {source}{path_text(place.path)}")
        return f" {call_text(call, operands)} on {', '.join(places)}"

    def _place(self, place: Place | None) -> str:
        if place is None or not self.places:
            return ""
        filename = _readable(short_path(place.filename)) if self.short_places else _plain_or_quoted(place.filename)
        text = f"  # {filename}:{place.line}"
        return f"{text} in {_plain_or_quoted(place.function)}" if place.function else text


def _readable(text: str) -> str:
    """A name for people only, so that blanks do no harm; but a line must stay a line."""
    return text if text.isprintable() and '"' not in text else json.dumps(text)


def _plain_or_quoted(text: str) -> str:
    return text if PLAIN_PLACE.fullmatch(text) else json.dumps(text)
