"""Answer questions about a tensor's values to which one answer is right at every run.

`torch.tensor(3).item()`, or a check that a library function makes on a tensor of its own making, has one answer for all
runs; such code need not be refused. Nor need a mask or a table that it keeps in a dictionary for later calls. Other
checks of library code become operators of the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
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
ValueOf = Callable[[torch.Tensor], Value]


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """What a program raises where the real answer is another; `told` is what it tells of, as a run has it."""

    message: str
    told: tuple[torch.Tensor, ...] = ()

    def call(self) -> Call:
        """The operator that raises, on the answer and on what is told."""
        if not self.told:
            return Call("weft.refuse_if.default", (Operand(0), self.message))
        told = tuple(Operand(1 + index) for index in range(len(self.told)))
        return Call("weft.refuse_unless.default", (Operand(0), told, self.message))


class Told:
    """The tensors that a message tells of: what it holds in their places until a run fills in what they are."""

    def __init__(self, value_of: ValueOf) -> None:
        self.tensors: list[torch.Tensor] = []
        self._value_of = value_of

    def elements(self, tensor: torch.Tensor) -> str:
        """What stands for the text of a tensor."""
        return f"<{self._place(tensor)}>"

    def sizes(self, tensor: torch.Tensor) -> str:
        """What stands for the text of a tensor's sizes, as those of a tuple."""
        varies = has_extents(self._value_of(tensor).type)
        return f"<sizes of {self._place(tensor)}>" if varies else str(tuple(tensor.shape))

    def described(self, distribution: torch.distributions.Distribution) -> str:
        """The text of a distribution: numbers among its parameters, and the sizes of others."""
        return repr(self._as_shown(distribution))

    def _as_shown(self, distribution: torch.distributions.Distribution) -> torch.distributions.Distribution:
        found = copy(distribution)
        for name, held in vars(distribution).items():
            if isinstance(held, torch.Tensor):
                vars(found)[name] = _Shown(held, self)
            elif isinstance(held, torch.distributions.Distribution):
                vars(found)[name] = self._as_shown(held)
        return found

    def _place(self, tensor: torch.Tensor) -> int:
        known = next((place for place, one in enumerate(self.tensors) if one is tensor), None)
        if known is None:
            known = len(self.tensors)
            self.tensors.append(tensor)
        return known


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a distribution that describes itself finds in the place of a parameter."""

    tensor: torch.Tensor
    told: Told

    def numel(self) -> int:
        return self.tensor.numel()

    def size(self) -> str:
        sizes = self.told.sizes(self.tensor).strip("(,)")  # as they are in a list
        return f"torch.Size([{sizes}])"

    def __str__(self) -> str:
        return self.told.elements(self.tensor)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question is answered with, and how the check of it is made of the names that the asking function has."""

    answer: bool
    check: Callable[[Names, Told], str] | None = None

    def check_of(self, frame: FrameType, value_of: ValueOf) -> AnswerCheck | None:
        """The check of the question that this frame asks."""
        if self.check is None:
            return None
        told = Told(value_of)
        return AnswerCheck(self.check(frame.f_locals, told), tuple(told.tensors))


def _variance(names: Names, told: Told) -> str:
    del names, told
    return "var has negative entry/entries"


def _parameter(names: Names, told: Told) -> str:
    rule = f"of distribution {told.described(names['self'])} to satisfy the constraint {names['constraint']!r}"
    return _invalid(names["value"], told, f"parameter {names['param']}", rule)


def _sample(names: Names, told: Told) -> str:
    distribution = told.described(names["self"])
    rule = f"to be within the support ({names['support']!r}) of the distribution {distribution}"
    return _invalid(names["value"], told, "value argument", rule)


def _invalid(value: torch.Tensor, told: Told, name: str, rule: str) -> str:
    kind = "Parameter" if isinstance(value, torch.nn.Parameter) else "Tensor"
    described = f"{kind} of shape {told.sizes(value)}"
    return f"Expected {name} ({described}) {rule}, but found invalid values:\n{told.elements(value)}"


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
LIBRARY.define("refuse_unless(Tensor condition, Tensor[] told, str message) -> ()")


def _refuse_if(condition: torch.Tensor, message: str) -> None:
    if bool(condition):
        raise ValueError(message)


def _refuse_unless(condition: torch.Tensor, told: Sequence[torch.Tensor], message: str) -> None:
    if bool(condition):
        return
    for place, tensor in enumerate(told):
        sizes = tuple(tensor.shape)
        message = message.replace(f"[<sizes of {place}>]", str([*sizes])).replace(f"<sizes of {place}>", str(sizes))
        message = message.replace(f"<{place}>", f"{tensor}")
    raise ValueError(message)


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
