"""Order the library calls of a Graph: which tensors die where, and which writes need no copy.

A writing call works on a private copy of what it writes. The copy is left out where nobody could tell: the base was
made by this program, and neither it nor anything that shares its memory is read later or handed out.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.ir.graph import Graph, Value
from weft.ir.library import is_view


@dataclass(frozen=True, slots=True, eq=False)
class LibraryStep:
    """One value to compute; `in_place` are the operand positions written without a copy, `dying` the values to drop."""

    value: Value
    in_place: frozenset[int]
    dying: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LibraryPlan:
    """Inputs, steps in order, and the values to hand out."""

    inputs: tuple[Value, ...]
    steps: tuple[LibraryStep, ...]
    outputs: tuple[Value, ...]

    def __str__(self) -> str:
        names = {value: f"%{index}" for index, value in enumerate((*self.inputs, *(step.value for step in self.steps)))}
        lines = [f"{names[step.value]} = {_describe(step, names)}" for step in self.steps]
        return "\n".join([*lines, "hand out " + ", ".join(names[value] for value in self.outputs)])


def plan_library(graph: Graph) -> LibraryPlan:
    """Plan a graph as library calls, one after another."""
    outputs = tuple(dict.fromkeys(graph.roots()))
    last_use = _last_uses(graph, outputs)
    owners = _Owners(graph, outputs, last_use)
    steps: list[LibraryStep] = []
    for index, value in enumerate(graph.values):
        in_place = owners.visit(index, value)
        read = (*dict.fromkeys(value.operands), value)
        dying = tuple(operand for operand in read if last_use[operand] <= index and operand not in owners.kept)
        steps.append(LibraryStep(value, in_place, dying))
    return LibraryPlan(graph.inputs, tuple(steps), outputs)


class _Owners:
    """Who shares memory with whom, and until when it is read."""

    def __init__(self, graph: Graph, outputs: tuple[Value, ...], last_use: dict[Value, int]) -> None:
        self.kept = {*graph.inputs, *outputs}
        self.last_use = last_use
        self.sharing: dict[Value, list[Value]] = {value: [value] for value in graph.inputs}

    def visit(self, index: int, value: Value) -> frozenset[int]:
        """Note a value's memory; gives the operand positions that its call may write in place."""
        in_place: frozenset[int] = frozenset()
        if value.op == "update":
            bases = dict.fromkeys(place.base for place in value.attributes["call"].written)
            in_place = frozenset(
                base for base in bases if self._is_private(value.operands[base], index, value.operands)
            )
        shared = [operand for position, operand in enumerate(value.operands) if self._shares(value, position, in_place)]
        self._join(value, shared)
        return in_place

    def _join(self, value: Value, shared: list[Value]) -> None:
        """Let a value share memory with others; the largest group takes the rest in, so a long chain stays linear."""
        groups = list({id(group): group for group in map(self.sharing.__getitem__, shared)}.values())
        largest = max(groups, key=len, default=[])
        for group in groups:
            if group is not largest:
                largest.extend(group)
                self.sharing.update(dict.fromkeys(group, largest))
        largest.append(value)
        self.sharing[value] = largest

    def _shares(self, value: Value, position: int, in_place: frozenset[int]) -> bool:
        if value.op == "library":
            return is_view(value.attributes["call"].target)
        return value.op not in ("update", "native") or position in in_place

    def _is_private(self, base: Value, index: int, operands: tuple[Value, ...]) -> bool:
        """Whether nobody reads the base's memory later, nor another operand at the same time."""
        return operands.count(base) == 1 and all(
            member not in self.kept
            and member.op != "constant"
            and self.last_use[member] <= index
            and (member is base or member not in operands)
            for member in self.sharing[base]
        )


def _last_uses(graph: Graph, outputs: tuple[Value, ...]) -> dict[Value, int]:
    last_use = dict.fromkeys((*graph.inputs, *graph.values), -1)
    for index, value in enumerate(graph.values):
        last_use[value] = index
        for operand in value.operands:
            last_use[operand] = index
    last_use.update(dict.fromkeys(outputs, len(graph.values)))
    return last_use


def _describe(step: LibraryStep, names: dict[Value, str]) -> str:
    call = step.value.attributes.get("call")
    text = f"{call.target if call else step.value.op}({', '.join(names[operand] for operand in step.value.operands)})"
    if step.in_place:
        text += f" in place of {', '.join(names[step.value.operands[position]] for position in sorted(step.in_place))}"
    return text
