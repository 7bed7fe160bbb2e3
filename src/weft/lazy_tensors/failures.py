"""Account for what a failed operator of a segment takes with it, and what is not to be changed any more.

Memory that exists keeps what it held when the operator failed, as in eager code, which would have stopped there: what
is to miss one of the changes that follow is changed no more. Only what was never made is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from weft.lazy_tensors.operators import OVERWRITING

if TYPE_CHECKING:
    from weft.lazy_tensors.segment_plan import SegmentStep

BEFORE = -1  # the place of a failure before the segment


@dataclass(slots=True, eq=False)
class Lost:
    """What one failure poisons: places of results, and numbers of inputs, one for each piece of memory."""

    cause: Any  # what the caller knows an earlier failure by, or the error of an operator
    place: int = BEFORE  # of the operator that failed, among the steps
    results: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)


class OperatorFailure(Exception):  # noqa: N818  # it is what happened, and is never raised by itself to the user
    """Operators failed, and what does not depend on them was computed; `results` has None for those never made."""

    def __init__(self, results: list[Any], losses: list[Lost]) -> None:
        super().__init__()
        self.results = results
        self.losses = losses


class Losses:
    """What is lost so far, while the operators of a segment run one after the other.

    `storages` are those of the inputs; `poisoned` has those that are lost already, with the failure, earliest first.
    """

    def __init__(self, steps: Sequence[SegmentStep], storages: Sequence[Any], poisoned: Mapping[int, Any]) -> None:
        self._steps = steps
        first: dict[int, int] = {}
        # Inputs that share memory are lost together, and views with what they are views of. What is not here is alone.
        self._root = {~index: ~first.setdefault(id(storage), index) for index, storage in enumerate(storages)}
        self._causes = [Lost(cause) for cause in dict.fromkeys(poisoned.values())]
        numbers = {id(lost.cause): number for number, lost in enumerate(self._causes)}
        # What is lost, and what is not to be changed any more: roots, with the number of the first of the causes.
        self._by: dict[int, int] = {}
        for index, cause in poisoned.items():
            self._by.setdefault(self._of(~index), numbers[id(cause)])
        self._frozen: dict[int, int] = {}
        if poisoned:
            self._freeze(BEFORE)

    def _of(self, index: int) -> int:
        return self._root.get(index, index)

    def share(self, step: SegmentStep) -> None:
        """Note what the results of a step that has run are views of."""
        for index, output in zip(step.result_numbers, step.schema.outputs, strict=True):
            if index >= 0 and output.view_of >= 0:
                self._root[index] = self._of(step.operands[output.view_of])

    def skips(self, step: SegmentStep, tensors: Sequence[Any] | None) -> bool:
        """Whether a step takes something lost; then what it makes and changes is lost by the same, the first failure.

        `tensors` are what it takes, with None for what was never made; None where that is not known yet.
        """
        causes = [self._by.get(self._of(index)) for index in step.operands]
        if causes and causes[1:].count(None) == len(causes) - 1 and _overwrites(step, tensors):
            # None of what was there remains, so that a failure before matters no more.
            root = self._of(step.operands[0])
            self._by.pop(root, None)
            self._frozen.pop(root, None)
            causes[0] = None
        causes += [self._frozen.get(self._of(step.operands[place])) for place in step.schema.written]
        lost = [cause for cause in causes if cause is not None]
        if lost:
            self._lose(step, min(lost))
        else:
            self.share(step)
        return bool(lost)

    def fail(self, place: int, error: Exception) -> None:
        """Note that the step at this place failed."""
        self._causes.append(Lost(error, place))
        self._lose(self._steps[place], len(self._causes) - 1)
        self._freeze(place)

    def _lose(self, step: SegmentStep, cause: int) -> None:
        for index in step.result_numbers:
            if index >= 0:
                self._root[index] = index  # a view that could not be made takes nothing with it but itself
                self._by[index] = cause
        for place in step.schema.written:
            self._by[self._of(step.operands[place])] = cause

    def _freeze(self, place: int) -> None:
        """Find what will miss a change in the steps behind this place, and so is to be changed by none of them."""
        root, by, frozen = self._root, self._by, self._frozen
        found = dict(frozen)
        known = -1
        while len(found) > known:  # it only grows
            known = len(found)
            # A trial: whatever is not changed may let more miss something.
            self._root, self._by, self._frozen = dict(root), dict(by), dict(found)
            for step in self._steps[place + 1 :]:
                if self.skips(step, None):
                    for written in (self._of(step.operands[index]) for index in step.schema.written):
                        found.setdefault(written, self._by[written])
        self._root, self._by, self._frozen = root, by, found

    def tell(self, made: Mapping[int, Any], results: Sequence[int]) -> None:
        """Raise what happened, if anything is lost in the end."""
        for place, number in enumerate(results):
            cause = self._by.get(self._of(number))
            if cause is not None:
                self._causes[cause].results.append(place)
        for root, cause in self._by.items():
            if root < 0:
                self._causes[cause].inputs.append(~root)
        told = [lost for lost in self._causes if lost.place >= 0 or lost.results or lost.inputs]
        if told:
            raise OperatorFailure([made.get(number) for number in results], told)


def _overwrites(step: SegmentStep, tensors: Sequence[Any] | None) -> bool:
    """Whether nothing remains of the memory that a step writes."""
    if step.schema.function not in OVERWRITING:
        return False
    if tensors is None:
        return True
    if any(tensor is None for tensor in tensors):
        return False
    return fills_memory(tensors[0])


def fills_memory(tensor: torch.Tensor) -> bool:
    """Whether nothing of a tensor's memory is outside of it."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes() and tensor.is_contiguous()
