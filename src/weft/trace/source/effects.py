"""An expression -> the events of its evaluation that something could notice, in Python's order.

An event is an operator, a call, a lookup that may fail, or a new object: whatever may raise, run code of others, or
have an identity. Two expressions with the same events in the same order, under the same conditions, do the same.
Literals and names that certainly have a value that nothing can change meanwhile cause no event.

Expressions may refer to earlier results: the name `%2` means the value of the third expression of `lets`.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from weft.trace.source.fold import is_literal

Guard = tuple[int, int]


@dataclass(frozen=True)
class Event:
    """Step `part` of evaluating the node `origin`, if the conditions `guards` around it hold."""

    origin: int
    part: int
    guards: tuple[Guard, ...]


@dataclass(frozen=True)
class Reader:
    """Reads expressions: what their references mean, which names are steady, and under which conditions."""

    lets: Sequence[ast.expr]
    steady: AbstractSet[str]
    guards: tuple[Guard, ...] = ()
    expand: bool = True

    def event(self, node: ast.AST, part: int = 0) -> Event:
        """Name one step of evaluating a node."""
        return Event(id(node), part, self.guards)

    def under(self, node: ast.AST, branch: int) -> "Reader":
        """Give the reader for a part that is evaluated only if `node` takes this branch."""
        return replace(self, guards=(*self.guards, (id(node), branch)))

    def read(self, node: ast.expr) -> Iterator[Event]:
        """Give the events of an expression in the order of evaluation."""
        if is_literal(node):
            return
        rule = RULES.get(type(node))
        if rule is None:
            yield self.event(node)  # opaque: evaluated as it stands, once, at this point
        else:
            yield from rule(self, node)

    def read_all(self, nodes: Sequence[ast.expr | None]) -> Iterator[Event]:
        """Give the events of several expressions evaluated one after the other."""
        for node in nodes:
            if node is not None:
                yield from self.read(node)


def reference(index: int) -> str:
    """Name an earlier result; no name of a program looks like this."""
    return f"%{index}"


def referred(name: str) -> int | None:
    """Give the index of the earlier result that a name refers to, or None for a name of the program."""
    return int(name[1:]) if name.startswith("%") else None


def _name(reader: Reader, node: ast.Name) -> Iterator[Event]:
    index = referred(node.id)
    if index is not None:
        if reader.expand:
            yield from reader.read(reader.lets[index])
    elif node.id not in reader.steady:
        yield reader.event(node)


def _boolean(reader: Reader, node: ast.BoolOp) -> Iterator[Event]:
    for position, value in enumerate(node.values):
        yield from (reader.under(node, position) if position else reader).read(value)
        yield reader.event(node, position)


def _conditional(reader: Reader, node: ast.IfExp) -> Iterator[Event]:
    yield from reader.read(node.test)
    yield reader.event(node)
    yield from reader.under(node, 0).read(node.body)
    yield from reader.under(node, 1).read(node.orelse)


def _comparison(reader: Reader, node: ast.Compare) -> Iterator[Event]:
    yield from reader.read(node.left)
    for position, value in enumerate(node.comparators):
        inside = reader.under(node, position) if position else reader
        yield from inside.read(value)
        yield inside.event(node, position)


def _call(reader: Reader, node: ast.Call) -> Iterator[Event]:
    yield from reader.read(node.func)
    yield from reader.read_all(node.args)
    yield from reader.read_all([keyword.value for keyword in node.keywords])
    yield reader.event(node)


def _operands_then_event(*fields: str) -> Callable[[Reader, ast.expr], Iterator[Event]]:
    """Make the rule of a node that evaluates the named fields and then does something."""

    def rule(reader: Reader, node: ast.expr) -> Iterator[Event]:
        for field in fields:
            value = getattr(node, field)
            yield from reader.read_all(value if isinstance(value, list) else [value])
        yield reader.event(node)

    return rule


def _none(_reader: Reader, _node: ast.expr) -> Iterator[Event]:
    return iter(())


# A row for each kind of expression that a function to be put in place of its call may consist of.
RULES: dict[type[ast.AST], Callable[..., Iterator[Event]]] = {
    ast.Constant: _none,
    ast.Name: _name,
    ast.BoolOp: _boolean,
    ast.IfExp: _conditional,
    ast.Compare: _comparison,
    ast.Call: _call,
    ast.BinOp: _operands_then_event("left", "right"),
    ast.UnaryOp: _operands_then_event("operand"),
    ast.Attribute: _operands_then_event("value"),
    ast.Subscript: _operands_then_event("value", "slice"),
    ast.Slice: _operands_then_event("lower", "upper", "step"),
    ast.Tuple: _operands_then_event("elts"),
    ast.List: _operands_then_event("elts"),
    ast.Starred: _operands_then_event("value"),
}


def same_effects(lets: Sequence[ast.expr], steady: AbstractSet[str]) -> bool:
    """Say whether the last expression with all references written out does what all of them do one after another."""
    step_by_step = Reader(lets, steady, expand=False)
    whole = Reader(lets, steady)
    return [event for node in lets for event in step_by_step.read(node)] == list(whole.read(lets[-1]))
