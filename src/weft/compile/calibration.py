"""Remember what layers were given while a network was calibrated, by their weights.

A layer is found again by its weight, which the program of a network reads: whoever calls it, and however it is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.utils.weak import WeakIdKeyDictionary

from weft.ir.graph import Value
from weft.trace.tracer import TracedInput

SIGNED, UNSIGNED = 127.0, 255.0


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What one layer was given: the largest number, beyond which others saturate, and whether none was negative.

    `error` is what int8 changes of its output, as a part of that; `refused` says why it keeps float32, if it does.
    """

    largest: float
    is_positive: bool
    error: float = 0.0
    refused: str = ""

    @property
    def scale(self) -> float:
        """What one step of an integer is."""
        return self.largest / (UNSIGNED if self.is_positive else SIGNED)


_known: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by weight


def remember(weight: torch.Tensor, calibrated: Calibrated) -> None:
    """Note what the layers that have a weight are given."""
    _known[weight] = calibrated


def forget(weight: torch.Tensor) -> None:
    """Note that it is not known any more."""
    _known.pop(weight, None)


def calibrated_of(weight: torch.Tensor) -> Calibrated | None:
    """What the layers that have a weight are given, if that is known."""
    found: Calibrated | None = _known.get(weight)
    return found


def calibrated_inputs(inputs: Sequence[TracedInput]) -> Mapping[Value, Calibrated]:
    """What is known of the weights among the inputs of a program."""
    own = ((entry.value, calibrated_of(entry.tensor)) for entry in inputs if entry.argument is None)
    return {value: known for value, known in own if known is not None}
