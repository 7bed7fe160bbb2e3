"""Whole numbers among the arguments vary as sizes do: how many nodes, how many classes, how far to pad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import weft

NUMBERS = (9, 12, 7, 15, 33, 20, 5, 18, 9, 33)
MOST_PROGRAMS = 6  # one for the first call, one for a range each, and one that was for too many


def edges(nodes: int) -> tuple[Any, ...]:
    """Rows that belong to nodes, how many there are, and no tensor that says so."""
    rows = 3 * nodes + nodes % 4
    return torch.randint(0, nodes, (rows,)), torch.randn(rows, 4, requires_grad=True), nodes


def rows(number: int) -> tuple[Any, ...]:
    return torch.randn(40, 4, requires_grad=True), number


def both(number: int) -> tuple[Any, ...]:
    return torch.randn(3 * number, 4, requires_grad=True), number


def mean_of_neighbours(index: torch.Tensor, values: torch.Tensor, nodes: int) -> torch.Tensor:
    sums = torch.zeros(nodes, 4).index_add(0, index, values)
    return sums / torch.zeros(nodes).index_add(0, index, torch.ones(len(index))).clamp(min=1)[:, None]


def softmax_of_neighbours(index: torch.Tensor, values: torch.Tensor, nodes: int) -> torch.Tensor:
    places = index[:, None].expand(-1, 4)
    highest = torch.full((nodes, 4), -9.0).scatter_reduce(0, places, values.detach(), "amax")
    powers = (values - highest[index]).exp()
    return powers / torch.zeros(nodes, 4).scatter_add(0, places, powers)[index]


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "sums of neighbours": (lambda i, x, n: torch.zeros(n, 4).index_add(0, i, x), edges),
    "means of neighbours": (mean_of_neighbours, edges),
    "softmax over neighbours": (softmax_of_neighbours, edges),
    "classes": (lambda i, x, n: functional.one_hot(i, n).float().T @ x, edges),
    "numbers counted": (lambda x, n: x.sum() + torch.arange(n), both),
    "no size": (lambda x, n: x * n, both),
    "half of it": (lambda x, n: x[: n // 2].sum(0) * (n - 1), both),
    "decides": (lambda x, n: x * n if n > 4 else x + n, both),
    "zeros alone": (lambda x, n: x.sum() + torch.zeros(n), rows),
    "times": (lambda x, n: x.repeat(n, 1), rows),
    "padded": (lambda x, n: functional.pad(x, (0, 0, n, 0)), rows),
    "first": (lambda x, n: x[:n], rows),
    "largest": (lambda x, n: x[:, 0].topk(n)[0], rows),
    "sized": (lambda x, n: functional.interpolate(x.T[None], size=n), rows),
    "square": (lambda x, n: x.sum() + torch.eye(n), rows),
}


@pytest.mark.parametrize("carries", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_vary_as_sizes_do(name: str, carries: bool) -> None:
    function, arguments = PROGRAMS[name]
    hybrid = weft.hybridize(function)
    with torch.set_grad_enabled(carries):
        for number in NUMBERS:
            given = arguments(number)
            found, expected = hybrid(*given), function(*given)
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()
            leaves = [one for one in given if isinstance(one, torch.Tensor) and one.requires_grad]
            if carries and expected.requires_grad:
                weight = torch.randn_like(expected)
                ours, eagers = (torch.autograd.grad((one * weight).sum(), leaves) for one in (found, expected))
                torch.testing.assert_close(ours, eagers)
    assert hybrid.traces <= MOST_PROGRAMS, weft.explain(hybrid)


def test_a_number_of_0_or_1_has_a_program_of_its_own() -> None:
    hybrid = weft.hybridize(lambda x, n: torch.zeros(n, 4).index_add(0, (x[:, 0] * 0).long(), x) if n else x[:0])
    with torch.no_grad():
        for number in (9, 12, 1, 0, 20, 1, 0):
            x = torch.randn(3 * number + 2, 4)
            expected = torch.zeros(number, 4).index_add(0, (x[:, 0] * 0).long(), x) if number else x[:0]
            torch.testing.assert_close(hybrid(x, number), expected)


def test_a_number_that_becomes_something_else_is_looked_at() -> None:
    hybrid = weft.hybridize(functional.one_hot)
    for number in (9, 12, 7, 15, 15):
        hybrid(torch.randint(0, number, (3 * number,)), number)
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        hybrid(torch.tensor([1, 30, 2]), 20)
    with pytest.raises(RuntimeError, match="non-negative"):
        hybrid(torch.tensor([1, -1, 2]), 20)
    assert hybrid(torch.tensor([0, 1, 0]), True + 1).shape == (3, 2)


def test_numbers_beside_tensors_of_the_same_size_are_that_size() -> None:
    hybrid = weft.hybridize(lambda x, n: x.reshape(n, 4) + torch.arange(n)[:, None])
    with torch.no_grad():
        for number in NUMBERS:
            x = torch.randn(number, 4)
            torch.testing.assert_close(hybrid(x, number), x + torch.arange(number)[:, None])
        with pytest.raises(RuntimeError, match="invalid for input"):
            hybrid(torch.randn(8, 4), 7)
    assert hybrid.traces <= MOST_PROGRAMS
