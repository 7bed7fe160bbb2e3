"""Describe how arguments and results nest, convert that to JSON and back, and take calls apart by it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.errors import UnsupportedError, UsageError
from weft.ir.lexer import Reader, TextLimits
from weft.ir.literals import LITERALS, argument_text
from weft.ir.parser import read_literal
from weft.trace.interception.capture import TreeSpec

# What operators with several results return in Python, such as torch.return_types.max: tuples whose items have names.
RETURNED: dict[str, Any] = {
    f"torch.{name}": kind
    for name, kind in vars(torch.return_types).items()
    if isinstance(kind, type) and issubclass(kind, tuple)
}
BRANCHES: dict[type, str] = {list: "list", tuple: "tuple", torch.Size: "size", dict: "dict", OrderedDict: "ordered"}
BRANCHES |= {kind: name for name, kind in RETURNED.items()}
NAMED: dict[str, Callable[[Sequence[Any], Sequence[Any]], Any]] = {
    "list": lambda _, items: list(items),
    "tuple": lambda _, items: tuple(items),
    "size": lambda _, items: torch.Size(items),
    "dict": lambda keys, items: dict(zip(keys, items, strict=True)),
    "ordered": lambda keys, items: OrderedDict(zip(keys, items, strict=True)),
}
KEYED = ("dict", "ordered")
KINDS: dict[str, type] = {name: kind for kind, name in BRANCHES.items()}
FIXED = tuple(kind for kind in LITERALS if kind.__module__ in ("builtins", "torch") and kind is not torch.Generator)
DEEPEST = 32
SHORT = TextLimits(characters=1 << 20)


@dataclass(frozen=True, slots=True)
class LeafPort:
    """A leaf that is a tensor or changing number: which input, or which result, of the graph."""

    index: int


@dataclass(frozen=True, slots=True)
class FixedLeaf:
    """A leaf that is the same Python value in every call."""

    value: Any


@dataclass(frozen=True, slots=True)
class Branch:
    """A list, tuple or dictionary."""

    kind: str
    keys: tuple[str | int, ...]
    items: tuple[Node, ...]


Node = LeafPort | FixedLeaf | Branch


@dataclass(frozen=True, slots=True)
class CallStructure:
    """How the arguments of a call nest: those by position, with the names they have, and those by keyword."""

    positional: tuple[tuple[str, Node], ...]
    keywords: tuple[tuple[str, Node], ...]

    def ports(self) -> list[int]:
        """The ports in all arguments."""
        return [index for _, node in (*self.positional, *self.keywords) for index in ports(node)]

    def as_json(self) -> dict[str, Any]:
        """Write it as JSON data."""
        return {
            "positional": [[name, to_json(node)] for name, node in self.positional],
            "keywords": [[name, to_json(node)] for name, node in self.keywords],
        }


def call_from_json(positional: Sequence[Any], keywords: Sequence[Any]) -> CallStructure:
    """Read the structure of a call from JSON data of any origin."""
    found = CallStructure(tuple(map(_named, positional)), tuple(map(_named, keywords)))
    names = [name for name, _ in (*found.positional, *found.keywords)]
    if len(set(names)) < len(names):
        raise UsageError("two of its arguments have one name")
    return found


def _named(pair: Any) -> tuple[str, Node]:
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
        raise UsageError("the structure of its arguments is damaged")
    return pair[0], from_json(pair[1])


def describe(structure: TreeSpec, leaves: Sequence[Node], what: str) -> Node:
    """Describe how PyTorch's tree nests leaves that are described already; `what` is for errors."""
    return _describe(structure, iter(leaves), what)


def _describe(structure: TreeSpec, leaves: Any, what: str) -> Node:
    if structure.is_leaf():
        leaf: Node = next(leaves)
        if isinstance(leaf, FixedLeaf) and isinstance(leaf.value, torch.Size):
            return Branch("size", (), tuple(map(FixedLeaf, leaf.value)))
        if isinstance(leaf, FixedLeaf) and type(leaf.value) not in FIXED:
            raise UnsupportedError(
                f"{what} holds a {type(leaf.value).__name__}, which a program file cannot",
                why="it keeps tensors, numbers, strings, dtypes and devices, and no objects of other classes",
                fix="hybridize a function that takes and returns tensors, and wrap it",
            )
        return leaf
    kind = BRANCHES.get(structure.type)
    keys = tuple(structure.context) if kind in KEYED else ()
    if kind is None or any(type(key) not in (str, int) for key in keys):
        # PyTorch describes named tuples as one type, with the class as what tells them apart.
        found = getattr(structure.context, "kind", structure.context)
        named = found if isinstance(found, type) else structure.type
        raise UnsupportedError(
            f"{what} holds a {named.__name__}" + (" with keys that are no strings" if kind else ""),
            why="a program file runs without your classes: it keeps lists, tuples and dictionaries with string keys",
            fix="pass and return tuple(...) or dict(...) instead",
        )
    return Branch(kind, keys, tuple(_describe(child, leaves, what) for child in structure.children()))


def to_json(node: Node) -> Any:
    """Write a structure as JSON data."""
    if isinstance(node, LeafPort):
        return node.index
    if isinstance(node, FixedLeaf):
        return argument_text(node.value)
    items = [to_json(item) for item in node.items]
    return {node.kind: [list(node.keys), items] if node.kind in KEYED else items}


def from_json(data: Any, depth: int = DEEPEST) -> Node:
    """Read a structure from JSON data of any origin."""
    if type(data) is int and data >= 0:
        return LeafPort(data)
    if isinstance(data, str):
        return FixedLeaf(_literal(data))
    if not isinstance(data, dict) or len(data) != 1 or not depth:
        raise UsageError("the structure of its arguments or results is damaged")
    ((kind, items),) = data.items()
    keys: list[Any] = []
    if kind in KEYED and isinstance(items, list) and len(items) == 2:
        keys, items = items
    if kind not in KINDS or not isinstance(items, list) or not _fits(kind, keys, items):
        raise UsageError("the structure of its arguments or results is damaged")
    return Branch(kind, tuple(keys), tuple(from_json(item, depth - 1) for item in items))


def _fits(kind: str, keys: Any, items: list[Any]) -> bool:
    """Whether there are as many items as the kind has, and keys that differ if it has any."""
    if kind in RETURNED:
        return bool(len(items) == RETURNED[kind].n_sequence_fields)
    if kind not in KEYED:
        return not keys
    return (
        isinstance(keys, list)
        and len(keys) == len(items)
        and all(type(key) in (str, int) for key in keys)
        and len(set(keys)) == len(keys)
    )


def _literal(text: str) -> Any:
    reader = Reader(text, SHORT)
    value = read_literal(reader)
    reader.expect("end", "the end of the literal")
    if type(value) not in FIXED:
        raise UsageError(f"{text} does not stand for a value of Python")
    return value


def ports(node: Node) -> list[int]:
    """The ports of a structure, in order."""
    if isinstance(node, LeafPort):
        return [node.index]
    return [index for item in node.items for index in ports(item)] if isinstance(node, Branch) else []


def build(node: Node, values: Sequence[Any]) -> Any:
    """Make the lists, tuples and dictionaries of a structure, with values in the ports."""
    if isinstance(node, LeafPort):
        return values[node.index]
    if isinstance(node, FixedLeaf):
        return node.value
    items = [build(item, values) for item in node.items]
    return RETURNED[node.kind](items) if node.kind in RETURNED else NAMED[node.kind](node.keys, items)


def take_apart(node: Node, given: Any, name: str, found: dict[int, tuple[str, Any]]) -> None:
    """Compare what is given with a structure; puts what is in its ports, with a name for errors, into `found`."""
    if isinstance(node, LeafPort):
        if node.index in found and found[node.index][1] is not given:
            raise UsageError(
                f"{found[node.index][0]} and {name} must be one tensor",
                why="they were one when the program was made, and it reads them once",
                fix="save another program from a call in which they are two",
            )
        found.setdefault(node.index, (name, given))
    elif isinstance(node, FixedLeaf):
        if type(given) is not type(node.value) or argument_text(given) != argument_text(node.value):
            raise UsageError(
                f"{name} must be {argument_text(node.value)}, and is {_brief(given)}",
                why="the program was made for this value of it",
                fix="save another program from a call with the other value",
            )
    else:
        _take_branch_apart(node, given, name, found)


def _take_branch_apart(node: Branch, given: Any, name: str, found: dict[int, tuple[str, Any]]) -> None:
    kind = KINDS[node.kind]
    if not _is_exactly(given, kind):
        raise UsageError(f"{name} must be a {kind.__name__}, and is {_brief(given)}")
    if node.kind in KEYED:
        if given.keys() != set(node.keys):
            raise UsageError(f"{name} must have the keys {list(node.keys)}, and has {list(given)}")
        for key, item in zip(node.keys, node.items, strict=True):
            take_apart(item, given[key], f"{name}[{key!r}]", found)
        return
    if len(given) != len(node.items):
        raise UsageError(f"{name} must have {len(node.items)} items, and has {len(given)}")
    for position, (item, value) in enumerate(zip(node.items, given, strict=True)):
        take_apart(item, value, f"{name}[{position}]", found)


def _is_exactly(value: Any, kind: type) -> bool:
    return type(value) is kind


def _brief(value: Any) -> str:
    if type(value) in FIXED:
        text = argument_text(value)
        return text if len(text) <= 60 else text[:57] + "..."
    return f"a {type(value).__name__}"
