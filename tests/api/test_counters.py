"""Numbers that code counts in Python places: one program takes them as they are, and leaves what eager leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ways import Work, assert_every_way
from torch import nn

import weft
from weft.trace.interception.refusals import REFUSALS

CALLS = 7


class Counter(nn.Module):
    def __init__(self, body: Callable[[Any, torch.Tensor], torch.Tensor], **state: Any) -> None:
        super().__init__()
        self.body = body
        vars(self).update(state)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, x)


def half_more(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.t += 0.5
    return x * self.t


def decays(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.t *= 0.9
    return x + self.t


def average(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.t = self.t * 0.9 + 0.1
    return x * self.t


def thirds(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.t += 1 / 3
    return x - self.t


def down_to_a_branch(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.t -= 0.25
    return x * 2 if self.t > 0.3 else x * 3


def both_kinds(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.n += 1
    self.t += 0.125
    return x * self.n + self.t


def integer_becomes_fraction(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.n += 0.5
    return x * self.n


def in_table(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.table["t"] += 0.5
    self.table["n"] -= 2
    return x * self.table["t"] + self.table["n"]


def in_list(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.items[0] += 1.5
    return x * self.items[0]


def two_at_once(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.t, self.n = self.t + 0.1, self.n + 1
    return x * self.t * self.n


def used_before(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * self.t
    self.t += 0.5
    return y


def not_used(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.t += 0.5
    return x + 1


def by_size(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.n += x.shape[1]
    self.t += x.shape[1] * 0.5
    return x + self.n + self.t


def by_other(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.n += 1
    self.t += self.n
    return x + self.t


def divided(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.n += 1
    return x * (self.n / 7)


def to_the_power(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.n += 1
    return x / (1 - 0.9**self.n)


def warms_up(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.n += 1
    return x * min(1.0, self.n / 4)


def remainder(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.n += 1
    return x + self.n % 3 - self.n // 2


BODIES = [
    half_more, decays, average, thirds, down_to_a_branch, both_kinds, integer_becomes_fraction, in_table, in_list,
    two_at_once, used_before, not_used, by_size, by_other,
    divided, to_the_power, warms_up, remainder,
]  # fmt: skip


def state() -> dict[str, Any]:
    return {"t": 1.0, "n": 0, "table": {"t": 0.5, "n": 3}, "items": [1.0, 2]}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_counted_numbers_are_inputs_and_effects(body: Callable[..., torch.Tensor]) -> None:
    def make() -> Work:
        torch.manual_seed(0)
        return Work(Counter(body, **state()), [((torch.randn(2, 3),), {}) for _ in range(CALLS)])

    assert_every_way(make, "hybridize", "library", "lazy", "step")


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_a_few_programs_do_for_all_counts(body: Callable[..., torch.Tensor]) -> None:
    net = weft.hybridize(Counter(body, **state()))
    for _ in range(12):
        net(torch.ones(2, 3))
    assert net.forward.traces <= 4


def test_what_decides_by_each_fraction_is_refused() -> None:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.t += 0.5
        return x * float(f"{self.t}")

    with pytest.raises(weft.UnsupportedError, match=REFUSALS["counter"][0]):
        weft.hybridize(Counter(body, **state()))(torch.ones(2))
