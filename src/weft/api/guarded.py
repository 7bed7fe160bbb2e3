"""A traced program -> the same with its guard: the facts that must hold to run it again, each with a sentence."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from weft.api.program import Program
from weft.runtime.steady import Steady, can_watch, container_rows, name_row
from weft.runtime.tensor_words import Row
from weft.runtime.whole_call import Likeness, Whole, whole_call
from weft.trace.capture import PLAIN_TYPES
from weft.trace.containers import Touched
from weft.trace.facts import HOOKS, REGISTRIES, ModuleFacts, NameFact, can_change
from weft.trace.signature import memory_key, tensor_change, tensor_key
from weft.trace.state import Fact, Slot, State
from weft.trace.traced import Traced

DICTIONARIES = (dict, OrderedDict)


class Guarded:
    """A program, where its inputs come from at each call, and what else it relies on."""

    def __init__(self, traced: Traced, program: Program, state: State, touched: Touched) -> None:
        captured = [entry.tensor for entry in traced.inputs if entry.argument is None]
        relies_on_memory = bool(traced.graph.writes) or traced.depends_on_offsets
        self.program = program
        self.arguments = tuple(entry.argument for entry in traced.inputs if entry.argument is not None)
        self.numbers = tuple(entry.argument for entry in traced.numbers)
        self.slots = tuple(state.slot(tensor) for tensor in captured)
        self._slot_keys = tuple(tensor_key(tensor) for tensor in captured)
        self._facts: tuple[Fact, ...] = tuple(state.facts(_rebound(traced), touched))
        written = {write.input for write in traced.graph.writes}
        positions = [index for index, entry in enumerate(traced.inputs) if entry.value in written]
        self._written = None if traced.depends_on_offsets else frozenset(positions)
        tensors = [entry.tensor for entry in traced.inputs]
        self._memory = memory_key(tensors, self._written) if relies_on_memory else None
        self._may_settle = not traced.kept  # each run changes what a native comparison looks at
        self._settled = self._settle()

    def whole_call(self, arguments: Sequence[torch.Tensor]) -> Whole | None:
        """A built-in function for calls like this one, if there can be one; see weft.runtime.whole_call."""
        settled = self._settled
        if settled is None or self._memory is not None or self.numbers:
            return None
        found, guards = self.program.bound(self.arguments), settled.rows()
        if found is None or guards is None:
            return None
        bound, result = found
        return whole_call(bound, Likeness(guards, arguments, result, kept=settled))

    def inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """The tensors to run on: arguments, then what the function reaches by itself, as it is now."""
        return [
            *(leaves[index] for index in self.arguments),
            *(slot.get() for slot in self.slots),
            *(leaves[index] for index in self.numbers),
        ]

    def ready(self, leaves: Sequence[Any]) -> list[Any] | None:
        """The inputs, if the program may run; the quick form of `miss`."""
        settled = self._unchanged()
        if settled is not None:
            return [
                *[leaves[index] for index in self.arguments],
                *settled.tensors,
                *[leaves[index] for index in self.numbers],
            ]
        return self.inputs(leaves) if self.miss(leaves) is None else None

    def holds(self, leaves: Sequence[Any]) -> bool:
        """Whether the program may run; quick where a native comparison tells."""
        return self._unchanged() is not None or self.miss(leaves) is None

    def _unchanged(self) -> Settled | None:
        """What held a moment ago, if a native comparison tells that it still does."""
        settled = self._settled
        return settled if settled is not None and self._memory is None and settled.holds() else None

    def miss(self, leaves: Sequence[Any]) -> str | None:
        """A sentence on what changed, or nothing if the program may run."""
        for fact in self._facts:
            changed = fact.change()
            if changed:
                return changed
        inputs = self.inputs(leaves)
        for slot, tensor, key in zip(self.slots, inputs[len(self.arguments) :], self._slot_keys, strict=False):
            if not isinstance(tensor, torch.Tensor):
                return f"{slot.path} is no longer a tensor"
            if type(tensor) not in PLAIN_TYPES:
                return f"{slot.path} is no longer an ordinary tensor"
            found = tensor_key(tensor)
            if found != key:
                return tensor_change(slot.path, key, found)
        if self._memory is not None:
            tensors = inputs[: len(self.arguments) + len(self.slots)]
            if memory_key(tensors, self._written) != self._memory:
                return "the tensors share memory in another way, or start at another place in it"
        # All holds: what the native comparison took for a change was none, so it starts again from here.
        self._settled = self._settle()
        return None

    def _settle(self) -> Settled | None:
        tensors = [slot.get() for slot in self.slots]
        return Settled(self._facts, self.slots) if self._may_settle and can_watch(tensors) else None


class Settled:
    """The facts as they held a moment ago, where a native comparison can tell that nothing has changed since."""

    def __init__(self, facts: Sequence[Fact], slots: Sequence[Slot]) -> None:
        modules = [fact.module for fact in facts if isinstance(fact, ModuleFacts)]
        self._facts = tuple(facts)  # they hold what the rows are about
        inside = {number: _inside(fact) for number, fact in enumerate(facts)}
        loose = [fact for number, fact in enumerate(facts) if inside[number] is None]
        dictionaries = [entry for module in modules for entry in _dictionaries(module)]
        watched = {id(entry) for entry in dictionaries}
        self.tensors = [slot.get() for slot in slots]
        self._loose = tuple(loose)
        self._loose_slots = tuple(
            (slot, tensor)
            for slot, tensor in zip(slots, self.tensors, strict=True)
            if id(slot.container) not in watched
        )
        self._steady = Steady(dictionaries, self.tensors, [row for rows in inside.values() for row in rows or ()])

    def rows(self) -> list[Row] | None:
        """All of it as words of memory, if that is possible."""
        rows = None if self._loose_slots or not self.holds() else self._steady.rows()
        for fact in self._loose:
            row = name_row(fact.container, fact.value) if isinstance(fact, NameFact) and not fact.is_open else None
            rows = None if rows is None or row is None else [*rows, row]
        return rows

    def holds(self) -> bool:
        """Whether nothing has changed."""
        return (
            self._steady.holds()
            and all(fact.change() is None for fact in self._loose)
            and all(slot.get() is tensor for slot, tensor in self._loose_slots)
        )


def _rebound(traced: Traced) -> dict[int, frozenset[str]]:
    """The attributes that a program assigns to, by the dictionary that holds them."""
    names = defaultdict[int, set[str]](set)
    for entry in traced.kept:
        names[id(entry.container)].add(entry.key)
    return {container: frozenset(keys) for container, keys in names.items()}


def _inside(fact: Fact) -> list[Row] | None:
    """The words that tell whether a module's containers hold what they held, or a class its attribute; or None."""
    if isinstance(fact, NameFact) and fact.of_class and not fact.is_open:
        row = name_row(fact.container, fact.value)
        return None if row is None else [row]
    if not isinstance(fact, ModuleFacts):
        return None
    attributes, rows = fact.module.__dict__, list[Row]()
    for name in fact.containers:
        found = container_rows(attributes[name], can_change)
        if found is None:
            return None
        rows += found
    return rows


def _dictionaries(module: nn.Module) -> list[dict[Any, Any]]:
    """The dictionaries that hold all that a module's facts are about."""
    own = module.__dict__
    return [own, *(own[name] for name in (*REGISTRIES, "_modules", *HOOKS) if type(own.get(name)) in DICTIONARIES)]
