"""Code that asks what kind of thing a number is: what stands for it while code is traced answers as the number does."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ways import Work, assert_every_way
from torch import Tensor, nn

import weft
from weft.config import overrides


def is_true(n: int, x: Tensor) -> Tensor:
    return x * 2 if (n > 4) is True else x


def is_not_false(n: int, x: Tensor) -> Tensor:
    return x * 2 if (n > 4) is not False else x


def is_an_int(n: int, x: Tensor) -> Tensor:
    return x * n if isinstance(n, int) else x


def is_one_of(n: int, x: Tensor) -> Tensor:
    return x * n if isinstance(n, (str, numbers.Integral)) and not isinstance(n, float) else x


def is_a_bool(n: int, x: Tensor) -> Tensor:
    return x + (n > 3) if isinstance(n > 3, bool) and type(n > 3) is bool else x


def has_class(n: int, x: Tensor) -> Tensor:
    return x * n if type(n) is int and type(n * 1.5) is float else x


def matched(n: int, x: Tensor) -> Tensor:
    match n:
        case 3 | 5:
            return x * 7
        case int():
            return x * n
        case _:
            return x


def matched_truth(n: int, x: Tensor) -> Tensor:
    match n > 4:
        case True:
            return x * 2
        case _:
            return x


def looked_up(n: int, x: Tensor) -> Tensor:
    return x * {True: 3.0, False: 5.0}[n > 4] + [10, 20][n > 4] + (n in (2, 6))


ASKING: list[Callable[[int, Tensor], Tensor]] = [
    is_true, is_not_false, is_an_int, is_one_of, is_a_bool, has_class, matched, matched_truth, looked_up,
]  # fmt: skip


class Counting(nn.Module):
    """A number that changes at each call."""

    def __init__(self, ask: Callable[[int, Tensor], Tensor]) -> None:
        super().__init__()
        self.ask = ask
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return self.ask(self.n, x)


@pytest.mark.parametrize("way", ["hybridize", "step"])
@pytest.mark.parametrize("ask", ASKING)
def test_a_counted_number_is_asked_for_its_kind(ask: Callable[[int, Tensor], Tensor], way: str) -> None:
    with overrides(whole="off"):
        assert_every_way(lambda: Work(Counting(ask), [((torch.ones(2),), {})] * 7), way)


@pytest.mark.parametrize("ask", ASKING)
def test_an_argument_and_a_size_are_asked_for_their_kind(ask: Callable[[int, Tensor], Tensor]) -> None:
    def make() -> Work:
        def function(n: int, x: Tensor) -> Any:
            return ask(n, x), ask(len(x), x)

        return Work(function, [((n, torch.ones(n)), {}) for n in (1, 2, 3, 4, 5, 6, 7, 1)])

    with overrides(whole="off"):
        assert_every_way(make, "hybridize")


def test_a_number_that_is_read_is_asked_for_its_kind() -> None:
    def make() -> Work:
        def function(x: Tensor) -> Tensor:
            return x * 2 if (x.sum().item() > 4) is True else x

        return Work(function, [((torch.ones(n),), {}) for n in (1, 2, 3, 6, 7, 8, 1)])

    with overrides(whole="off"):
        assert_every_way(make, "hybridize")


ODD: dict[str, Callable[[Tensor], Tensor]] = {
    "mkldnn": lambda x: x.to_mkldnn().to_dense() * 2,
    "uint16": lambda x: torch.zeros(3, dtype=torch.uint16).int() + x,
    "uint64": lambda x: torch.full((3,), 7, dtype=torch.uint64).to(torch.int64) + x,
}


@pytest.mark.parametrize("name", ODD)
def test_layouts_and_dtypes_that_programs_do_not_know_run(name: str) -> None:
    with overrides(whole="off"):
        assert_every_way(lambda: Work(ODD[name], [((torch.ones(3),), {})] * 3), "hybridize", "library")


class Named(torch.Tensor):
    """A tensor of another class."""


MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "parameter": lambda x: (nn.Parameter(x) * 2).detach(),
    "as parameter": lambda x: (x.as_subclass(nn.Parameter) * 2).detach(),
    "of a class": lambda x: x.as_subclass(Named).as_subclass(Tensor) * 2,
    "plain": lambda x: x.as_subclass(Tensor) * 2,
    "of a result": lambda x: (nn.Parameter((x * 2).detach()) * 2).detach(),
    "a list's item": lambda x: x * [1.0, 2.0, 3.0][len(x) - 1],
}


@pytest.mark.parametrize("way", ["hybridize", "lazy"])
@pytest.mark.parametrize("name", MADE)
def test_what_a_stand_in_cannot_become_is_no_exception_that_code_may_catch(name: str, way: str) -> None:
    def make() -> Work:
        def function(x: Tensor) -> Tensor:
            try:
                return MADE[name](x)
            except RuntimeError:
                return x * -1

        return Work(function, [((torch.ones(3),), {})] * 3)

    with overrides(whole="off"):
        assert_every_way(make, way)


KEPT: dict[str, Any] = {"largest": max, "length": len}


def of_builtins(x: Tensor, n: Tensor) -> Tensor:
    y = x * 2 if KEPT["largest"] is max else x
    return y * max(int(n), 4) + (len(x) if KEPT["length"] == len else 0) + {max: 3}.get(KEPT["largest"], 5)


def test_code_that_asks_which_builtins_it_has_gets_them() -> None:
    ours = weft.hybridize(of_builtins, whole=False)
    for size in (3, 5, 7, 2):
        x = torch.ones(3)
        torch.testing.assert_close(ours(x, torch.tensor(size)), of_builtins(x, torch.tensor(size)))
