"""torch.cdist in machine code: as exact as eager, by differences and by products."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.config import overrides

SHAPES = (((5, 3), (7, 3)), ((64, 16), (30, 16)), ((2, 1, 9, 4), (3, 40, 4)), ((1, 1), (1, 1)))


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()).item()


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("mode", ["use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist"])
def test_distances_are_as_exact_as_eagers(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], power: float, mode: str
) -> None:
    def distances(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, y, power, mode)

    x, y = (torch.randn(shape) for shape in shapes)
    exact = torch.cdist(x.double(), y.double(), power, "donot_use_mm_for_euclid_dist")
    with overrides(codegen="native"):
        compiled = weft.hybridize(distances)
        found, eager = compiled(x, y), distances(x, y)
        assert found.shape == eager.shape
        assert error(found, exact) <= 2 * error(eager, exact) + 1e-6
        assert "0 calls" in weft.program(compiled, x, y).summary()


def test_what_is_no_number_stays_none() -> None:
    x = torch.randn(30, 4)
    x[3, 2] = torch.nan
    with overrides(codegen="native"):
        found = weft.hybridize(torch.cdist)(x, torch.randn(40, 4))
    assert torch.equal(found.isnan(), torch.zeros(30, 40, dtype=torch.bool).index_fill(0, torch.tensor([3]), True))


@pytest.mark.parametrize("power", [0.0, 3.0, torch.inf])
def test_other_norms_are_left_to_pytorch(power: float) -> None:
    x, y = torch.randn(5, 3), torch.randn(4, 3)
    with overrides(codegen="native"):
        assert torch.equal(weft.hybridize(lambda x, y: torch.cdist(x, y, power))(x, y), torch.cdist(x, y, power))
