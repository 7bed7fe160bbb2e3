"""Where the order of sums is the same, a program for many sizes gives bit for bit what one for these sizes gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.api.test_varying_threads import one_general_program
from torch import nn

import weft
from weft.config import overrides
from weft.plan.kernels.gemm import FEW_ROWS

# Exact products of fewer rows add up in shorter chains (weft.plan.kernels.gemm.FEW_ROWS): another order.
LEAST_ROWS = {"layers": FEW_ROWS + 1}
ROWS = (2, 3, 5, 8, 13, 16, 17, 31, 33, 47, 48)
PROGRAMS: dict[str, tuple[Callable[[], Callable[..., Any]], tuple[int, ...]]] = {
    "elementwise": (lambda: lambda x: torch.tanh(x) * x.sigmoid(), (40,)),
    "softmax of rows": (lambda: lambda x: (x * 2).softmax(-1), (70,)),
    "softmax of columns": (lambda: lambda x: (x * 2).softmax(0), (40,)),
    "sum of columns": (lambda: lambda x: (x * 2).sum(0), (40,)),
    "highest of columns": (lambda: lambda x: x.amax(0), (40,)),
    "norm": (lambda: nn.LayerNorm(48), (48,)),
    "layers": (lambda: nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48)), (64,)),
    "products of columns": (lambda: lambda x: x.T @ x, (40,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_general_program_has_the_bits_of_an_exact_one(name: str) -> None:
    make, shape = PROGRAMS[name]
    torch.manual_seed(0)
    function = make()
    run = function.forward if isinstance(function, nn.Module) else function
    with torch.no_grad(), one_general_program():
        general = weft.hybridize(run)
        for rows in (40, 48):
            general(torch.randn(rows, *shape))
        for rows in (count for count in ROWS if count >= LEAST_ROWS.get(name, 0)):
            x = torch.randn(rows, *shape)
            assert torch.equal(general(x), weft.hybridize(run)(x)), f"{rows} rows"
        assert general.traces == 2


def test_a_program_of_pytorchs_operators_has_eagers_bits_at_every_size() -> None:
    torch.manual_seed(0)
    layers, norm = nn.Linear(4, 4), nn.LayerNorm(4)
    parameters = (*layers.parameters(), *norm.parameters())

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(norm(layers(x * 1.0))).cumsum(0)

    with overrides(codegen="library"), one_general_program():
        general = weft.hybridize(run)
        for rows in (2, 5, 3, 4, 7, 11, 13, 5, 2):
            x, cotangent = torch.randn(rows, 4), torch.randn(rows, 4)
            expected = torch.autograd.grad(run(x), parameters, cotangent)
            found = general(x)
            assert torch.equal(found, run(x)), f"{rows} rows"
            for ours, theirs in zip(torch.autograd.grad(found, parameters, cotangent), expected, strict=True):
                assert torch.equal(ours, theirs), f"{rows} rows"
        assert general.traces <= 3
