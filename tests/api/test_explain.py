"""weft.explain says which programs there are and why each was made."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import weft
from weft.config import overrides


@pytest.mark.usefixtures("exact_sizes")
def test_programs_and_the_reasons_for_them_are_listed(by_library: None) -> None:
    net = weft.hybridize(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    net(torch.randn(2, 4))
    net(torch.randn(7, 4))
    with torch.no_grad():
        net(torch.randn(2, 4))
    assert str(weft.explain(net)) == (
        "Sequential: 3 programs, 3 traced\n"
        "  program 1: (input: float32[2, 4]) with gradients\n"
        "    3 values: 3 calls of PyTorch's operators; 1 result\n"
        "  program 2: (input: float32[7, 4]) with gradients\n"
        "    3 values: 3 calls of PyTorch's operators; 1 result\n"
        "  program 3: (input: float32[2, 4]) no gradients\n"
        "    3 values: 3 calls of PyTorch's operators; 1 result\n"
        "  traced again because\n"
        "    argument input: size of dim 0 was 2, is 7\n"
        "    grad mode was on, is off"
    )


def test_what_runs_in_machine_code_is_counted() -> None:
    net = weft.hybridize(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    with overrides(codegen="native"), torch.no_grad():
        net(torch.randn(2, 4))
    assert "1 region in machine code" in str(weft.explain(net))


def test_the_explanation_shows_itself_at_the_prompt() -> None:
    explanation = weft.explain(weft.hybridize(nn.Linear(2, 2)))
    assert repr(explanation) == str(explanation) == "Linear: no programs yet; the first call makes one"


def test_values_of_other_arguments_and_writes_are_shown() -> None:
    @weft.hybridize
    def function(x: torch.Tensor, scale: float, *, mode: str = "a") -> torch.Tensor:
        x.add_(1)
        return x * scale if mode == "a" else x

    function(torch.ones(2), 2.0, mode="a")
    text = str(weft.explain(function))
    assert "program 1: (x: float32[2], scale: 2.0, mode: 'a') with gradients" in text
    assert "1 write" in text


def test_the_reason_why_something_runs_imperatively_is_given() -> None:
    function = weft.hybridize(lambda x: x if x.sum() > 0 else -x, fallback="eager")
    with pytest.warns(UserWarning, match="runs imperatively from now on"):
        function(torch.ones(2))
    text = str(weft.explain(function))
    assert "runs imperatively, because\n  the program branches on the value of a tensor" in text


def test_what_is_not_hybridized_is_said_to_be_so_and_its_parts_that_are_explained() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    plain = "Sequential is not hybridized: weft.hybridize makes its calls programs"
    assert str(weft.explain(net)) == plain
    assert str(weft.explain(torch.relu)) == "relu is not hybridized: weft.hybridize makes its calls programs"
    weft.hybridize(net[0])
    net(torch.ones(1, 2))
    lines = str(weft.explain(net)).splitlines()
    assert lines[:3] == [plain, "  0:", "    Linear: 1 program, 1 traced"]
    assert len(lines) > 3


def test_programs_for_many_sizes_are_counted_where_there_are_no_others() -> None:
    hybrid = weft.hybridize(lambda x: x.exp() + 1, sizes={"x": {0: "rows"}})
    for rows in (4, 7, 9):
        hybrid(torch.randn(rows, 3))
    first, second, *_ = str(weft.explain(hybrid)).splitlines()
    assert first == "<lambda>: 1 program for many sizes, 1 traced"
    assert second.startswith("  for sizes rows 2 to 16")
