"""What depends on nothing but the program's text is known while it is traced."""

from __future__ import annotations

import pytest
import torch
from tests.trace.traces import traced

from weft.errors import UnsupportedError


def test_a_number_made_of_constants_may_be_read() -> None:
    found = traced(lambda x: x * torch.tensor([1.0, 2.0]).sum().item(), torch.ones(2))
    assert any(3.0 in value.attributes["call"].arguments for value in found.graph.values if value.op == "library")


def test_a_branch_on_constants_may_be_taken() -> None:
    assert len(traced(lambda x: x if torch.arange(3).sum() == 3 else -x, torch.ones(2)).graph.results) == 1


def test_what_was_written_into_a_constant_is_known_too() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        count = torch.zeros(())
        count += 4
        return x * int(count)

    assert "4" in str(traced(function, torch.ones(2)).graph.values[-1].attributes["call"])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * (torch.ones(2) + x).sum().item(),
        lambda x: x * torch.rand(()).item(),
        lambda x: x * torch.empty(()).item(),
        lambda x: x * torch.ones(1 << 17).sum().add(x.sum()).item(),
    ],
)
def test_what_depends_on_an_input_or_on_chance_is_not(function: object) -> None:
    with pytest.raises(UnsupportedError, match="Python number"):
        traced(function, torch.ones(2))
