"""CTC loss is a call of one operator each way, whatever says how long inputs and targets are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import weft

TIMES = torch.tensor([10, 9, 10, 8])
ROWS = torch.tensor([[1, 2, 2, 4], [3, 1, 0, 0], [4, 4, 1, 0], [2, 0, 0, 0]])
LONG = torch.tensor([4, 2, 3, 1])
BATCHES: dict[str, tuple[Any, Any, Any]] = {
    "rows": (ROWS, TIMES, LONG),
    "wider rows than any target": (functional.pad(ROWS, (0, 3)), TIMES, LONG),
    "one after the other": (torch.cat([row[:long] for row, long in zip(ROWS, LONG, strict=True)]), TIMES, LONG),
    "int32": (ROWS.int(), TIMES.int(), LONG.int()),
    "numbers": (ROWS, TIMES.tolist(), LONG.tolist()),
    "an input too short": (ROWS, torch.tensor([10, 9, 10, 0]), LONG),
}


def losses(zero: bool) -> Callable[..., Any]:
    def loss(scores: torch.Tensor, targets: Any, times: Any, lengths: Any) -> torch.Tensor:
        return functional.ctc_loss(scores.log_softmax(-1), targets, times, lengths, zero_infinity=zero)

    return loss


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("zero", [False, True])
def test_losses_and_gradients_are_those_of_eager(batch: str, zero: bool) -> None:
    scores = torch.randn(10, 4, 5, dtype=torch.float64, requires_grad=True)
    expected = losses(zero)(scores, *BATCHES[batch])
    found = weft.hybridize(losses(zero))(scores, *BATCHES[batch])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, scores), torch.autograd.grad(expected, scores), equal_nan=True
    )


def test_other_lengths_need_no_other_program() -> None:
    ours = weft.hybridize(losses(True))
    scores = torch.randn(10, 4, 5)
    for times, lengths in ((TIMES, LONG), (TIMES - 1, LONG), (TIMES, LONG.clamp(max=2))):
        torch.testing.assert_close(ours(scores, ROWS, times, lengths), losses(True)(scores, ROWS, times, lengths))
    assert ours.traces == 1


def test_a_length_that_the_input_does_not_have_is_eagers_error() -> None:
    scores, times = torch.randn(10, 4, 5), TIMES + 5
    with pytest.raises(RuntimeError) as expected:
        losses(False)(scores, ROWS, times, LONG)
    with pytest.raises(RuntimeError, match=str(expected.value).partition("\n")[0][:40]):
        weft.hybridize(losses(False))(scores, ROWS, times, LONG)
