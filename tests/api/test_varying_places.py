"""Places that vary in number, among as many as vary: what there is not in a call raises as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it

import weft

Places = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
CASES: dict[str, Places] = {
    "index": lambda x, j: x[j] * 2,
    "index of two dimensions": lambda x, j: x[j, j.abs() % 3] * 2,
    "index_select": lambda x, j: (x + 1).index_select(0, j),
    "gather": lambda x, j: x.gather(0, j[:, None]) + 1,
    "take": lambda x, j: torch.take(x + 1, 3 * j),
    "embedding": lambda x, j: F.embedding(j, x + 1),
    "index_add": lambda x, j: x.index_add(0, j, rows(j)),
    "index_copy": lambda x, j: x.index_copy(0, j, rows(j)) + 1,
    "index_fill": lambda x, j: x.index_fill(0, j, 2.0) + 1,
    "index_put": lambda x, j: x.index_put((j,), rows(j)) + 1,
    "index_put, added": lambda x, j: x.index_put((j,), rows(j), accumulate=True) + 1,
    "scatter": lambda x, j: x.scatter(0, j[:, None].expand(-1, 3), rows(j)) + 1,
    "scatter along the last dimension": lambda x, j: x.t().scatter(1, j.expand(3, -1), rows(j).t()) + 1,
    "scatter_reduce without self": lambda x, j: x.scatter_reduce(
        0, j[:, None].expand(-1, 3), rows(j), "amin", include_self=False
    ),
    "classes": lambda x, j: F.nll_loss((x + 1).t()[:1].expand(j.shape[0], -1), j),
    "classes, one ignored": lambda x, j: F.nll_loss((x + 1).t()[:1].expand(j.shape[0], -1), j, ignore_index=40),
}


def rows(j: torch.Tensor) -> torch.Tensor:
    return torch.arange(j.shape[0] * 3.0).view(-1, 3)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("many", [False, True], ids=["as many places", "more and more places"])
def test_a_place_beyond_a_calls_own_size_is_eagers_error(name: str, many: bool) -> None:
    function = CASES[name]
    hybrid = weft.hybridize(function)
    for number, (size, *places) in enumerate(
        [(10, 1, 2), (12, 4, 2), (11, 1, 10), (11, 1, 11), (9, 11, 1), (9, 1, -10), (9, 40, 8), (15, 14, 9), (7, 6, 0)]
    ):
        x, j = torch.rand(size, 3), torch.tensor(places * (number + 1 if many else 1))
        try:
            right = function(x.clone(), j)
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error)):
                hybrid(x, j)
        else:
            torch.testing.assert_close(hybrid(x, j), right)


@pytest.mark.parametrize("name", ["index_copy", "index_fill", "index_put", "scatter", "scatter_reduce without self"])
def test_replaced_elements_whose_number_varies_are_kernels(name: str) -> None:
    hybrid = weft.hybridize(CASES[name])
    for size in (10, 12, 7, 9):
        x, j = torch.rand(size, 3), torch.arange(size - 3)
        torch.testing.assert_close(hybrid(x, j), CASES[name](x, j))
    assert "0 calls" in weft.program(hybrid, x, j).summary()


def test_a_call_with_a_place_that_kernels_find_changes_nothing_before_it_is_checked() -> None:
    def function(x: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x[j.sum(0)] + x.sum()

    hybrid = weft.hybridize(function)
    for places in ([1, 2], [2, 2], [5, 4], [0, 3]):
        ours, eagers, j = torch.arange(8.0), torch.arange(8.0), torch.tensor(places)
        try:
            right = function(eagers, j)
        except IndexError:
            with pytest.raises(IndexError):
                hybrid(ours, j)
            torch.testing.assert_close(ours, torch.arange(8.0))
        else:
            torch.testing.assert_close(hybrid(ours, j), right)
            torch.testing.assert_close(ours, eagers)
