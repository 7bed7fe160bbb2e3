"""Read an optimizer as it is now into what a step's program is given: parameters, kept tensors, numbers.

What the optimizer keeps is read where it keeps it, at every call, so `state_dict`, `load_state_dict` and PyTorch's own
`optimizer.step()` may be used between steps. Tensors that it would make at its first step are made here and handed to
it when the first step has succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.api.optimizers.rules import Form, Group, Tensors, UpdateRule
from weft.trace.interception.modes import count_up
from weft.trace.python_state.locations import Slot

NARROW = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters of one group that have been updated equally often: they share numbers.

    `form` is what of the group is part of the program; the numbers are `count` entries from `first` on.
    """

    group: int
    form: Form
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class UpdateForm:
    """What of an optimizer is part of a program: the buckets, and which one each parameter is in."""

    buckets: tuple[Bucket, ...]
    of_parameter: tuple[int, ...]

    def __str__(self) -> str:
        groups = "; ".join(", ".join((f"group {bucket.group}", *bucket.form)) for bucket in self.buckets)
        if len(self.buckets) == 1:
            return f"{groups} of {len(self.of_parameter)} parameters"
        return f"{groups}; parameters in {self.of_parameter}"


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What one step works on: parameters to update, what is kept of each, the form of the update, the numbers.

    `idle` are positions of parameters that are expected to get no gradient: their bucket means nothing.
    """

    parameters: list[torch.Tensor]
    kept: list[Tensors]
    form: UpdateForm
    numbers: list[float]
    idle: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Fresh:
    """What is made for a parameter's first step, and which numbers, other than zero, it starts from."""

    tensors: Tensors
    starts: Mapping[str, float]


class OptimizerState:
    """Reads what an optimizer with a rule keeps, and gives it what its first step makes."""

    def __init__(self, optimizer: torch.optim.Optimizer, rule: UpdateRule) -> None:
        self.optimizer = optimizer
        self.rule = rule
        # Made, not yet handed over: until a step succeeds, the optimizer keeps nothing of it.
        self._fresh: dict[torch.Tensor, _Fresh] = {}
        # Parameters without a gradient so far. They must not make buckets of their own: at the second step all others
        # have been updated once, and these have not.
        self._idle: set[torch.Tensor] = set()

    def prepare(self) -> Prepared:
        """What the next step works on."""
        parameters: list[torch.Tensor] = []
        kept: list[Tensors] = []
        members: list[int] = []
        idle: list[int] = []
        buckets: dict[tuple[int, float], int] = {}
        for index, group in enumerate(self.optimizer.param_groups):
            names = self.rule.kept(group)
            for parameter in group["params"]:
                if parameter.requires_grad:
                    found = self._kept(parameter, group, names)
                    count = self._count(parameter, found)
                    if parameter in self._idle:
                        idle.append(len(parameters))
                        count = next((known for group_index, known in buckets if group_index == index), count)
                    parameters.append(parameter)
                    kept.append({name: found[name] for name in names})
                    members.append(buckets.setdefault((index, count), len(buckets)))
        described, numbers = self._numbers(buckets)
        return Prepared(parameters, kept, UpdateForm(described, tuple(members)), numbers, tuple(idle))

    def _numbers(self, buckets: Iterable[tuple[int, float]]) -> tuple[tuple[Bucket, ...], list[float]]:
        described: list[Bucket] = []
        numbers: list[float] = []
        for index, count in buckets:
            group = self.optimizer.param_groups[index]
            found = self.rule.numbers(group, count)
            described.append(Bucket(index, self.rule.form(group), len(numbers), len(found)))
            numbers += found
        return tuple(described), numbers

    def _kept(self, parameter: torch.Tensor, group: Group, names: tuple[str, ...]) -> Tensors:
        found: Tensors | None = self.optimizer.state.get(parameter)
        if found and all(found.get(name) is not None for name in names):
            return found
        if not names and not self.rule.counts:
            return {}
        fresh, starts = self._fresh.get(parameter), self.rule.starts(group)
        if fresh is None or fresh.tensors.keys() != self._made(names) or fresh.starts != starts:
            fresh = self._fresh[parameter] = _Fresh(self._make(parameter, group, names), starts)
        return fresh.tensors

    def _made(self, names: tuple[str, ...]) -> set[str]:
        return {"step", *names} if self.rule.counts else set(names)

    def _make(self, parameter: torch.Tensor, group: Group, names: tuple[str, ...]) -> Tensors:
        made: Tensors = {}
        starts = self.rule.starts(group)
        wide = torch.get_default_dtype() == torch.float64 and not group.get("fused")
        alone = torch.float64 if wide else torch.float32
        if self.rule.counts:
            made["step"] = torch.tensor(0.0, dtype=alone)
        for name in names:
            start = starts.get(name, 0.0)
            if name in self.rule.alone:
                made[name] = torch.tensor(start, dtype=alone)
            else:
                made[name] = torch.full_like(parameter, start, memory_format=torch.preserve_format).detach()
        return made

    def _count(self, parameter: torch.Tensor, kept: Tensors) -> float:
        if self.rule.counts:
            return float(kept["step"]) + 1
        return 1 if parameter in self._fresh else 2

    def tensor(self, parameter: torch.Tensor, name: str) -> torch.Tensor:
        """What is kept of a parameter under a name; KeyError if nothing is."""
        found = self.optimizer.state.get(parameter) or {}
        tensor = found.get(name)
        return self._fresh[parameter].tensors[name] if tensor is None else tensor

    def wake(self) -> None:
        """Expect a gradient for every parameter again."""
        self._idle.clear()

    def stepped(self) -> None:
        """Note that the optimizer itself has made a step: which keeps what was made for that now."""
        for parameter in [*self._fresh]:
            if self.optimizer.state.get(parameter):
                del self._fresh[parameter]
            else:
                self._idle.add(parameter)

    def commit(self, parameters: Sequence[torch.Tensor], updated: Sequence[bool]) -> None:
        """Note which parameters were updated once more."""
        counts: list[torch.Tensor] = []
        for parameter, was_updated in zip(parameters, updated, strict=True):
            fresh = self._fresh.get(parameter)
            if not was_updated:
                if fresh is not None:
                    self._idle.add(parameter)
                continue
            if fresh is not None:
                self.optimizer.state[parameter].update(fresh.tensors)
            if self.rule.counts:
                counts.append(self.optimizer.state[parameter]["step"])
            self._fresh.pop(parameter, None)
        if counts:
            count_up(counts)  # all in one call, which no signal interrupts

    def slots(self, prepared: Prepared) -> dict[int, Slot]:
        """Where kept tensors live, so that programs read and write them there."""
        return {
            id(tensor): Slot(KeptTensors(self, parameter), name, f"optimizer.state[{index}].{name}", registered=True)
            for index, (parameter, kept) in enumerate(zip(prepared.parameters, prepared.kept, strict=True))
            for name, tensor in kept.items()
        }


class KeptTensors:
    """What an optimizer keeps of one parameter, whichever dictionary holds it: a container of locations."""

    def __init__(self, state: OptimizerState, parameter: torch.Tensor) -> None:
        self.state = state
        self.parameter = parameter

    def __getitem__(self, name: str) -> Any:
        return self.state.tensor(self.parameter, name)


class GradientPlace:
    """A place that a Slot can look into: the gradient of one parameter."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self.parameter = parameter

    def __getitem__(self, name: str) -> Any:
        """Give it."""
        return getattr(self.parameter, name)
