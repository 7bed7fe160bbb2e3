"""The text of a Graph, as printer.py describes it -> the Graph.

Text may come from anywhere: nothing in it is run or imported, brackets and sizes are limited, and whatever does not
fit is a ParseError with its line and column. The parser checks the grammar; what the Graph means is for the verifier.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from weft.ir.argument_parser import (
    read_argument,
    read_call,
    read_list,
    read_literal,
    read_path,
    read_string,
    read_type,
)
from weft.ir.calls import Argument, Call, Operand, WrittenPlace, map_arguments
from weft.ir.constants import MOST_INLINE_ELEMENTS, tensor_of
from weft.ir.graph import NO_ATTRIBUTES, Graph, Place, Result, Value, Write
from weft.ir.lexer import Limits, ParseError, Reader, Token
from weft.ir.ops import OPS
from weft.ir.types import CPU, TensorType, Type

__all__ = ["Limits", "ParseError", "parse_graph"]

NO_LIMITS_GIVEN = Limits()
PLACE = re.compile(r'("(?:[^"\\]|\\.)*"|[^\s":#]+):([0-9]{1,9})(?: in ("(?:[^"\\]|\\.)*"|[^\s":#]+))?', re.ASCII)
Parts = tuple[tuple[Value, ...], dict[str, Any]]


def parse_graph(text: str, constants: Sequence[torch.Tensor] | None = None, limits: Limits = NO_LIMITS_GIVEN) -> Graph:
    """Read a Graph; `constants` are the tensors that the text names by number (see `constants_of`)."""
    return _Parser(Reader(text, limits), constants or ()).graph()


class _Parser:
    """Reads one Graph: knows the values named so far."""

    def __init__(self, reader: Reader, constants: Sequence[torch.Tensor]) -> None:
        self.reader = reader
        self.constants = constants
        self.values: dict[str, Value] = {}
        self.forms: dict[str, Callable[[Type], Parts]] = {
            "constant": self._constant,
            "number": self._number,
            "library": self._library,
            "update": self._update,
        }

    def graph(self) -> Graph:
        reader = self.reader
        reader.expect("graph", "a graph: graph NAME(%input: TYPE, ...) { ... }")
        name = read_string(reader, reader.take()) if reader.sees("string") else reader.expect("word", "a name").text
        reader.expect("(")
        inputs = read_list(reader, ")", self._input)
        reader.expect("{")
        values: list[Value] = []
        while reader.sees("name"):
            values.append(self._value())
        writes: list[Write] = []
        while reader.skip("write"):
            writes.append(self._write())
        reader.expect("return", "%name: TYPE = ..., or write, or return")
        results = self._results()
        reader.expect("end", "the end of the text")
        return Graph(name, inputs, tuple(values), results, tuple(writes))

    def _input(self) -> Value:
        name, declared = self._declaration()
        return self._keep(name, Value("input", (), declared))

    def _value(self) -> Value:
        name, declared = self._declaration()
        self.reader.expect("=")
        op = self.reader.expect("word", "an op")
        if op.text not in OPS:
            raise self.reader.error("an op of weft/ir/ops.py", op)
        form = self.forms.get(op.text)
        operands, given = self._plain(op) if form is None else form(declared)
        place = self._place()
        return self._keep(name, Value(op.text, operands, declared, MappingProxyType(given) or NO_ATTRIBUTES, place))

    def _declaration(self) -> tuple[Token, Type]:
        name = self.reader.expect("name", "a value's name such as %0")
        if name.text in self.values:
            raise self.reader.error("a name not yet taken", name)
        self.reader.expect(":")
        return name, read_type(self.reader)

    def _keep(self, name: Token, value: Value) -> Value:
        label = name.text[1:]
        self.values[name.text] = value if label.isdigit() else replace(value, name=label)
        return self.values[name.text]

    def _known(self, token: Token) -> Value:
        if token.text not in self.values:
            raise self.reader.error("an input, or a value computed above", token)
        return self.values[token.text]

    def _use(self, operands: list[Value]) -> Callable[[Token], Argument]:
        """Make the function that turns a name into the position of its value among `operands`, adding it if new."""
        positions: dict[Value, int] = {}

        def use(token: Token) -> Argument:
            value = self._known(token)
            if value not in positions:
                positions[value] = len(operands)
                operands.append(value)
            return Operand(positions[value])

        return use

    def _plain(self, op: Token) -> Parts:
        operands: list[Value] = []
        given: dict[str, Any] = {}
        names = [attribute.name for attribute in OPS[op.text].attributes]
        # After an op without operands a name begins the next value.
        operands_follow = self.reader.sees("name") and OPS[op.text].arity != 0
        more = operands_follow or (self.reader.sees("word") and self.reader.next.text in names)
        while more:
            if self.reader.sees("name") and not given:
                operands.append(self._known(self.reader.take()))
            else:
                word = self.reader.expect("word", f"an attribute of {op}: {', '.join(names) or 'it has none'}")
                if word.text not in names or word.text in given:
                    raise self.reader.error(f"an attribute of {op}: {', '.join(names) or 'it has none'}", word)
                self.reader.expect("=")
                given[word.text] = read_literal(self.reader)
            more = self.reader.skip(",")
        return tuple(operands), given

    def _constant(self, declared: Type) -> Parts:
        start = self.reader.next
        if not isinstance(declared, TensorType):
            raise self.reader.error("a constant of a tensor type", start)
        if start.kind == "table":
            number = int(self.reader.take().text[1:10])
            if number >= len(self.constants):
                raise self.reader.error(f"one of the {len(self.constants)} constants in the table", start)
            return (), {"tensor": self.constants[number]}
        elements = read_literal(self.reader)
        fits = isinstance(elements, tuple) and len(elements) == declared.size <= MOST_INLINE_ELEMENTS
        if not fits or declared.device != CPU:
            raise self.reader.error(f"a list of {declared.size} elements, at most {MOST_INLINE_ELEMENTS}", start)
        try:
            return (), {"tensor": tensor_of(elements, declared)}
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise self.reader.error(f"elements of {declared}", start, why=str(error)) from error

    def _number(self, declared: Type) -> Parts:
        del declared
        operator = self.reader.expect("word", "an operator such as add")
        self.reader.expect("(")
        operands: list[Value] = []
        use = self._use(operands)
        arguments = read_list(self.reader, ")", lambda: read_argument(self.reader, use))
        return tuple(operands), {"operator": operator.text, "arguments": arguments}

    def _library(self, declared: Type) -> Parts:
        del declared
        operands: list[Value] = []
        call = read_call(self.reader, self._use(operands))
        return tuple(operands), {"call": call}

    def _update(self, declared: Type) -> Parts:
        """Operands are the bases in order, then what the arguments name; they are known only after the arguments."""
        del declared
        arguments: list[Value] = []
        call = read_call(self.reader, self._use(arguments))
        bases: list[Value] = []
        written: list[WrittenPlace] = []
        self.reader.expect("on", "on !0 = %base: what the operator writes")
        while not written or self.reader.skip(","):
            written.append(self._written_place(written, bases))
        operands = [*bases, *(value for value in arguments if value not in bases)]

        def change(leaf: Argument) -> Argument:
            return Operand(operands.index(arguments[leaf.index])) if isinstance(leaf, Operand) else leaf

        keywords = tuple((name, map_arguments(argument, change)) for name, argument in call.keywords)
        moved = Call(call.target, map_arguments(call.arguments, change), keywords, tuple(written))
        return tuple(operands), {"call": moved}

    def _written_place(self, written: list[WrittenPlace], bases: list[Value]) -> WrittenPlace:
        number = self.reader.expect("written", f"!{len(written)} = %base")
        if number.text != f"!{len(written)}":
            raise self.reader.error(f"!{len(written)}", number)
        self.reader.expect("=")
        if self.reader.sees("written"):
            owner = self.reader.take()
            if int(owner.text[1:]) >= len(written):
                raise self.reader.error("an earlier written argument", owner)
            base = written[int(owner.text[1:])].base
        else:
            base = len(bases)
            bases.append(self._known(self.reader.expect("name", "the value whose copy is written")))
        return WrittenPlace(base, read_path(self.reader))

    def _write(self) -> Write:
        target = self._known(self.reader.expect("name", "an input"))
        path = read_path(self.reader)
        self.reader.expect("<-")
        return Write(target, self._known(self.reader.expect("name", "a value")), path)

    def _results(self) -> tuple[Result, ...]:
        results: list[Result] = []
        while not self.reader.skip("}"):
            if results:
                self.reader.expect(",", "a comma or }")
            value = self._known(self.reader.expect("name", "a value"))
            results.append(Result(value, read_path(self.reader)))
        return tuple(results)

    def _place(self) -> Place | None:
        """Read the user's line from the comment after a value, if there is one that names a line."""
        found = PLACE.fullmatch(self.reader.comment())
        if found is None:
            return None
        filename, line, function = found.groups()
        return Place(_unquoted(filename), int(line), _unquoted(function or ""))


def _unquoted(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text
