"""Code that calls very many operators, as loops over elements do, is Python's: a program would take minutes to make."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from weft.config import overrides
from weft.errors import UnsupportedError
from weft.trace.recorder import Recorder


def many_rounds(x: torch.Tensor) -> torch.Tensor:
    for _ in range(300):
        x = torch.sin(x)
    return x


def warped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How far two series are apart when time is warped."""
    table = torch.full((len(a) + 1, len(b) + 1), float("inf"))
    table[0, 0] = 0
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            before = torch.stack([table[i - 1, j], table[i, j - 1], table[i - 1, j - 1]])
            table[i, j] = (a[i - 1] - b[j - 1]).abs() + before.min()
    return table[-1, -1]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let traces end at 200 operators."""
    begin = Recorder.__init__

    def begin_with_few(self: Recorder, *arguments: Any) -> None:
        begin(self, *arguments[:-1], 200)

    monkeypatch.setattr(Recorder, "__init__", begin_with_few)


@pytest.mark.usefixtures("few")
def test_python_runs_what_would_be_too_long_a_program() -> None:
    x = torch.randn(4, requires_grad=True)
    with overrides(whole="off"):
        found = weft.hybridize(many_rounds)
        for _ in range(3):
            assert torch.equal(found(x), many_rounds(x))
    assert found.traces == 0
    assert "more operators" in str(weft.explain(found))
    with pytest.raises(UnsupportedError, match="hybridize what a round calls"):
        weft.hybridize(many_rounds, whole=True)(x)
    with weft.lazy():
        assert torch.equal(many_rounds(x), many_rounds(x.detach()))


def test_loops_over_sizes_that_grow_are_not_traced_at_many_times_their_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that grow by one get room for 256; of two of them, that would be 65,536 rounds."""
    recorded, record = [0], Recorder.record

    def counted(self: Recorder, *arguments: Any) -> Any:
        recorded[0] += 1
        return record(self, *arguments)

    monkeypatch.setattr(Recorder, "record", counted)
    with overrides(whole="off"):
        found = weft.hybridize(warped)
        for size in (2, 3, 4, 5):
            a, b = torch.randn(size), torch.randn(size)
            torch.testing.assert_close(found(a, b), warped(a, b))
    assert recorded[0] < 20_000
