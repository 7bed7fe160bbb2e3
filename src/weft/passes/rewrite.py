"""Rebuild a Graph with values replaced, by laws or otherwise, as far as effects and memory that callers see allow it.

What every pass needs is here once: operands follow their replacements, a new value takes over the user's line and the
name of the one it replaces, values with effects stay as they are, and no replacement changes which results share
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from weft.errors import InternalError
from weft.ir import library
from weft.ir.graph import Graph, Result, Value, Write
from weft.ir.literals import bytes_of
from weft.ir.ops import build, effect_of
from weft.ir.sharing import looked_into, sources
from weft.ir.types import TensorType


def has_effect(value: Value) -> bool:
    """Whether computing a value does more than give it: it stays, once, in its place, whoever needs it."""
    if value.op == "library" and library.written_arguments(value.attributes["call"].target):
        return True  # a write that the Graph does not know of, as legacy batch norm does to its statistics
    return effect_of(value) is not None


def is_reproducible(value: Value) -> bool:
    """Whether the same operands give the same elements again: memory nobody has written to does not."""
    call = value.attributes.get("call")
    return not has_effect(value) and (call is None or not library.is_uninitialised(call.target))


class Groups:
    """The groups of values that may share memory, kept up to date while a pass replaces values.

    Values are pure, so equal values may stand for each other anywhere, except in what is handed out: two results that
    are separate memory in eager PyTorch must stay separate, and a result that is new memory must not become an input or
    a constant of the program. Values that may be views of one another form a group; two groups may become one as long
    as the caller sees into at most one of them.

    as_strided counts from the start of an operand's memory, which no type tells: groups that it looks into are rigid,
    and no value of theirs is replaced.
    """

    def __init__(self, graph: Graph) -> None:
        constants = (value for value in graph.values if value.op == "constant")
        self._leader: dict[Value, Value] = {value: value for value in (*graph.inputs, *graph.values)}
        self._results = set(graph.roots())
        self._outliving = {*graph.inputs, *constants}  # these two sets hold single values,
        self._seen_groups = set(self._results)  # and the next three leaders of groups
        self._outliving_groups = set(self._outliving)
        self._rigid_groups = set(looked_into(graph))
        # Of an operator with several results, which are memory of their own: the items that take each of them.
        self._items: dict[Value, dict[int, list[Value]]] = {}
        for value in graph.values:
            if value.op == "item" and not sources(value):
                self._items.setdefault(value.operands[0], {}).setdefault(value.attributes["index"], []).append(value)
            for source in sources(value):
                self._join(value, source)

    def is_seen(self, value: Value) -> bool:
        """Whether the caller may come to see the memory of this value."""
        return self._find(value) in self._seen_groups

    def rename(self, old: Value, new: Value) -> None:
        """Let a new value take the place of an old one that it was rebuilt from."""
        self._leader.setdefault(new, new)
        self._join(old, new)
        if old is not new and old in self._items:
            mine = self._items.setdefault(new, {})
            for index, takers in self._items[old].items():
                mine[index] = [*mine.get(index, ()), *takers]
        for members in (self._results, self._outliving):
            if old in members:
                members.add(new)

    def may_replace(self, value: Value, replacement: Value) -> bool:
        """Whether the caller could not see a difference if `replacement`, old or new, stood for `value`."""
        group, others = self._find(value), self._origin_groups(replacement)
        if not self._rigid_groups.isdisjoint({group, *others}):
            return False
        if replacement in self._leader:
            if value in self._results and (replacement in self._results or replacement in self._outliving):
                return False
        elif replacement.op == "constant" and group in self._seen_groups:
            return False
        if not self._seen_items(value).isdisjoint(self._seen_items(replacement)):
            return False
        return all(self._may_join(group, other) for other in others - {group})

    def replace(self, value: Value, replacement: Value) -> None:
        """Let `replacement` stand for `value`, as `may_replace` allows."""
        for other in self._origin_groups(replacement):
            self._join(value, other)
        if replacement.op == "constant" and replacement not in self._leader:
            self._outliving.add(replacement)
            self._outliving_groups.add(self._find(value))
        self.rename(value, replacement)

    def _seen_items(self, value: Value) -> set[int]:
        """Which of an operator's results the caller may come to see."""
        items = self._items.get(value, {})
        return {index for index, takers in items.items() if any(map(self.is_seen, takers))}

    def _origin_groups(self, value: Value) -> set[Value]:
        return {self._find(origin) for origin in self._origins(value)}

    def _origins(self, value: Value) -> tuple[Value, ...]:
        """The values already in groups whose memory this one, perhaps not in a group yet, may share."""
        if value in self._leader:
            return (value,)
        return tuple(origin for source in sources(value) for origin in self._origins(source))

    def _may_join(self, one: Value, other: Value) -> bool:
        one_seen, other_seen = one in self._seen_groups, other in self._seen_groups
        if one_seen and other_seen:
            return False
        hidden = other if one_seen else one
        return not (one_seen or other_seen) or hidden not in self._outliving_groups

    def _find(self, value: Value) -> Value:
        leader = value
        while (above := self._leader[leader]) is not leader:
            leader = above
        while value is not leader:  # later look-ups take one step
            self._leader[value], value = leader, self._leader[value]
        return leader

    def _join(self, one: Value, other: Value) -> None:
        upper, lower = self._find(one), self._find(other)
        if upper is lower:
            return
        self._leader[lower] = upper
        for groups in (self._seen_groups, self._outliving_groups, self._rigid_groups):
            if lower in groups:
                groups.add(upper)


Change = Callable[[Value, Groups], Value]
"""Gives the value to use instead: the same, one met before, or a new one (its new operands are added before it)."""


def rebuild(graph: Graph, change: Change) -> Graph:
    """Offer every value without effects to `change`, operands first, until nothing changes; the Graph itself if so."""
    groups = Groups(graph)
    now: dict[Value, Value] = {value: value for value in graph.inputs}
    kept: dict[Value, None] = dict.fromkeys(graph.inputs)
    for value in graph.values:
        current = with_operands(value, tuple(now[operand] for operand in value.operands))
        if current is not value:
            groups.rename(value, current)
        if not has_effect(value):
            current = changed(current, change, groups, kept)
        keep(current, kept)
        now[value] = current
    if all(now[value] is value for value in graph.values):
        return graph
    return replace(
        graph,
        values=tuple(kept)[len(graph.inputs) :],
        results=tuple(Result(now[result.value], result.path) for result in graph.results),
        writes=tuple(Write(write.input, now[write.value], write.path) for write in graph.writes),
    )


def changed(value: Value, change: Change, groups: Groups, kept: dict[Value, None]) -> Value:
    """Change one value, and what it became, until it stays or is one already there."""
    while (new := change(value, groups)) is not value:
        if new.type != value.type:
            raise InternalError(f"a pass replaces {value!r} by {new!r}, which is of another type")
        if not (is_old := new in kept):
            new = replace(new, place=new.place or value.place, name=value.name)
        if not groups.may_replace(value, new):
            break
        groups.replace(value, new)
        value = new
        if is_old:
            break
    return value


def keep(value: Value, kept: dict[Value, None]) -> None:
    """Add a value to the Graph, after those of its operands that are new."""
    if value in kept:
        return
    for operand in value.operands:
        keep(operand, kept)
    kept[value] = None


def with_operands(value: Value, operands: tuple[Value, ...]) -> Value:
    """The same operator applied to these operands."""
    if all(new is old for new, old in zip(operands, value.operands, strict=True)):
        return value
    return Value(value.op, operands, value.type, value.attributes, value.place, value.name)


Apply = Callable[[Value], Value | None]
Number = int | float | bool | complex


@dataclass(frozen=True)
class Law:
    """One law: the ops it looks at, what to use instead of a value (None: it does not apply), why that is exact."""

    name: str
    ops: tuple[str, ...]
    apply: Apply
    reason: str


def operand_if_alike(value: Value, operand: Value) -> Value | None:
    """The operand, if it has the type of the value: dtype, sizes, strides and device, all of them known."""
    return operand if isinstance(value.type, TensorType) and operand.type == value.type else None


def rebuilt(like: Value, op: str, *operands: Value, **attributes: object) -> Value:
    """A new value in the place, and of the type, of an old one."""
    return build(op, *operands, place=like.place, type=like.type, **attributes)


def tensor_type(value: Value) -> TensorType:
    """The type of a value that its op guarantees to be a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


SAME_ELEMENTS = frozenset({"expand", "reshape", "permute", "slice", "reverse"})
LARGEST_LOOKED_THROUGH = 4096  # elements: a large table of one number is rare, and looking costs time at every compile


def uniform(value: Value) -> Number | None:
    """The number that every element of a value is known to be, from the constant that it repeats or rearranges."""
    while value.op in SAME_ELEMENTS:
        value = value.operands[0]
    if value.op != "constant":
        return None
    tensor: torch.Tensor = value.attributes["tensor"]
    if not 0 < tensor.numel() <= LARGEST_LOOKED_THROUGH:
        return None
    first: Number = tensor.reshape(-1)[0].item()
    if tensor.numel() > 1:
        data = bytes_of(tensor)
        if data != data[: tensor.element_size()] * tensor.numel():
            return None
    return first
