"""The calls of programs for many sizes, for tests of how these are planned."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import weft
from weft.plan.form.plan import KernelCall


def general_calls(module: nn.Module, *shapes: tuple[int, ...]) -> list[KernelCall]:
    """The calls of the one program that a module has for inputs of some shapes."""
    net: Any = weft.hybridize(module.eval().forward)
    with torch.no_grad():
        for shape in shapes:
            net(torch.randn(shape))
    (program,) = net.varying
    return [call for plan in program.guarded.program.plan.regions for call in plan.calls]
