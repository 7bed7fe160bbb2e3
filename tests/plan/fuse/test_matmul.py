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


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 33, 96, 200, 600])
@pytest.mark.parametrize("far", [True, False])
@torch.no_grad()
def test_weights_that_are_far_away_are_read_where_they_lie(
    monkeypatch: pytest.MonkeyPatch, rows: int, *, far: bool
) -> None:
    net, x = nn.Linear(400, 96), torch.randn(rows, 400)
    monkeypatch.setattr(matmul, "MOST_CACHED_BYTES", 1 if far else 1 << 20)
    compiled = weft.hybridize(nn.Sequential(net, nn.ReLU()))
    with overrides(cache_dir=None):
        for _ in range(2):
            torch.testing.assert_close(compiled(x), net(x).relu())
            net.weight.data.mul_(-1.5)
        [region] = weft.program(compiled, x).plan.regions
        assert len(region.packing) == (not far)
        assert region.arena_bytes <= 4 * 400 * min(rows + 16, 216) + 4 * 96 * rows


@torch.no_grad()
def test_layers_that_share_a_far_weight_read_it_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = nn.Linear(192, 192), torch.randn(64, 192)
    monkeypatch.setattr(matmul, "MOST_CACHED_BYTES", 1)
    compiled = weft.hybridize(nn.Sequential(net, nn.ReLU(), net))
    with overrides(cache_dir=None):
        torch.testing.assert_close(compiled(x), net(net(x).relu()))
        [region] = weft.program(compiled, x).plan.regions
    assert not region.packing
    assert [call.kernel.rows for call in region.calls if isinstance(call.kernel, GemmKernel)] == [192, 192]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@torch.no_grad()
def test_only_far_weights_of_the_type_of_sums_are_read_where_they_lie(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    net, x = nn.Linear(400, 96, dtype=dtype), torch.randn(33, 400, dtype=dtype)
    monkeypatch.setattr(matmul, "MOST_CACHED_BYTES", 1)
    compiled = weft.hybridize(nn.Sequential(net, nn.ReLU()))
    with overrides(cache_dir=None):
        torch.testing.assert_close(compiled(x), net(x).relu())
        assert bool(weft.program(compiled, x).plan.regions[0].packing) == (dtype != torch.float64)


@torch.no_grad()
def test_sizes_that_vary_read_far_weights_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "MOST_CACHED_BYTES", 1)
    net = nn.Sequential(nn.Linear(400, 96), nn.GELU(), nn.Linear(96, 400), nn.LayerNorm(400))
    compiled = weft.hybridize(nn.Sequential(net, nn.ReLU()))
    with overrides(cache_dir=None):
        for rows in (3, 40, 57, 11, 100, 33, 1, 15, 16, 17, 64):
            x = torch.randn(rows, 400)
            torch.testing.assert_close(compiled(x), net(x).relu())


def test_products_whose_rows_vary_are_not_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the turned one columns would vary, which are computed in whole panels, and with them all that they are of."""
    monkeypatch.setattr(matmul, "MOST_CACHED_BYTES", 0)
    graph = graph_of(linear)
    [region] = find_regions(graph, frozenset({graph.inputs[1]}))
    for varies, rows in ((False, COLUMNS), (True, ROWS)):
        plan = fuse(region, host_target(), varies=varies).plan
        [product] = [call.kernel for call in plan.calls if isinstance(call.kernel, GemmKernel)]
        assert product.rows == rows
        assert bool(plan.packing) is varies  # panels are kept where they are of as many rows as columns at most
