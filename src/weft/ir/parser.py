"""Parse the text of a Graph, as printer.py describes it, into the Graph.

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

from weft.ir.graph import NO_ATTRIBUTES, Graph, Place, Result, Value, Write
from weft.ir.lexer import ParseError, Reader, TextLimits, Token
from weft.ir.library import HOLE, Argument, Call, Operand, Path, ViewStep, WrittenArgument, WrittenPlace, map_arguments
from weft.ir.literals import MOST_INLINE_ELEMENTS, tensor_of
from weft.ir.ops import OPS
from weft.ir.size_text import SizeNames
from weft.ir.types import (
    CPU,
    DTYPES_BY_NAME,
    NOTHING,
    NUMBER_KINDS,
    NumberType,
    TensorType,
    TupleType,
    Type,
    UnsizedType,
    row_major,
)

LARGEST_SIZE = 2**63 - 1
INTEGER = re.compile(r"-?[0-9]+")
TORCH_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)
WORDS: dict[str, Any] = {"True": True, "False": False, "None": None, "_": HOLE, **DTYPES_BY_NAME}
UseValue = Callable[[Token], Argument]


def read_size(reader: Reader) -> int:
    """Read a size or stride: an integer that is not negative and fits 64 bits, or what is made of named sizes."""
    if reader.sizes is not None and (reader.sees("word") or reader.sees("(")):
        return reader.sizes.read(reader.take())
    token = reader.expect("number", "a size")
    if not INTEGER.fullmatch(token.text) or not 0 <= int(token.text) <= LARGEST_SIZE:
        raise reader.error("a size", token)
    return int(token.text)


def read_list(reader: Reader, close: str, read: Callable[[], Any]) -> tuple[Any, ...]:
    """Read items separated by commas up to the closing bracket, which is taken too."""
    items: list[Any] = []
    with reader.nested():
        while not reader.skip(close):
            if items:
                reader.expect(",", f"a comma or {close}")
            items.append(read())
    return tuple(items)


def read_device(reader: Reader, token: Token) -> torch.device:
    """Read @cpu or @cuda:0."""
    try:
        return torch.device(token.text[1:])
    except (RuntimeError, ValueError) as error:
        raise reader.error("a device that PyTorch knows, such as @cpu or @cuda:0", token) from error


def read_type(reader: Reader) -> Type:
    """Read f32[2,3]{1,2}@cuda:0, (f32[2], i64[2]), int, or nothing."""
    if reader.skip("("):
        return TupleType(read_list(reader, ")", lambda: read_type(reader)))
    token = reader.expect("word", "a type such as f32[2,3], int or nothing")
    if reader.sees("[") and token.text in DTYPES_BY_NAME:
        return _read_tensor_type(reader, DTYPES_BY_NAME[token.text])
    if token.text in NUMBER_KINDS:
        return NumberType(token.text)
    if token.text == "nothing":
        return NOTHING
    raise reader.error("a type such as f32[2,3], int or nothing", token)


def _read_tensor_type(reader: Reader, dtype: torch.dtype) -> TensorType | UnsizedType:
    reader.expect("[")
    if reader.skip("?"):
        reader.expect("]")
        return UnsizedType(dtype, read_device(reader, reader.take()) if reader.sees("device") else CPU)
    shape = read_list(reader, "]", lambda: read_size(reader))
    strides = row_major(shape)
    opening = reader.next
    if reader.skip("{"):
        strides = read_list(reader, "}", lambda: read_size(reader))
    if len(strides) != len(shape):
        raise reader.error(f"{len(shape)} strides", opening)
    device = read_device(reader, reader.take()) if reader.sees("device") else CPU
    return TensorType(dtype, shape, strides, device)


def read_argument(reader: Reader, use: UseValue) -> Argument:
    """Read one argument; `use` says what stands for the value of a name."""
    return argument_from(reader, reader.take(), use)


def read_literal(reader: Reader) -> Any:
    """Read an argument in which no value is named."""

    def refuse(token: Token) -> Argument:
        raise reader.error("a literal", token)

    return read_argument(reader, refuse)


def argument_from(reader: Reader, token: Token, use: UseValue) -> Argument:
    """Read the argument that begins with a token already taken."""
    if token.kind == "[":
        return read_list(reader, "]", lambda: read_argument(reader, use))
    if token.kind == "name":
        return use(token)
    if reader.sizes is not None and reader.sizes.sees(token):
        return reader.sizes.read(token)
    if token.kind not in LITERAL_READERS:
        raise reader.error("an argument", token)
    return LITERAL_READERS[token.kind](reader, token)


def read_number(reader: Reader, token: Token) -> int | float:
    """Read an integer if it is written as one, else a float."""
    del reader
    return int(token.text) if INTEGER.fullmatch(token.text) else float(token.text)


def read_string(reader: Reader, token: Token) -> str:
    """Read a string as JSON writes it."""
    try:
        return str(json.loads(token.text))
    except json.JSONDecodeError as error:
        raise reader.error("a string as in JSON", token) from error


def _read_word(reader: Reader, token: Token) -> Any:
    if token.text in WORDS:
        return WORDS[token.text]
    if token.text == "complex":
        return _read_complex(reader, token)
    if token.text == "generator":
        raise reader.error("a literal", token, why="a torch.Generator lives only in the process that made it")
    prefix, _, name = token.text.partition(".")
    # Only constants of the torch module itself, by their exact names: nothing is imported, called or looked into.
    found = vars(torch).get(name) if prefix == "torch" else None
    if not isinstance(found, TORCH_CONSTANTS):
        raise reader.error("a literal, or the name of a value such as %0", token)
    return found


def _read_complex(reader: Reader, token: Token) -> complex:
    reader.expect("(")
    parts = read_list(reader, ")", lambda: float(reader.expect("number", "a number").text))
    if len(parts) != 2:
        raise reader.error("complex(real part, imaginary part)", token)
    return complex(*parts)


LITERAL_READERS: dict[str, Callable[[Reader, Token], Any]] = {
    "number": read_number,
    "word": _read_word,
    "string": read_string,
    "written": lambda _, token: WrittenArgument(int(token.text[1:])),
    "device": read_device,
}


def read_call(reader: Reader, use: UseValue) -> Call:
    """Read TARGET(argument, ..., keyword=argument, ...)."""
    target = reader.expect("word", "an operator such as aten.relu.default")
    reader.expect("(")
    positional: list[Argument] = []
    keywords: dict[str, Argument] = {}

    def read_one() -> None:
        token = reader.take()
        if token.kind == "word" and reader.skip("="):
            if token.text in keywords:
                raise reader.error("a keyword not yet given", token)
            keywords[token.text] = read_argument(reader, use)
        elif keywords:
            raise reader.error("a keyword: positional arguments come first", token)
        else:
            positional.append(argument_from(reader, token, use))

    read_list(reader, ")", read_one)
    return Call(target.text, tuple(positional), tuple(keywords.items()))


def read_path(reader: Reader) -> Path:
    """Read view steps, each after `via`."""
    steps: list[ViewStep] = []

    def refuse(token: Token) -> Argument:
        raise reader.error("a literal, or _ for the tensor that is viewed", token)

    while reader.skip("via"):
        call = read_call(reader, refuse)
        item = None
        if reader.skip("["):
            item = read_size(reader)
            reader.expect("]")
        steps.append(ViewStep(call.target, call.arguments, call.keywords, item))
    return tuple(steps)


__all__ = ["TextLimits", "ParseError", "parse_graph"]

NO_LIMITS_GIVEN = TextLimits()
PLACE = re.compile(r'("(?:[^"\\]|\\.)*"|[^\s":#]+):([0-9]{1,9})(?: in ("(?:[^"\\]|\\.)*"|[^\s":#]+))?', re.ASCII)
Parts = tuple[tuple[Value, ...], dict[str, Any]]


def parse_graph(
    text: str, constants: Sequence[torch.Tensor] | None = None, limits: TextLimits = NO_LIMITS_GIVEN
) -> Graph:
    """Read a Graph; `constants` are the tensors that the text names by number (see `constants_of`)."""
    return _Parser(Reader(text, limits), constants or ()).graph()


class _Parser:
    """Reads one Graph: knows the values named so far."""

    def __init__(self, reader: Reader, constants: Sequence[torch.Tensor]) -> None:
        self.reader = reader
        self.constants = constants
        self.values: dict[str, Value] = {}
        self.sizes = reader.sizes = SizeNames(reader)
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
        read_list(reader, ")", self._input)
        self.values = self.sizes.resolve(self.values)
        inputs = tuple(self.values.values())
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
        name = self._new_name()
        if self.reader.skip("size"):
            self.values[name.text] = self.sizes.declare(name)
            return self.values[name.text]
        return self._keep(name, Value("input", (), read_type(self.reader)))

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
        return self._new_name(), read_type(self.reader)

    def _new_name(self) -> Token:
        name = self.reader.expect("name", "a value's name such as %0")
        if name.text in self.values:
            raise self.reader.error("a name not yet taken", name)
        self.reader.expect(":")
        return name

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
