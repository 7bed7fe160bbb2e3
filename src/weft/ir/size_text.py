"""Declare the sizes that vary in a Graph's text, and read what is made of them: `%n: size(24)`, `f32[n,(n-3)//2+1]`.

A size is a number input of the Graph; behind its name stands the largest one that the types of the text are made for.

What must hold of sizes is Python's arithmetic, of which nothing else is understood: `n % 2 == 0 and n > 8`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from threading import Lock
from types import MappingProxyType
from typing import Any

from weft.errors import UsageError
from weft.ir.extents import Extent, Polynomial, extent_of_size
from weft.ir.graph import Graph, Value
from weft.ir.lexer import Reader, Token
from weft.ir.library import Call, ViewStep, WrittenPlace
from weft.ir.types import NumberType, TensorType, TupleType

MOST_TERMS = 64
LARGEST_SIZE = 2**63 - 1
SIZE = NumberType("int")


def extents_of(thing: Any) -> Iterator[Extent]:
    """The sizes that vary in a type, or among arguments."""
    if isinstance(thing, Extent):
        yield thing
    elif isinstance(thing, TensorType):
        yield from extents_of((thing.shape, thing.strides))
    elif isinstance(thing, TupleType):
        yield from extents_of(thing.items)
    elif isinstance(thing, (tuple, list)):
        for item in thing:
            yield from extents_of(item)


def largest_sizes(inputs: Iterable[Value]) -> dict[Value, int]:
    """The inputs of a Graph that are sizes, with the largest ones that its types are made for."""
    found: dict[Value, int] = {}
    for value in inputs:
        for extent in extents_of(value.type):
            atoms = extent.expression.atoms()
            if extent.expression == Polynomial.atom(next(iter(atoms))):
                found[next(iter(atoms))] = extent.today
    return found


def with_sizes(thing: Any, change: Callable[[Extent], int]) -> Any:
    """The same type, call or arguments with other sizes in the place of those that vary."""
    if isinstance(thing, Extent):
        return change(thing)
    if isinstance(thing, (tuple, list)):
        return tuple(with_sizes(item, change) for item in thing)
    if isinstance(thing, TensorType):
        return replace(thing, shape=with_sizes(thing.shape, change), strides=with_sizes(thing.strides, change))
    if isinstance(thing, TupleType):
        return TupleType(with_sizes(thing.items, change))
    if isinstance(thing, Call | ViewStep):
        keywords = tuple((name, with_sizes(entry, change)) for name, entry in thing.keywords)
        found = replace(thing, arguments=with_sizes(thing.arguments, change), keywords=keywords)
        return replace(found, written=with_sizes(found.written, change)) if isinstance(found, Call) else found
    if isinstance(thing, WrittenPlace):
        return replace(thing, path=with_sizes(thing.path, change))
    return thing


def with_inputs(graph: Graph, inputs: Mapping[Value, Value]) -> Graph:
    """The same Graph with other inputs, also where sizes are made of them."""

    def change(extent: Extent) -> int:
        moved = extent.expression.value(lambda atom: Extent(1, Polynomial.atom(inputs.get(atom, atom))))
        return Extent(extent.today, moved.expression)

    now: dict[Value, Value] = {
        value: replace(inputs.get(value, value), type=with_sizes(value.type, change))
        if value.type != SIZE
        else inputs.get(value, value)
        for value in graph.inputs
    }
    for value in graph.values:
        attributes = {name: with_sizes(entry, change) for name, entry in value.attributes.items()}
        operands = tuple(now[operand] for operand in value.operands)
        kind = with_sizes(value.type, change)
        now[value] = replace(value, operands=operands, type=kind, attributes=MappingProxyType(attributes))
    return replace(
        graph,
        inputs=tuple(now[value] for value in graph.inputs),
        values=tuple(now[value] for value in graph.values),
        results=tuple(
            replace(result, value=now[result.value], path=with_sizes(result.path, change)) for result in graph.results
        ),
        writes=tuple(
            replace(write, input=now[write.input], value=now[write.value], path=with_sizes(write.path, change))
            for write in graph.writes
        ),
    )


class SizeNames:
    """The sizes of one Graph's text: mentioned in the types of inputs, then declared among these."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._values: dict[str, Value] = {}
        self._mentioned: dict[str, Token] = {}
        self._largest: dict[Value, int] = {}

    def sees(self, token: Token) -> bool:
        """Whether a size begins with a token that was taken, where a literal may stand."""
        return token.kind == "(" or (token.kind == "word" and token.text in self._values)

    def declare(self, name: Token) -> Value:
        """Read what stands behind the name of a size: `size(24)`."""
        reader, text = self._reader, name.text[1:]
        reader.expect("(")
        number = reader.expect("number", "the largest size")
        if not number.text.isdigit() or int(number.text) > LARGEST_SIZE:
            raise reader.error("the largest size", number)
        reader.expect(")")
        value = self._value(text)
        self._largest[value] = int(number.text)
        return value

    def resolve(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """The inputs with what their sizes are for the largest ones; those that nobody declared are an error."""
        for name, token in self._mentioned.items():
            if self._values[name] not in self._largest:
                raise self._reader.error("the name of a size that is among the inputs", token)
        if not self._largest:
            return dict(inputs)
        found = {}
        for name, value in inputs.items():
            kind = with_sizes(value.type, self._now)
            found[name] = value if kind == value.type and not [*extents_of(kind)] else replace(value, type=kind)
        return found

    def read(self, token: Token) -> int:
        """Read a size that is made of named ones, from a token that was taken."""
        found = self._sum(token)
        if not 0 <= int.__add__(found, 0) <= LARGEST_SIZE and self._is_resolved(found):
            raise self._reader.error("a size that is not negative", token)
        return found

    def _is_resolved(self, size: int) -> bool:
        return not isinstance(size, Extent) or all(atom in self._largest for atom in size.expression.atoms())

    def _now(self, extent: Extent) -> int:
        found: int = extent.expression.value(lambda atom: extent_of_size(atom, self._largest[atom]))
        if not 0 <= int.__add__(found, 0) <= LARGEST_SIZE:
            raise self._reader.error(
                "sizes that are not negative", why=f"{extent.expression} is {int.__add__(found, 0)}"
            )
        return found

    def _value(self, name: str) -> Value:
        return self._values.setdefault(name, Value("input", (), SIZE, name=name))

    def _sum(self, token: Token) -> int:
        found: Any = self._product(token)
        while True:
            if self._reader.skip("+") or (self._reader.sees("number") and self._reader.next.text.startswith("-")):
                found = found + self._product(self._reader.take())
            else:
                return int(found) if not isinstance(found, Extent) else found
            if isinstance(found, Extent) and len(found.expression.terms) > MOST_TERMS:
                raise self._reader.error(f"a sum of at most {MOST_TERMS} products")

    def _product(self, token: Token) -> Any:
        found: Any = self._factor(token)
        count = 1
        while self._reader.sees("*") or self._reader.sees("//"):
            count += 1
            if count > MOST_TERMS:
                raise self._reader.error(f"a product of at most {MOST_TERMS} factors")
            if self._reader.skip("*"):
                found = found * self._factor(self._reader.take())
                if isinstance(found, Extent) and len(found.expression.terms) > MOST_TERMS:
                    raise self._reader.error(f"a sum of at most {MOST_TERMS} products")
                continue
            self._reader.expect("//")
            divisor = self._reader.expect("number", "a number of at least 1")
            if not divisor.text.isdigit() or not 0 < int(divisor.text) <= LARGEST_SIZE:
                raise self._reader.error("a number of at least 1", divisor)
            found = found // int(divisor.text)
        return found

    def _factor(self, token: Token) -> Any:
        if token.kind == "(":
            with self._reader.nested():
                found = self._sum(self._reader.take())
                self._reader.expect(")")
            return found
        if token.kind == "number" and token.text.lstrip("-").isdigit():
            return int(token.text)
        if token.kind != "word" or "." in token.text:
            raise self._reader.error("a size", token)
        self._mentioned.setdefault(token.text, token)
        value = self._value(token.text)
        return extent_of_size(value, self._largest.get(value, 1))


OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Div: operator.truediv, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Not: operator.not_, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {"max": max, "min": min, "abs": abs}
MOST_CHARACTERS = 4096
MOST_NODES = 512
Holds = Callable[[Mapping[str, int]], bool]
_parsing = Lock()


def parsed(text: str, mode: str = "eval") -> Any:
    """The tree of a text of Python: of two threads that make one at once CPython 3.11 takes one for damaged."""
    with _parsing:
        return ast.parse(text, mode=mode)


def read_condition(text: str, names: Collection[str]) -> Holds:
    """Give what tells whether it holds for sizes of these names, or raise UsageError."""
    try:
        tree = parsed(text) if len(text) <= MOST_CHARACTERS else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if tree is None or sum(1 for _ in ast.walk(tree)) > MOST_NODES:
        raise _not_understood(text)
    _check(tree.body, names, text)
    body = tree.body

    def holds(sizes: Mapping[str, int]) -> bool:
        try:
            return bool(_value(body, sizes))
        except (ZeroDivisionError, OverflowError):
            return False

    return holds


def _not_understood(text: str) -> UsageError:
    return UsageError(
        f"a condition on sizes is not understood: {text[:80]}",
        why="it is arithmetic on the sizes of the program, with comparisons",
    )


def _check(node: ast.AST, names: Collection[str], text: str) -> None:
    """Raise UsageError for all but arithmetic on whole numbers and known names."""
    if isinstance(node, ast.Name):
        fits = node.id in names
    elif isinstance(node, ast.Constant):
        fits = isinstance(node.value, int) and abs(node.value) < 1 << 63
    elif isinstance(node, ast.Call):
        fits = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and bool(node.args) and not node.keywords
        for argument in node.args:
            _check(argument, names, text)
    elif isinstance(node, ast.BinOp):
        fits = type(node.op) in OPERATORS
        _check(node.left, names, text)
        _check(node.right, names, text)
    elif isinstance(node, ast.UnaryOp):
        fits = type(node.op) in OPERATORS
        _check(node.operand, names, text)
    elif isinstance(node, ast.Compare):
        fits = all(type(one) in OPERATORS for one in node.ops)
        for part in (node.left, *node.comparators):
            _check(part, names, text)
    else:
        fits = isinstance(node, ast.BoolOp)
        for part in node.values if isinstance(node, ast.BoolOp) else ():
            _check(part, names, text)
    if not fits:
        raise _not_understood(text)


def _value(node: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Call):
        return FUNCTIONS[node.func.id](*(_value(argument, sizes) for argument in node.args))  # type: ignore[attr-defined]
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](_value(node.operand, sizes))
    if isinstance(node, ast.Compare):
        values = [_value(part, sizes) for part in (node.left, *node.comparators)]
        return all(OPERATORS[type(one)](values[at], values[at + 1]) for at, one in enumerate(node.ops))
    found = (_value(part, sizes) for part in node.values)
    return all(found) if isinstance(node.op, ast.And) else any(found)
