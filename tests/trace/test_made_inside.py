"""Tensors that programs make and then write into carry the gradients that eager's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ways import QUICK, Work, assert_every_way


def copied(x: torch.Tensor) -> Any:
    y = torch.zeros(3, 4)
    y.copy_(x)
    return y


def assigned(x: torch.Tensor) -> Any:
    y = torch.zeros(3, 4)
    y[:] = x
    return y


def row_and_whole(x: torch.Tensor) -> Any:
    y = torch.zeros(3, 4)
    y[0] = x[0]
    return y[0], y, y.t()


def row_alone(x: torch.Tensor) -> Any:
    y = torch.zeros(3, 4)
    y[0] = x[0]
    return y[0]


def through_a_view(x: torch.Tensor) -> Any:
    y = torch.zeros_like(x)
    view = y.view(-1)
    view.copy_(x.view(-1) * 2)
    return y, view


def multiplied(x: torch.Tensor) -> Any:
    return [torch.full((3, 4), 2.0).mul_(x), torch.tensor([[1.0, 2, 3, 4]]).repeat(3, 1).mul_(x)]


def constant_multiplied(x: torch.Tensor) -> Any:
    return torch.tensor([[1.0, 2, 3, 4]] * 3).mul_(x), torch.arange(12.0).view(3, 4).mul_(x)


def steps_put_together(x: torch.Tensor) -> Any:
    out = torch.zeros(2, 3, 4)
    for time in range(2):
        out[time] = x * (time + 1)
    return out


def transposed_in_place(x: torch.Tensor) -> Any:
    y = torch.zeros(4, 3).t_()
    y.copy_(x)
    return y


def shown_detached_too(x: torch.Tensor) -> Any:
    y = torch.zeros(3, 4)
    y.copy_(x)
    return y, y.detach()


def detached_alone(x: torch.Tensor) -> Any:
    y = x * 2
    detached = y.detach()
    detached.mul_(x)
    return detached


def detached_changed(x: torch.Tensor) -> Any:
    y = x * 2
    y.detach().mul_(3)
    return y, y.detach()


def detached_first(x: torch.Tensor) -> Any:
    return (x * 2).detach().mul_(x)


def indexed(x: torch.Tensor) -> Any:
    return torch.zeros(5, 4).index_add_(0, torch.tensor([0, 1, 1]), x)


FUNCTIONS = (
    *(copied, assigned, row_and_whole, row_alone, through_a_view, multiplied, constant_multiplied, steps_put_together),
    *(transposed_in_place, shown_detached_too, detached_alone, detached_changed, detached_first, indexed),
)


def work(function: Callable[[torch.Tensor], Any]) -> Callable[[], Work]:
    return lambda: Work.repeated(lambda x: function(x * 1.5), torch.randn(3, 4, requires_grad=True), calls=2)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_is_made_and_written_carries_gradients(function: Callable[[torch.Tensor], Any]) -> None:
    def make() -> Work:
        made = work(function)()
        return Work(made.thing, made.calls, backward=True)

    assert_every_way(make)


def test_one_memory_with_two_gradients_is_refused() -> None:
    def both(x: torch.Tensor) -> Any:
        y = x * 2
        detached = y.detach()
        detached.mul_(x)
        return y, detached

    refused = [way for way in QUICK if way not in ("lazy", "step")]
    errors = assert_every_way(work(both), *refused, refused=refused)
    assert "detached view" in str(errors["hybridize"])
