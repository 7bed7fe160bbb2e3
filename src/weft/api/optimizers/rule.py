"""A class of torch.optim -> its update rule in pure functions of tensors: what a rule is, and what rules share.

A rule says which tensors the optimizer keeps for a parameter, what of a parameter group is part of a program
(`form`), which numbers change from call to call (`numbers`: rates, decays, and what the count of steps makes of them),
and how new elements follow from old ones (`update`). The numbers are computed in Python, in double precision and in the
order in which PyTorch computes them, and go into a program as inputs: a scheduler never makes one compile again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Group = Mapping[str, Any]
Form = tuple[str, ...]  # what of a parameter group is switched on
Tensors = dict[str, torch.Tensor]
Update = Callable[[Form, torch.Tensor, torch.Tensor, Tensors, Sequence[torch.Tensor]], tuple[torch.Tensor, Tensors]]


def _zeros(group: Group) -> Mapping[str, float]:
    del group
    return {}


@dataclass(frozen=True, slots=True)
class Rule:
    """How one class of optimizers updates a parameter.

    `kept` names the tensors it keeps for each; `counts` says whether it keeps a count of steps (`step`) too. `numbers`
    is given the count of steps including this one; of a rule that does not count: 1 where nothing is kept yet, else 2.
    What is kept is as large as the parameter, but for `alone`: single numbers, in the default type, in which `update`
    gets them too. It starts as zeros, but for what `starts` says.
    """

    kept: Callable[[Group], tuple[str, ...]]
    counts: bool
    form: Callable[[Group], Form]
    numbers: Callable[[Group, float], tuple[float, ...]]
    update: Update
    alone: tuple[str, ...] = ()
    starts: Callable[[Group], Mapping[str, float]] = _zeros


def keeps(*names: str) -> Callable[[Group], tuple[str, ...]]:
    """For rules that keep the same whatever the options."""

    def kept(group: Group) -> tuple[str, ...]:
        del group
        return names

    return kept


def switched_on(group: Group, *options: str) -> Form:
    """Those of some options that a group has."""
    return tuple(option for option in options if group[option])


def plain_form(group: Group) -> Form:
    """The form of a rule with no other options."""
    return switched_on(group, "maximize", "weight_decay")


def decaying_form(group: Group) -> Form:
    """The form of a rule whose decay may be apart from the gradient."""
    return switched_on(group, "maximize", "weight_decay", "decoupled_weight_decay")


def decayed(
    form: Form, parameter: torch.Tensor, gradient: torch.Tensor, decay: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The parameter and its gradient, turned around and decayed as the group says."""
    gradient = -gradient if "maximize" in form else gradient
    if "weight_decay" not in form:
        return parameter, gradient
    if "decoupled_weight_decay" in form:
        return parameter * decay, gradient
    return parameter, gradient + parameter * decay


def decay_and_moments(group: Group) -> tuple[float, float, float, float]:
    """The rate, what decays, and how much of the first and the second moment stays."""
    rate, decay = float(group["lr"]), float(group["weight_decay"])
    first, second = (float(beta) for beta in group["betas"])
    return rate, 1 - rate * decay if group["decoupled_weight_decay"] else decay, first, second


def moments(
    kept: Tensors, gradient: torch.Tensor, parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The moving means of a gradient and of its square."""
    take_first, keep_second, take_second = parts
    first = kept["exp_avg"] + (gradient - kept["exp_avg"]) * take_first
    return first, kept["exp_avg_sq"] * keep_second + take_second * gradient * gradient
