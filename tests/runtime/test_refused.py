"""Data that kernels do not take: PyTorch's operators say what comes of it, unless tensors were changed before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from weft.errors import ExecutionError
from weft.runtime.native_graph import CompiledGraph
from weft.runtime.refused import IN_PLACE, RefusedError


@pytest.fixture
def program() -> CompiledGraph:
    """A program of two regions, the second of which refuses its data."""
    hybrid = weft.hybridize(lambda x: torch.cumprod(x * 2, 0) + 1)
    hybrid(torch.ones(3))
    found = weft.program(hybrid, torch.ones(3))._execute
    assert isinstance(found, CompiledGraph)
    assert len(found.regions) == 2
    return found


def test_operators_run_what_was_refused(program: CompiledGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(inputs: Any) -> Any:
        raise RefusedError

    monkeypatch.setattr(program, "_run", refuse)
    (found,) = program([torch.ones(3)])
    assert found.tolist() == [3, 5, 9]


def test_nothing_is_written_a_second_time(program: CompiledGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_late(inputs: Any) -> Any:
        IN_PLACE.regions += 1
        raise RefusedError

    monkeypatch.setattr(program, "_run", refuse_late)
    with pytest.raises(ExecutionError, match="after it had changed tensors in place"):
        program([torch.ones(3)])
