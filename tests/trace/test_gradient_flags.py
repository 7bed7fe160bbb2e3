"""Code changes which tensors require a gradient, and each run of its program does too."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.trace.programs_and_eager import both
from torch import Tensor, nn

import weft
from weft.errors import UnsupportedError


class Energy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 1))

    def forward(self, positions: Tensor) -> dict[str, Tensor]:
        positions.requires_grad_()
        energy = self.net(positions).sum()
        (slope,) = torch.autograd.grad(energy, positions, create_graph=self.training)
        return {"energy": energy, "forces": -slope}


def test_forces_are_computed_inside_and_trained_on() -> None:
    def work(wrap: Any) -> Any:
        net = wrap(Energy())
        optimizer, found = torch.optim.SGD(net.parameters(), 0.01), []
        for atoms in (5, 5, 4, 5):
            positions = torch.randn(atoms, 3)
            result = net(positions)
            loss = result["energy"] ** 2 + (result["forces"] - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append((result, positions.grad, positions.requires_grad))
        return found, [*net.parameters()], net.eval()(torch.ones(2, 3))

    both(work)


def test_a_step_trains_on_forces() -> None:
    net, found = Energy(), []
    for compiled in (False, True):
        torch.manual_seed(0)
        own = copy.deepcopy(net)
        optimizer = torch.optim.SGD(own.parameters(), 0.1)

        def loss(result: dict[str, Tensor], target: Tensor) -> Tensor:
            return (result["forces"] - target).square().mean()

        step = weft.step(own, loss, optimizer)
        for _ in range(4):
            positions, target = torch.randn(5, 3), torch.randn(5, 3)
            if compiled:
                found.append(step(positions, target))
                continue
            value = loss(own(positions), target)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            found.append(value.detach())
        found += own.parameters()
    torch.testing.assert_close(found[len(found) // 2 :], found[: len(found) // 2])


@pytest.mark.parametrize("flag", [True, False])
def test_an_argument_keeps_what_it_was_made(flag: bool) -> None:
    def function(x: Tensor) -> Tensor:
        x.requires_grad_(flag)
        return x * 2

    def work(wrap: Any) -> Any:
        run, found = wrap(function), []
        for before in (True, False, True, False):
            x = torch.randn(3, requires_grad=before)
            result = run(x)
            found.append((result, result.requires_grad, x.requires_grad, x.is_leaf))
            if flag:
                result.sum().backward()
                found.append(x.grad)
        return found

    both(work)


def test_parameters_are_frozen_inside() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            self.body.requires_grad_(False)
            return self.head(self.body(x))  # type: ignore[no-any-return]

    def work(wrap: Any) -> Any:
        net, found = wrap(Net()), []
        for _ in range(3):
            net(torch.randn(2, 3)).sum().backward()
            found.append([parameter.grad for parameter in net.parameters()])
        return found, [parameter.requires_grad for parameter in net.parameters()]

    both(work)


def test_a_new_leaf_is_given_at_each_run() -> None:
    def work(wrap: Any) -> Any:
        run, found = wrap(lambda x: (x * 2).requires_grad_()), []
        for _ in range(3):
            leaf = run(torch.randn(3))
            (leaf**2).sum().backward()
            found.append((leaf, leaf.is_leaf, leaf.grad))
        return found

    both(work)


def test_a_view_becomes_a_leaf_over_the_same_memory() -> None:
    run = weft.hybridize(lambda x: x.detach().requires_grad_(), whole=True)
    for _ in range(2):
        x = torch.randn(3)
        leaf = run(x)
        assert leaf.is_leaf
        assert leaf.requires_grad
        assert not x.requires_grad
        assert leaf.data_ptr() == x.data_ptr()


def test_a_leaf_and_what_was_computed_of_it_are_no_results_of_one_program() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        leaf = torch.zeros(3, requires_grad=True)
        return (x * leaf).sum(), leaf

    with pytest.raises(UnsupportedError, match="made to require a gradient inside it"):
        weft.hybridize(function, whole=True)(torch.ones(3))
    loss, leaf = weft.hybridize(function, whole=False)(torch.ones(3))
    loss.backward()
    assert torch.equal(leaf.grad, torch.ones(3))
