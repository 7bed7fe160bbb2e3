"""A step that has run -> the same again at little cost, as long as only elements, rates and counts change.

What may have changed otherwise is compared natively (see weft.runtime.steady): which tensors the optimizer keeps, where
captured tensors lie, what the module's facts are about. A step that is not steady goes the long way, and is one again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from struct import pack
from typing import Any, cast

import torch

from weft.api.guarded import Guarded
from weft.api.optimizers.rules import UpdateRule
from weft.api.optimizers.state import Prepared
from weft.api.quick_call import quick_call
from weft.runtime.interrupts import interrupts_after
from weft.runtime.memory_layout import place_rows, tensor_layout
from weft.runtime.steady import Steady, can_watch
from weft.trace.interception.capture import count_up, has_gradient_hooks, step_hooks


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """A step that ended in an update: its optimizer and rule, what it worked on, its program."""

    optimizer: torch.optim.Optimizer
    rule: UpdateRule
    prepared: Prepared
    dtypes: tuple[torch.dtype, ...]
    found: Guarded


class SteadyStep:
    """Runs the program of a step again; made by `steady_step`."""

    def __init__(self, ran: Ran, given: tuple[torch.Tensor, ...]) -> None:
        self._ran = ran
        optimizer, parameters = ran.optimizer, ran.prepared.parameters
        self._groups = [(group, [*group["params"]]) for group in optimizer.param_groups]
        every = [parameter for _, members in self._groups for parameter in members]
        kept = [optimizer.state[parameter] for parameter in parameters if parameter in optimizer.state]
        self._steps = [entry["step"] for entry in kept] if ran.rule.counts else []
        self._kept = [{*ran.rule.kept(optimizer.param_groups[bucket.group])} for bucket in ran.prepared.form.buckets]
        self._every = every
        self._made: tuple[bytes, Sequence[torch.Tensor]] = b"no numbers yet", ()
        captured = [slot.get() for slot in ran.found.slots]
        layout = tensor_layout()
        rows = [row for tensor in captured for row in place_rows(tensor, layout)] if layout is not None else []
        self._storages = frozenset(tensor.untyped_storage().data_ptr() for tensor in captured)
        self._steady = Steady([vars(optimizer), optimizer.state, *kept, *step_hooks(optimizer)], every, rows)
        # It looks at the arguments, and then asks this object what else the program runs on.
        self._quick = quick_call(cast("Guarded", self), given, {})

    def run(self, arguments: tuple[Any, ...]) -> Any:
        """The losses of one more step; nothing if it has to go the long way."""
        numbers = self._numbers() if self._quick is not None else None
        if self._quick is None or numbers is None:
            return None
        made = self._tensors(numbers)
        leaves = self._quick.leaves((*arguments, *made[1]), {})
        inputs = None if leaves is None else self._quick.inputs(leaves)
        if inputs is None:
            return None
        self._made = made  # only now: what was made in other modes is of no use to the next step
        parameters = self._ran.prepared.parameters
        with interrupts_after():  # what is written, handed out and counted changes together
            for parameter in self._every:
                parameter.grad = None  # before the program runs, so that it may use the memory again
            losses, gradients = self._ran.found.run(inputs, arguments, {})
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            if self._steps:
                count_up(self._steps)
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

    def ready(self, leaves: Sequence[torch.Tensor]) -> list[Any] | None:
        """What the program runs on, if nothing has changed."""
        settled = self._ran.found._settled
        if settled is None or not settled.holds():
            return None
        if any(leaf.untyped_storage().data_ptr() in self._storages for leaf in leaves):
            return None
        return [*(leaves[argument] for argument in self._ran.found.arguments), *settled.tensors]

    def _numbers(self) -> list[float] | None:
        """The optimizer's numbers, if the program's form still fits and parameters still share them."""
        rule, prepared = self._ran.rule, self._ran.prepared
        for group, members in self._groups:
            if len(group["params"]) != len(members) or not all(map(is_, group["params"], members)):
                return None
            if group.get("differentiable") or group.get("capturable"):
                return None
        groups = self._ran.optimizer.param_groups
        if len(groups) != len(self._groups) or not self._steady.holds() or any(map(has_gradient_hooks, self._every)):
            return None
        counts: dict[int, float] = {}
        for index, count in zip(prepared.form.of_parameter, map(float, self._steps), strict=False):
            if counts.setdefault(index, count) != count:
                return None
        numbers: list[float] = []
        for index, bucket in enumerate(prepared.form.buckets):
            group = groups[bucket.group]
            if rule.form(group) != bucket.form or {*rule.kept(group)} != self._kept[index]:
                return None
            numbers += rule.numbers(group, counts[index] + 1 if rule.counts else 2)
        return numbers


def steady_step(ran: Ran, given: tuple[Any, ...]) -> SteadyStep | None:
    """What runs this step again, if its changes can be told from memory: plain tensors, all parameters updated."""
    graph, found = ran.found.program.graph, ran.found
    written = {write.input for write in graph.writes}
    known = (
        not ran.prepared.idle
        and found._memory == ()
        and found._settled is not None
        and not found.moves
        and not found.asked
        and not found._flipped
        and not found.may_be_own(given)
        and not found.numbers
        and not found.takes_places
        and not any(value in written for value in graph.inputs[: len(found.arguments)])
        and all(isinstance(leaf, torch.Tensor) for leaf in given)
        and tensor_layout() is not None
        and can_watch(ran.prepared.parameters)
    )
    return SteadyStep(ran, given) if known else None
