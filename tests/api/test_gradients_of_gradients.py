"""Gradients of programs are differentiated again, outside of them, as gradients of eager code are."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.functional import hessian, jacobian

import weft
from weft.errors import UnsupportedError


def mlp(inputs: int = 4, outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def gradients(net: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in net.parameters()]


def assert_same(work: Callable[[nn.Module], Any], net: nn.Module) -> None:
    """What the work gives, and the gradients that it leaves, are those of eager code."""
    found = []
    for one in (copy.deepcopy(net), weft.hybridize(copy.deepcopy(net))):
        torch.manual_seed(1)
        found.append((work(one), gradients(one)))
    torch.testing.assert_close(found[1], found[0])


def test_a_gradient_penalty_changes_the_weights_as_in_eager() -> None:
    def work(net: nn.Module) -> list[torch.Tensor]:
        optimizer, losses = torch.optim.SGD(net.parameters(), 0.1), []
        for rows in (6, 6, 5, 6):
            x = torch.randn(rows, 4, requires_grad=True)
            (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
            loss = net(x).mean() + ((slope.norm(2, dim=1) - 1) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [*losses, *net.parameters()]

    assert_same(work, mlp())


def test_a_penalty_may_come_after_backwards_of_first_order() -> None:
    def work(net: nn.Module) -> Any:
        for _ in range(12):
            net(torch.randn(5, 4)).sum().backward()
        net.zero_grad()
        x = torch.randn(5, 4, requires_grad=True)
        result = net(x).sum()
        (once,) = torch.autograd.grad(result, x, retain_graph=True)
        (again,) = torch.autograd.grad(result, x, create_graph=True)
        again.square().sum().backward()
        return once, again, x.grad

    assert_same(work, mlp())


def test_gradients_flow_through_the_tangents_too() -> None:
    def work(net: nn.Module) -> Any:
        x = torch.randn(5, 4, requires_grad=True)
        scores = net(x)
        tangent = torch.randn(5, 3, requires_grad=True)
        (first,) = torch.autograd.grad(scores, x, tangent, create_graph=True)
        (second,) = torch.autograd.grad(scores.square().sum(), x, create_graph=True)
        (first.square().sum() + second.square().sum()).backward()
        return first, second, x.grad, tangent.grad

    assert_same(work, mlp(outputs=3))


def test_a_gradient_is_differentiated_to_any_order() -> None:
    def work(net: nn.Module) -> Any:
        x = torch.linspace(-1, 1, 7)[:, None].requires_grad_()
        found = [net(x)]
        for _ in range(3):
            found += torch.autograd.grad(found[-1].sum(), x, create_graph=True)
        sum(one.square().sum() for one in found).backward()
        return found, x.grad

    assert_same(work, mlp(1))


def test_hessians_and_jacobians_are_those_of_eager() -> None:
    def work(net: nn.Module) -> Any:
        x = torch.randn(4)
        return jacobian(net, x), jacobian(net, x, create_graph=True), hessian(lambda one: net(one).sum(), x)

    assert_same(work, mlp(outputs=3))


def test_the_numbers_drawn_by_a_dropout_are_those_of_its_forward() -> None:
    def work(net: nn.Module) -> Any:
        x = torch.randn(6, 4, requires_grad=True)
        result = net(x)
        (slope,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        (result.mean() + slope.square().sum()).backward()
        return result, slope, x.grad, [*net.buffers()]

    assert_same(work, nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Dropout(0.4), nn.Linear(8, 1)))


class Straight(torch.autograd.Function):
    """Signs whose gradient goes straight through."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = context.saved_tensors
        return gradient * (1 - x.tanh() ** 2)


def test_backwards_of_the_users_are_differentiated_as_they_are() -> None:
    def work(function: Any) -> Any:
        x = torch.linspace(-1, 1, 5).requires_grad_()
        (slope,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        return slope, x.grad

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.exp()
        return Straight.apply(x * 2) * scale  # type: ignore[no-untyped-call, no-any-return]

    torch.testing.assert_close(work(weft.hybridize(function)), work(function))


def test_steps_of_learning_are_learned_through() -> None:
    def work(net: nn.Module) -> Any:
        x, y = torch.randn(5, 4), torch.randn(5, 1)
        weights = dict(net.named_parameters())
        for _ in range(2):
            loss = (torch.func.functional_call(net, weights, (x,)) - y).square().mean()
            slopes = torch.autograd.grad(loss, [*weights.values()], create_graph=True)
            weights = {
                name: weight - 0.1 * slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)
            }
        loss = torch.func.functional_call(net, weights, (x,)).square().mean()
        loss.backward()
        return loss

    assert_same(work, mlp())


def test_what_has_no_second_derivative_raises_as_in_eager() -> None:
    net = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    for one in (net, weft.hybridize(copy.deepcopy(net))):
        x = torch.randn(2, 5, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(one(x).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="derivative for aten::_scaled_dot_product_flash_attention"):
            slope.square().sum().backward()


def test_a_backward_lets_go_of_what_the_program_was_given() -> None:
    net = weft.hybridize(mlp())
    x = torch.randn(5, 4)
    known, result = weakref.ref(x), net(x).sum()
    result.backward()
    del x
    gc.collect()
    assert known() is None
    assert result.requires_grad


def test_a_gradient_is_not_differentiated_where_a_write_replaced_its_inputs_history() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x.mul_(weight)
        return (x**3).sum()

    weight = torch.randn(4, requires_grad=True)
    x = torch.randn(4, requires_grad=True) * 2
    result = weft.hybridize(function)(x, weight)
    (slope,) = torch.autograd.grad(result, weight, create_graph=True)
    with pytest.raises(UnsupportedError, match="a gradient of a hybridized program is differentiated again"):
        slope.sum().backward()
