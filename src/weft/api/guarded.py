"""A traced program -> the same with its guard: the facts that must hold to run it again, each with a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.api.program import Program
from weft.trace.signature import Key, memory_key, tensor_change, tensor_key
from weft.trace.state import Fact, Slot, State
from weft.trace.traced import Traced


@dataclass(frozen=True, slots=True, eq=False)
class Guarded:
    """A program, where its inputs come from at each call, and what else it relies on."""

    program: Program
    arguments: tuple[int, ...]
    slots: tuple[Slot, ...]
    numbers: tuple[int, ...]
    slot_keys: tuple[Key, ...]
    facts: tuple[Fact, ...]
    memory: Key | None

    def inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """The tensors to run on: arguments, then what the function reaches by itself, as it is now."""
        return [
            *(leaves[index] for index in self.arguments),
            *(slot.get() for slot in self.slots),
            *(leaves[index] for index in self.numbers),
        ]

    def miss(self, leaves: Sequence[Any]) -> str | None:
        """A sentence on what changed, or nothing if the program may run."""
        for fact in self.facts:
            changed = fact.change()
            if changed:
                return changed
        inputs = self.inputs(leaves)
        for slot, tensor, key in zip(self.slots, inputs[len(self.arguments) :], self.slot_keys, strict=False):
            if not isinstance(tensor, torch.Tensor):
                return f"{slot.path} is no longer a tensor"
            found = tensor_key(tensor)
            if found != key:
                return tensor_change(slot.path, key, found)
        if self.memory is not None and memory_key(inputs[: len(self.arguments) + len(self.slots)]) != self.memory:
            return "the tensors share memory in another way, or start at another place in it"
        return None


def guard(traced: Traced, program: Program, state: State) -> Guarded:
    """Remember what the program relies on, as it is now."""
    captured = [entry.tensor for entry in traced.inputs if entry.argument is None]
    tensors = [entry.tensor for entry in traced.inputs]
    relies_on_memory = bool(traced.graph.writes) or traced.depends_on_offsets
    return Guarded(
        program,
        tuple(entry.argument for entry in traced.inputs if entry.argument is not None),
        tuple(state.slot(tensor) for tensor in captured),
        tuple(entry.argument for entry in traced.numbers),
        tuple(tensor_key(tensor) for tensor in captured),
        tuple(state.facts()),
        memory_key(tensors) if relies_on_memory else None,
    )
