"""Data that PyTorch's operators refuse -> a check in the program, where the operator itself has become small ops.

A check gives nothing and waits for nothing but the data, so it runs before the kernels, as an operator or as a part of
a region (plan/indices.py): what fails changes nothing.
"""

from __future__ import annotations

from types import MappingProxyType

import torch

from weft.ir.calls import Call, Operand
from weft.ir.graph import Value
from weft.ir.types import NOTHING
from weft.trace.lift_arguments import Arguments

CHECK_CLASSES = "weft.check_classes.default"
LIBRARY = torch.library.Library("weft", "FRAGMENT")
LIBRARY.define("check_classes(Tensor target, int classes, int ignored) -> ()")


def _checked(target: torch.Tensor, classes: int, ignored: int) -> None:
    if target.numel():
        least, most = torch.aminmax(target)
        if least < 0 or most >= classes:
            wrong = target[((target < 0) | (target >= classes)) & (target != ignored)]
            if wrong.numel():
                raise IndexError(f"Target {int(wrong[0])} is out of bounds.")


def _unchecked(target: torch.Tensor, classes: int, ignored: int) -> None:
    del target, classes, ignored


LIBRARY.impl("check_classes", _checked, "CPU")
LIBRARY.impl("check_classes", _checked, "CUDA")
LIBRARY.impl("check_classes", _unchecked, "Meta")


def check_classes(arguments: Arguments, classes: int) -> None:
    """Targets that do not name a class, nor `ignore_index`, raise what PyTorch raises, when the program runs."""
    target = arguments.tensor("target")
    call = Call(CHECK_CLASSES, (Operand(0), classes, arguments.literal("ignore_index")))
    attributes = MappingProxyType({"call": call})
    arguments.checks.append(Value("library", (target.value,), NOTHING, attributes, target.place))
