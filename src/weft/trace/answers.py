"""Answer questions about a tensor's values to which one answer is right at every run.

`torch.tensor(3).item()`, or a check that a library function makes on a tensor of its own making, has one answer for all
runs; such code need not be refused. Nor need a mask or a table that it keeps in a dictionary for later calls. Other
checks of library code become operators of the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import Any

import torch

from weft.ir.at_sizes import has_extents
from weft.ir.graph import Value
from weft.ir.interpreter import evaluate
from weft.ir.library import Call, Operand, has_effect, is_uninitialised
from weft.trace.interception.user_lines import is_of_library, is_of_user

LARGEST = 1 << 16
PURE = frozenset({"constant", "library", "update", "item"})


class TraceConstants:
    """Computes values of a trace that are the same at every run."""

    def __init__(self) -> None:
        self._found: dict[Value, Any] = {}
        self._unknown: set[Value] = set()

    def elements(self, value: Value) -> torch.Tensor | None:
        """The elements of a value, or nothing if they depend on an input or on chance."""
        found = self._compute(value)
        return found if isinstance(found, torch.Tensor) and found.numel() <= LARGEST else None

    def copy(self, value: Value) -> torch.Tensor | None:
        """A tensor of its own with the elements of a value, however many, or nothing if they are not known."""
        found = self._compute(value)
        return deepcopy(found) if isinstance(found, torch.Tensor) else None

    def hide(self, value: Value) -> None:
        """Know nothing of a value from now on: it is another one at other runs."""
        self._unknown.add(value)

    def _compute(self, value: Value) -> Any:
        if value in self._found:
            return self._found[value]
        if value in self._unknown or not self._is_pure(value):
            self._unknown.add(value)
            return None
        operands = [self._compute(operand) for operand in value.operands]
        if any(operand is None for operand in operands):
            self._unknown.add(value)
            return None
        self._found[value] = found = evaluate(value, operands)
        return found

    def _is_pure(self, value: Value) -> bool:
        call = value.attributes.get("call")
        if value.op not in PURE or has_extents(value.type) or (call is not None and has_extents(call)):
            return False  # of a size that varies, its elements are others at other runs
        return call is None or not (has_effect(call.target) or is_uninitialised(call.target))


Names = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """What a program raises where the real answer is another; with a tensor, its elements are told too."""

    message: str
    told: torch.Tensor | None = None

    def call(self) -> Call:
        """The operator that raises, on the answer and on what is told."""
        if self.told is None:
            return Call("weft.refuse_if.default", (Operand(0), self.message))
        return Call("weft.refuse_unless.default", (Operand(0), Operand(1), self.message))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question is answered with, and how the check of it is made of the names that the asking function has."""

    answer: bool
    check: Callable[[Names], AnswerCheck] | None = None

    def check_of(self, frame: FrameType) -> AnswerCheck | None:
        """The check of the question that this frame asks."""
        return None if self.check is None else self.check(frame.f_locals)


def _variance(names: Names) -> AnswerCheck:
    del names
    return AnswerCheck("var has negative entry/entries")


def _parameter(names: Names) -> AnswerCheck:
    rule = f"of distribution {names['self']!r} to satisfy the constraint {names['constraint']!r}"
    return _invalid(names["value"], f"parameter {names['param']}", rule)


def _sample(names: Names) -> AnswerCheck:
    rule = f"to be within the support ({names['support']!r}) of the distribution {names['self']!r}"
    return _invalid(names["value"], "value argument", rule)


def _invalid(value: torch.Tensor, name: str, rule: str) -> AnswerCheck:
    kind = "Parameter" if isinstance(value, torch.nn.Parameter) else "Tensor"
    described = f"{kind} of shape {tuple(value.shape)}"
    return AnswerCheck(f"Expected {name} ({described}) {rule}, but found invalid values:\n", value)


# By file and function of PyTorch that asks.
ANSWERS: Mapping[tuple[str, str], Answer] = MappingProxyType(
    {
        ("torch/nn/modules/transformer.py", "_detect_is_causal_mask"): Answer(False),
        ("torch/nn/functional.py", "gaussian_nll_loss"): Answer(False, _variance),
        ("torch/distributions/distribution.py", "__init__"): Answer(True, _parameter),
        ("torch/distributions/distribution.py", "_validate_sample"): Answer(True, _sample),
    }
)

# Checks run inside the program, as an operator with an effect; it raises what the library function raises.
LIBRARY = torch.library.Library("weft", "FRAGMENT")
LIBRARY.define("refuse_if(Tensor condition, str message) -> ()")
LIBRARY.define("refuse_unless(Tensor condition, Tensor told, str message) -> ()")


def _refuse_if(condition: torch.Tensor, message: str) -> None:
    if bool(condition):
        raise ValueError(message)


def _refuse_unless(condition: torch.Tensor, told: torch.Tensor, message: str) -> None:
    if not bool(condition):
        raise ValueError(f"{message}{told}")


def _refuse_nothing(*given: Any) -> None:
    del given


for device in ("CPU", "CUDA"):
    LIBRARY.impl("refuse_if", _refuse_if, device)
    LIBRARY.impl("refuse_unless", _refuse_unless, device)
LIBRARY.impl("refuse_if", _refuse_nothing, "Meta")
LIBRARY.impl("refuse_unless", _refuse_nothing, "Meta")


def find_answer() -> tuple[Answer, FrameType] | None:
    """The answer for the library function that is asking now, if there is one, and its frame."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_of_library(frame):
        if is_of_user(frame):
            return None
        frame = frame.f_back
    if frame is None:
        return None
    for (filename, function), answer in ANSWERS.items():
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(filename):
            return answer, frame
    return None
