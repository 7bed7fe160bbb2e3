"""Tensors that code makes of lists in which tensors are, `torch.tensor([loss, 2.0])`, are part of programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from weft.config import overrides

pytestmark = pytest.mark.usefixtures("by_library")
DTYPES = (torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float64)


def outcome(function: Any, *given: Tensor) -> Any:
    try:
        return function(*given)
    except (TypeError, RuntimeError, ValueError, OverflowError) as error:
        return type(error)


@pytest.mark.parametrize("kind", [None, *DTYPES], ids=str)
@pytest.mark.parametrize("own", DTYPES, ids=str)
def test_elements_are_converted_as_in_eager(own: torch.dtype, kind: torch.dtype | None) -> None:
    for beside in (True, 3, 2.5, *DTYPES):

        def made(x: Tensor, y: Tensor, beside: Any = beside) -> Tensor:
            other = y if isinstance(beside, torch.dtype) else beside
            return torch.tensor([[x[0], other], [other, x[1]]], dtype=kind)

        x = torch.tensor([1.6, 0.9]).to(own)
        y = torch.tensor(1.7).to(beside) if isinstance(beside, torch.dtype) else torch.zeros(())
        with overrides(whole="off"):
            theirs, ours = outcome(made, x, y), outcome(weft.hybridize(made), x, y)
        assert ours is theirs or (ours.dtype is theirs.dtype and torch.equal(ours, theirs)), beside


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
def test_what_is_made_has_no_gradient_and_is_a_program() -> None:
    def function(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        loss = (x * weight).sum()
        parts = x.new_tensor([loss, x.max(), 2]), torch.as_tensor((loss,)), torch.asarray([loss, loss])
        return loss, torch.cat(parts)

    hybrid, weight = weft.hybridize(function, whole=True), torch.ones(4, requires_grad=True)
    for _ in range(3):
        x = torch.randn(3, 4)
        (loss, parts), (their_loss, their_parts) = hybrid(x, weight), function(x, weight)
        assert parts.requires_grad is their_parts.requires_grad is False
        assert torch.equal(parts, their_parts)
        assert torch.equal(*(torch.autograd.grad(one, weight)[0] for one in (loss, their_loss)))
    assert hybrid.traces == 1


def test_sizes_are_read_from_what_is_made() -> None:
    """As a model of tables has it: sizes that are computed in tensors, beside those of others."""

    def function(x: Tensor, index: Tensor) -> Tensor:
        segments = index.max() + 1
        shape = torch.cat([torch.as_tensor([segments], dtype=torch.long), torch.as_tensor(x.shape[1:])])
        return x.new_zeros(shape.tolist()).index_add(0, index, x)

    hybrid = weft.hybridize(function)
    with overrides(whole="off"):
        for _ in range(3):
            x, index = torch.randn(5, 2), torch.randint(0, 4, (5,))
            assert torch.equal(hybrid(x, index), function(x, index))
        assert "by Python" not in weft.explain(hybrid)
