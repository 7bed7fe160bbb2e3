"""Run a step that has run again at little cost, as long as only elements, rates and counts change.

What may have changed otherwise an entry compares natively (see weft.guards): which tensors the optimizer keeps, where
captured tensors lie, what the module's facts are about. A step that is not steady goes the long way, and is one again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from struct import pack
from typing import Any

import torch

from weft.api.optimizers.rules import UpdateRule
from weft.api.optimizers.state import KeptTensors, Prepared
from weft.guards.entry import MISSED, Entry, Ways, make_entry
from weft.guards.guarded import Guarded
from weft.guards.likeness import CallItems, Likeness, likeness_of
from weft.guards.words import Settled, Told, Words, can_watch
from weft.interrupts import interrupts_after
from weft.programs.program import Program
from weft.runtime.path_graph import RaisedInHandling
from weft.trace.interception.capture import has_gradient_hooks
from weft.trace.interception.modes import count_up, step_hooks


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """A step that ended in an update: its optimizer and rule, what it worked on, its program."""

    optimizer: torch.optim.Optimizer
    rule: UpdateRule
    prepared: Prepared
    dtypes: tuple[torch.dtype, ...]
    found: Guarded[Program]


class SteadyStep:
    """Runs the program of a step again; made by `steady_step`."""

    def __init__(self, ran: Ran, again: _Again, entry: Entry) -> None:
        self._ran, self._again, self._entry = ran, again, entry
        self._groups = [(group, [*group["params"]]) for group in ran.optimizer.param_groups]
        self._kept = [
            {*ran.rule.kept(ran.optimizer.param_groups[bucket.group])} for bucket in ran.prepared.form.buckets
        ]
        self._made: tuple[bytes, Sequence[torch.Tensor]] = b"no numbers yet", ()

    def run(self, arguments: tuple[Any, ...]) -> Any:
        """The losses of one more step; MISSED if it has to go the long way."""
        numbers = self._numbers()
        if numbers is None:
            return MISSED
        made = self._tensors(numbers)
        losses = self._entry(*arguments, *made[1])
        if losses is not MISSED:
            self._made = made  # only now: what was made in other modes is of no use to the next step
        return losses

    def _tensors(self, numbers: Sequence[float]) -> tuple[bytes, Sequence[torch.Tensor]]:
        """The numbers as the program takes them, and their bits: the same tensors as long as these stay the same.

        Nobody else has them, and programs only read them.
        """
        bits = pack(f"{len(numbers)}d", *numbers)
        made = self._made
        if bits == made[0]:
            return made
        return bits, [torch.tensor(numbers, dtype=dtype) for dtype in self._ran.dtypes]

    def _numbers(self) -> list[float] | None:
        """The optimizer's numbers, if the program's form still fits and parameters still share them."""
        rule, prepared, again = self._ran.rule, self._ran.prepared, self._again
        for group, members in self._groups:
            if len(group["params"]) != len(members) or not all(map(is_, group["params"], members)):
                return None
            if group.get("differentiable") or group.get("capturable"):
                return None
        groups = self._ran.optimizer.param_groups
        if len(groups) != len(self._groups) or any(map(has_gradient_hooks, again.every)):
            return None
        counts: dict[int, float] = {}
        for index, count in zip(prepared.form.of_parameter, map(float, again.steps), strict=False):
            if counts.setdefault(index, count) != count:
                return None
        numbers: list[float] = []
        for index, bucket in enumerate(prepared.form.buckets):
            group = groups[bucket.group]
            if rule.form(group) != bucket.form or {*rule.kept(group)} != self._kept[index]:
                return None
            numbers += rule.numbers(group, counts[index] + 1 if rule.counts else 2)
        return numbers


class _Again:
    """What the entry of a steady step does in Python; the entry holds it, and it does not hold the entry."""

    def __init__(self, ran: Ran, settled: Settled, likeness: Likeness) -> None:
        optimizer, parameters = ran.optimizer, ran.prepared.parameters
        self.every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        kept = [optimizer.state[parameter] for parameter in parameters if parameter in optimizer.state]
        self.steps = [entry["step"] for entry in kept] if ran.rule.counts else []
        self._program, self._parameters = ran.found.program, parameters
        self._settled, self._likeness = settled, likeness
        captured = set(map(id, settled.tensors))
        dictionaries = [vars(optimizer), optimizer.state, *kept, *step_hooks(optimizer)]
        others = [parameter for parameter in self.every if id(parameter) not in captured]
        self._words = Words(dictionaries, others, settled.words.rows(), places=True)
        self._foreign = frozenset(tensor.untyped_storage().data_ptr() for tensor in settled.tensors)
        self._arguments = ran.found.arguments

    def told(self) -> Told | None:
        """What words tell of the step and its program; None where they do not tell all."""
        are_all = self._likeness.is_all_words and self._settled.is_told((KeptTensors,)) and self._words.are_all
        return self._words.told(self._settled.tensors) if are_all else None

    def check(self, leaves: Sequence[torch.Tensor], _: Sequence[Any] = ()) -> Any:
        """Run the program if nothing has changed, which words alone do not tell."""
        if not (self._likeness.is_that_of(leaves) and self._words.hold() and self._settled.hold()):
            return MISSED
        if any(leaf.untyped_storage().data_ptr() in self._foreign for leaf in leaves):
            return MISSED
        return self.run([*(leaves[argument] for argument in self._arguments), *self._settled.tensors])

    def run(self, inputs: Sequence[Any], _: Sequence[Any] = ()) -> Any:
        """Run the program on its inputs, and hand out what it gives."""
        with interrupts_after():  # what is written, handed out and counted changes together
            for parameter in self.every:
                parameter.grad = None  # before the program runs, so that it may use the memory again
            try:
                losses, gradients = self._program.run(inputs)
            except RaisedInHandling as raised:
                raised.put_back()
                return MISSED
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                parameter.grad = gradient
            if self.steps:
                count_up(self.steps)
        return losses


def steady_step(ran: Ran, given: tuple[Any, ...]) -> SteadyStep | None:
    """What runs this step again, if its changes can be told from memory: plain tensors, all parameters updated."""
    found = ran.found
    settled = found.settled_for_step(given)
    is_steady = (
        settled is not None
        and not ran.prepared.idle
        and all(isinstance(leaf, torch.Tensor) for leaf in given)
        and can_watch(ran.prepared.parameters)
    )
    likeness = likeness_of(CallItems(given, {})) if is_steady else None
    if likeness is None or settled is None:
        return None
    again = _Again(ran, settled, likeness)
    entry = make_entry(likeness, found.taken, Ways([again.told()], again.run, again.check), [None])
    return SteadyStep(ran, again, entry)
