"""Code assigns `.data`: after each run a tensor has the memory that eager gives it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.trace.programs_and_eager import both
from torch import Tensor, nn

import weft
from weft.errors import UnsupportedError


class Teacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.teacher = copy.deepcopy(self.student)

    @torch.no_grad()
    def average(self) -> None:
        for own, other in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            own.data = own.data * 0.9 + other.data * 0.1

    def forward(self, x: Tensor) -> Tensor:
        self.average()
        with torch.no_grad():
            target = self.teacher(x)
        return (self.student(x) - target).square().mean()


def test_a_teacher_is_an_average_of_its_student() -> None:
    def work(wrap: Any) -> Any:
        net = wrap(Teacher())
        optimizer, found = torch.optim.SGD(net.student.parameters(), 0.1), []
        for _ in range(5):
            loss = net(torch.randn(5, 4))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append((loss.detach(), copy.deepcopy(net.state_dict())))
        return found

    both(work)


def test_a_step_trains_with_a_teacher() -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = Teacher()
        optimizer = torch.optim.SGD(net.student.parameters(), 0.1)
        step = weft.step(net, None, optimizer)
        for _ in range(5):
            x = torch.randn(5, 4)
            if compiled:
                step(x)
                continue
            optimizer.zero_grad()
            net(x).backward()
            optimizer.step()
        found.append(net.state_dict())
    torch.testing.assert_close(found[1], found[0])


def test_what_looked_into_the_old_memory_still_does() -> None:
    def function(x: Tensor) -> Tensor:
        row = x[0]
        x.data = x.data * 2
        row += 1
        return x.sum() + row.sum()

    def work(wrap: Any) -> Any:
        run, found = wrap(function), []
        for _ in range(3):
            x = torch.randn(3, 2)
            old = x.detach()
            found.append((run(x), x, old))
        return found

    both(work)


def test_a_tensor_has_the_memory_that_it_was_given() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.data = y
        return x * 2

    run = weft.hybridize(function, whole=True)
    for _ in range(3):
        x, y = torch.zeros(3), torch.randn(3)
        assert torch.equal(run(x, y), y * 2)
        assert x.data_ptr() == y.data_ptr()


def test_weights_are_projected_before_they_are_used() -> None:
    def work(wrap: Any) -> Any:
        net = nn.Linear(3, 3)

        def function(x: Tensor) -> Tensor:
            net.weight.data = net.weight.data.clamp(-0.1, 0.1)
            return net(x)  # type: ignore[no-any-return]

        run, found = wrap(function), []
        for _ in range(3):
            result = run(torch.randn(2, 3))
            result.square().sum().backward()
            found.append((result, net.weight.grad))
            with torch.no_grad():
                net.weight.add_(net.weight.grad, alpha=-0.1)
            net.zero_grad()
        return found, net.weight

    both(work)


@pytest.mark.parametrize("other", [torch.zeros(4), torch.zeros(3, dtype=torch.float64)])
def test_memory_of_another_kind_is_run_by_python(other: Tensor) -> None:
    def function(x: Tensor) -> Tensor:
        x.data = other.clone()
        return x * 2

    with pytest.raises(UnsupportedError, match="replaces the memory"):
        weft.hybridize(function, whole=True)(torch.ones(3))
    x = torch.ones(3)
    assert torch.equal(weft.hybridize(function, whole=False)(x), other * 2)
    assert torch.equal(x, other)
