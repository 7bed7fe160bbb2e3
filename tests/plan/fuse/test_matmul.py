"""Products of few rows with the transpose of a large matrix read that matrix in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.plan.compiled_regions import disagreements
from torch import nn
from torch.nn import functional

import weft
from weft.config import overrides
from weft.ir.graph import Graph
from weft.passes.pipeline import run_pipeline
from weft.plan.fuse import matmul
from weft.plan.fuse.fuse import fuse
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.regions.region import find_regions
from weft.target import host_target
from weft.trace.lift.lift import lift

ROWS, INNER, COLUMNS = 32, 200, 256


def linear(x, weight):
    return functional.linear(x, weight)


def two_layers(x, weight):
    hidden = torch.relu(functional.linear(x, weight, weight[:, 0]))
    return hidden, functional.linear(hidden, weight.t()) * x


def with_operands(x, weight):
    found = functional.linear(x, weight)
    return (found + x[:, :1]) * weight[:, 1] + torch.ones(ROWS, COLUMNS).cumsum(0), found.sum(1)


def graph_of(function: Callable[..., object], rows: int = ROWS, inner: int = INNER) -> Graph:
    x, weight = torch.randn(rows, inner), torch.randn(COLUMNS, inner)
    return run_pipeline(lift(weft.program(weft.hybridize(function), x, weight).graph))


def kernels_of(graph: Graph) -> list[object]:
    [region] = find_regions(graph, frozenset())
    return [call.kernel for call in fuse(region, host_target()).plan.calls]


@pytest.mark.parametrize("function", [linear, two_layers, with_operands], ids=lambda function: function.__name__)
@pytest.mark.parametrize("rows", [32, 19])
def test_turned_products_give_the_interpreters_answer(function: Callable[..., object], rows: int) -> None:
    if function is with_operands and rows != ROWS:
        pytest.skip("its table has as many rows")
    assert not disagreements(graph_of(function, rows))


def test_only_the_rows_are_packed() -> None:
    kernels = kernels_of(graph_of(linear))
    [product] = [kernel for kernel in kernels if isinstance(kernel, GemmKernel)]
    [packed] = [kernel for kernel in kernels if isinstance(kernel, PackKernel)]
    assert (product.rows, product.columns, product.inner) == (COLUMNS, ROWS, INNER)
    assert (packed.columns, packed.inner) == (ROWS, INNER)


@pytest.mark.parametrize(("rows", "inner"), [(8, INNER), (ROWS, 100), (128, INNER)])
def test_products_of_few_or_many_rows_or_a_small_matrix_are_not_turned(rows: int, inner: int) -> None:
    products = [kernel for kernel in kernels_of(graph_of(linear, rows, inner)) if isinstance(kernel, GemmKernel)]
    assert [product.rows for product in products] == [rows]


def test_a_matrix_that_several_products_read_is_packed_once_for_all() -> None:
    def twice(x, weight):
        return functional.linear(functional.linear(x, weight)[:, :INNER], weight)

    kernels = kernels_of(graph_of(twice))
    assert [kernel.rows for kernel in kernels if isinstance(kernel, GemmKernel)] == [ROWS, ROWS]
    assert [kernel.columns for kernel in kernels if isinstance(kernel, PackKernel)] == [COLUMNS]


@pytest.mark.parametrize(("rows", "far", "packed"), [(1, True, 0), (2, True, 1), (1, False, 1)])
@torch.no_grad()
def test_one_row_reads_weights_that_are_far_away_where_they_lie(
    monkeypatch: pytest.MonkeyPatch, rows: int, packed: int, *, far: bool
) -> None:
    net, x = nn.Linear(160, 96), torch.randn(rows, 160)
    monkeypatch.setattr(matmul, "MOST_CACHED_BYTES", 1 if far else 1 << 20)
    compiled = weft.hybridize(nn.Sequential(net, nn.ReLU()))
    with overrides(cache_dir=None):
        for _ in range(2):
            torch.testing.assert_close(compiled(x), net(x).relu())
            net.weight.mul_(-1.5)
        assert len(weft.program(compiled, x).plan.regions[0].packing) == packed
