"""Gradients of a batch of tangents at once are those of the tangents, one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian, jacobian

import weft


class Net(nn.Module):
    """Gives a result that is computed from another one."""

    def __init__(self, *, alone: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 2)
        self.alone = alone

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.layer(x).tanh()
        return hidden if self.alone else (hidden.pow(2).sum(1), hidden)


def test_one_result() -> None:
    net, x = Net(alone=True), torch.randn(3, 4, requires_grad=True)
    tangents = torch.eye(6).reshape(6, 3, 2)
    wanted = [x, *net.parameters()]
    expected = torch.autograd.grad(net(x), wanted, tangents, is_grads_batched=True)
    weft.hybridize(net)
    for _ in range(2):
        result = net(x)
        for retain in (True, False):
            found = torch.autograd.grad(result, wanted, tangents, is_grads_batched=True, retain_graph=retain)
            torch.testing.assert_close(found, expected)


def test_results_that_are_computed_from_others() -> None:
    net, x = Net(alone=False), torch.randn(3, 4, requires_grad=True)
    tangents = [torch.eye(3), torch.randn(3, 3, 2)]

    def gradients() -> Any:
        first, hidden = net(x)
        one = torch.autograd.grad([first], [x, hidden], tangents[:1], is_grads_batched=True, retain_graph=True)
        return [*one, *torch.autograd.grad([first, hidden], [x], tangents, is_grads_batched=True)]

    expected = gradients()
    weft.hybridize(net)
    torch.testing.assert_close(gradients(), expected)


@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobians_and_hessians(vectorize: bool) -> None:
    net, x = Net(alone=True), torch.randn(2, 4)

    def found() -> Any:
        first = jacobian(net, x, vectorize=vectorize, create_graph=True)
        second = hessian(lambda x: net(x).pow(2).sum(), x, vectorize=vectorize)
        return [first.detach(), second, *torch.autograd.grad(first.pow(2).sum(), net.layer.weight)]

    expected = found()
    weft.hybridize(net)
    torch.testing.assert_close(found(), expected)
