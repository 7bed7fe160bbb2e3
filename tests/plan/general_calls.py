"""The calls of programs for many sizes, for tests of how these are planned."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import weft
from weft.plan.form.plan import KernelCall, Plan


def general_calls(module: nn.Module, *shapes: tuple[int, ...]) -> list[KernelCall]:
    """The calls of the one program that a module has for inputs of some shapes."""
    return [call for plan in _general_plans(module, *shapes) for call in plan.calls]


def general_plan(module: nn.Module, *shapes: tuple[int, ...]) -> Plan:
    """The plan of that program, where it has one region."""
    (plan,) = _general_plans(module, *shapes)
    return plan


def _general_plans(module: nn.Module, *shapes: tuple[int, ...]) -> tuple[Plan, ...]:
    net: Any = weft.hybridize(module.eval().forward)
    with torch.no_grad():
        for shape in shapes:
            net(torch.randn(shape))
    (program,) = net.varying
    return tuple(program.guarded.program.plan.regions)
