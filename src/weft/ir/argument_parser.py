"""Words of a Graph's text -> types, literals, calls and paths, as literals.py and types.py write them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import torch

from weft.ir.calls import HOLE, Argument, Call, Path, ViewStep, WrittenArgument
from weft.ir.lexer import Reader, Token
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
    """Read a size or stride: an integer that is not negative and fits 64 bits."""
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
