"""Follow `tensor.data = value`: from then on a tensor stands for the memory of another one, as after each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.trace.gradient_flags import GivenTensor
from weft.trace.interception.capture import is_stand_in, kind_of
from weft.trace.interception.refusals import refuse
from weft.trace.memory import TensorState
from weft.trace.recorder import Recorder

SET = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class ReplacedMemory:
    """The tensors of one trace whose memory was replaced."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._found: dict[int, torch.Tensor] = {}

    def replaced(self, arguments: Sequence[Any]) -> Callable[..., None]:
        """What to call in the place of an assignment."""
        tensor, value = arguments
        is_followed = isinstance(value, torch.Tensor) and is_stand_in(value) and is_stand_in(tensor)
        if not is_followed or kind_of(tensor) != kind_of(value):
            refuse("memory replaced", self._recorder.place())
        return self._put

    def _put(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        if tensor is value:
            return
        before, source = self._recorder.state_of(tensor), self._recorder.state_of(value)
        elements = self._recorder.value_of(value)
        SET(tensor, value)
        # What was made of the old memory still looks into it, and what is written goes into the new one.
        self._recorder.hides_writes = True
        self._recorder.put(
            TensorState(
                tensor,
                source.memory,
                source.path,
                elements,
                source.memory.version,
                anchor=source.anchor or source,
                input=before.input,
            )
        )
        self._found[id(tensor)] = tensor

    def of_inputs(self, inputs: Sequence[GivenTensor]) -> list[tuple[int, torch.Tensor]]:
        """The inputs that each run gives other memory, by number, each with a tensor over that."""
        found = [(number, entry) for number, entry in enumerate(inputs) if id(entry.stand_in) in self._found]
        for number, entry in found:
            if any(other.tensor is entry.tensor for at, other in enumerate(inputs) if at != number):
                refuse("memory replaced", None)
        return [(number, entry.stand_in.detach()) for number, entry in found]
