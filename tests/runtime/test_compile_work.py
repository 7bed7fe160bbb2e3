"""The work of making a program grows as the program does: calls of functions are counted, not seconds."""

import gc
import sys
from collections import Counter
from dataclasses import replace
from types import FrameType

import pytest
import torch
from torch import nn

import weft
from weft.compile import pipeline
from weft.config import overrides
from weft.plan.schedule import lanes
from weft.plan.schedule.cost import default_model
from weft.target import host_target

SMALL, LARGE = 40, 160
MOST_GROWTH = 1.1  # of the calls for each block, where there are four times as many blocks


class Blocks(nn.Module):
    """As many blocks as it is long: a product, elementwise operators, a mean."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for linear in self.linears:
            y = torch.tanh(linear(x))
            x = torch.sigmoid(y) * x + y
            x = x - x.mean(dim=1, keepdim=True)
        return x


def calls_of(length: int) -> Counter[str]:
    """Count the calls of Weft's functions while a program of so many blocks is made; generators count each step."""
    counts: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and "weft" in code.co_filename:
            counts[f"{code.co_filename.rpartition('weft/')[2]}:{code.co_qualname}"] += 1

    module = weft.hybridize(Blocks(length).eval())
    gc.collect()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        with torch.no_grad(), overrides(cache_dir=None):
            module(torch.randn(4, 8))
    finally:
        sys.setprofile(before)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("times", [1.0, 1e-3])
def test_no_function_is_called_more_often_for_each_block_in_a_longer_program(
    times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine whose lanes cost what they usually do, and where they cost so little that all programs have some."""
    model = default_model(host_target())
    cheap = replace(model, wait=model.wait * times, check=model.check * times, lane=model.lane * times)
    monkeypatch.setattr(pipeline, "machine_model", lambda target: cheap)
    monkeypatch.setattr(lanes, "WORTH_TRYING", 0.0)  # else long programs are planned in one way more than short ones
    calls_of(8)  # what is done once in a process
    few, many = calls_of(SMALL), calls_of(LARGE)
    growth = LARGE / SMALL * MOST_GROWTH
    assert {name: (few[name], count) for name, count in many.items() if count > growth * max(few[name], LARGE)} == {}
