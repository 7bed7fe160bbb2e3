"""Questions that library code asks of a tensor's values, to which one answer is right at every run.

PyTorch's own modules sometimes look at values only to choose a faster way, or to refuse bad data. The first kind is
answered with the general way; the second with "all is well", and the check itself becomes part of the program.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType, MappingProxyType

import torch

DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question is answered with; `check` is what the program raises where the real answer is another."""

    answer: bool
    check: str | None = None


# By file and function of PyTorch that asks.
ANSWERS: Mapping[tuple[str, str], Answer] = MappingProxyType(
    {
        ("torch/nn/modules/transformer.py", "_detect_is_causal_mask"): Answer(False),
        ("torch/nn/functional.py", "gaussian_nll_loss"): Answer(False, "var has negative entry/entries"),
    }
)

# Checks run inside the program, as an operator with an effect; it raises what the library function raises.
LIBRARY = torch.library.Library("weft", "FRAGMENT")
LIBRARY.define("refuse_if(Tensor condition, str message) -> ()")


def _refuse_if(condition: torch.Tensor, message: str) -> None:
    if bool(condition):
        raise ValueError(message)


def _refuse_nothing(condition: torch.Tensor, message: str) -> None:
    del condition, message


LIBRARY.impl("refuse_if", _refuse_if, "CPU")
LIBRARY.impl("refuse_if", _refuse_if, "CUDA")
LIBRARY.impl("refuse_if", _refuse_nothing, "Meta")


def find_answer() -> Answer | None:
    """The answer for the library function that is asking now, if there is one."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(DEEPEST):
        if frame is None:
            return None
        name = frame.f_code.co_name
        for (filename, function), answer in ANSWERS.items():
            if function == name and frame.f_code.co_filename.endswith(filename):
                return answer
        frame = frame.f_back
    return None
