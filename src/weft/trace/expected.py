"""Let code of a program for many sizes decide as a call at hand decides, and check in each run that it still does.

A check is an operator with an effect, in its place among what is computed. Where a tensor says otherwise, the run ends
before anything is written, and Python runs the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from weft.ir.graph import Graph, Place, Value
from weft.ir.library import Call, Operand, name_of
from weft.ir.ops import effect_of
from weft.ir.types import NOTHING
from weft.trace.answers import LIBRARY
from weft.trace.decisions import Decision, truth
from weft.trace.interception.capture import Operator
from weft.trace.interception.printed import Printed
from weft.trace.interception.refusals import refuse
from weft.trace.recorder import Recorder

EXPECT = "weft.expect.default"


class OtherAnswerError(Exception):
    """A tensor says otherwise than when the program was made."""


def _expect(condition: torch.Tensor, outcome: bool) -> None:
    if bool(condition) is not outcome:
        raise OtherAnswerError


def _expect_nothing(condition: torch.Tensor, outcome: bool) -> None:
    del condition, outcome


LIBRARY.define("expect(Tensor condition, bool outcome) -> ()")
for device in ("CPU", "CUDA"):
    LIBRARY.impl("expect", _expect, device)
LIBRARY.impl("expect", _expect_nothing, "Meta")


def expects_answers(graph: Graph) -> bool:
    """Whether a program checks what tensors say, so that not every call runs to its end."""
    calls = (value.attributes.get("call") for value in graph.values)
    return any(call is not None and call.target == EXPECT for call in calls)


class ExpectedAnswers:
    """What one trace is told of its call's values, by the decisions of another trace of it."""

    def __init__(
        self, recorder: Recorder, told: Sequence[Decision], place: Callable[[], Place | None], printed: Printed
    ) -> None:
        self._recorder = recorder
        self._printed = printed
        self._told: Iterator[Decision] = iter(told)
        self._place = place

    def may_ask(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
        """Whether what a function asks is whether a tensor is true."""
        del arguments
        return function is torch.Tensor.__bool__

    def ask(self, function: Callable[..., Any], tensor: torch.Tensor) -> bool:
        """What the tensor of the call at hand says, which each run is to say too."""
        del function
        return self._answer(self._recorder.value_of(tensor))

    def ask_by_operator(self, operator: Operator, values: Sequence[Value]) -> bool:
        """The same, where an operator asks."""
        if name_of(operator) != "aten.is_nonzero.default":
            refuse("number", self._place(), detail=str(operator))
        return self._answer(values[0])

    def _answer(self, value: Value) -> bool:
        place, decision = self._place(), next(self._told, None)
        drawn = any(effect_of(one) == "random" for one in self._recorder.values)  # Python would draw it once more
        if drawn or decision is None or decision.ask is not truth or decision.place != place:
            refuse("branch", place)
        self._printed.decided()
        outcome = bool(decision.outcome)
        self._recorder.emit("library", (value,), NOTHING, call=Call(EXPECT, (Operand(0), outcome)))
        return outcome
