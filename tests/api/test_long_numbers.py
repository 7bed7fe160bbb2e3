"""Numbers that code computes in many steps of others are no endless expressions: first calls end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.api.ways import WAYS, told, way

from weft.config import overrides


@pytest.fixture(autouse=True)
def _ordinarily() -> Any:
    with overrides(whole="off"):
        yield


ROUNDS = 14  # each multiplies the terms of an expression by three or four


def newton(wrap: Any) -> list[Any]:
    """The square root of what is read from a tensor, by Python's numbers."""

    def root(x: torch.Tensor, start: float) -> torch.Tensor:
        value, found = x.item(), start
        for _ in range(ROUNDS):
            found = 0.5 * (found + value / found)
        return x * found

    found = wrap(root)
    return [found(torch.tensor(value), start) for value, start in ((2.0, 1.0), (3.0, 1.5), (5.0, 2.0), (2.0, 1.0))]


def logistic(wrap: Any) -> list[Any]:
    def chaos(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        value = x.item()
        for _ in range(ROUNDS):
            value = 3.7 * value * (1 - value)
        return x + value, value

    found = wrap(chaos)
    return [found(torch.tensor(value)) for value in (0.3, 0.4, 0.3, 0.5)]


def steps(wrap: Any) -> list[Any]:
    """Adaptive steps: how long each is, what was read before it says."""

    def integrate(y: torch.Tensor, step: float) -> tuple[torch.Tensor, int]:
        time, count = 0.0, 0
        while time < 1:
            step = min(step, 1 - time)
            slope = torch.sin(y * 3) - y
            error = (step * (torch.sin((y + step * slope) * 3) - slope)).abs().max().item()
            y, time, count = y + step * slope, time + step, count + 1
            step = step * min(2.0, max(0.3, 0.9 * (0.3 / (error + 1e-9)) ** 0.5))
        return y, count

    found = wrap(integrate)
    return [found(torch.randn(3) * 2, 0.2) for _ in range(4)]


def counted(wrap: Any) -> list[Any]:
    """A number in an object that each call makes another one of, by many steps."""

    class Decay:
        rate = 0.5

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(ROUNDS):
                self.rate = 3.7 * self.rate * (1 - self.rate)
            return x * self.rate

    decay = Decay()
    found = wrap(decay.__call__)
    return [(found(torch.ones(2)), decay.rate) for _ in range(4)]


def sizes(wrap: Any) -> list[Any]:
    def repeated(x: torch.Tensor) -> torch.Tensor:
        count = len(x)
        for _ in range(ROUNDS):
            count = count * (count + 1) % 7 + 1
        return x.sum() * count

    found = wrap(repeated)
    return [found(torch.randn(size)) for size in (3, 4, 6, 9, 3)]


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("case", [newton, logistic, steps, counted, sizes])
def test_numbers_of_many_steps_are_those_of_eager(case: Any, name: str) -> None:
    expected = told(case, lambda function: function)
    assert not isinstance(expected, Exception), expected
    with way(name) as wrap:
        found = told(case, wrap)
    torch.testing.assert_close(found, expected)
