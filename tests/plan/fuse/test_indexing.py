"""Reads and writes at indices are part of a region, and a wrong index is eager's error, with nothing done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.plan.compiled_regions import disagreements
from torch.nn import functional

import weft
from weft.config import overrides
from weft.ir.graph import Graph
from weft.passes.pipeline import run_pipeline
from weft.plan.fuse.fuse import fuse
from weft.plan.memory.arena import place
from weft.plan.regions.indices import INDEXED
from weft.plan.regions.region import find_regions
from weft.plan.schedule.cost import default_model
from weft.plan.schedule.lanes import schedule
from weft.runtime.executable import NativeExecutable
from weft.runtime.lanes import start_crew
from weft.target import host_target
from weft.trace.lift.lift import lift

PLACES = 7
Case = tuple[Callable[..., torch.Tensor], tuple[int, ...]]
CASES: dict[str, Case] = {
    "embedding": (lambda x, i: functional.embedding(i, x) * 2, (4, 3)),
    "index_select": (lambda x, i: x.exp().index_select(0, i) + 1, (9,)),
    "index_select across": (lambda x, i: x.t().index_select(1, i), (9,)),
    "gather": (lambda x, i: x.gather(0, i).sin(), (5, 4)),
    "gather across": (lambda x, i: x.t().gather(1, i), (5, 6)),
    "indexing": (lambda x, i: x[i] + x[i].sum(), (3, 2)),
    "indexing twice": (lambda x, i: x[i, i // 2], (6,)),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 0), (5, 5)),
    "scatter": (lambda x, i: x.scatter(0, i[:1], 3.0), (2, 4)),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, (i * 0.5).to(x.dtype)), (6, 5)),
    "scatter_add across": (lambda x, i: x.t().scatter_add(1, i, (i * 0.5).to(x.dtype)), (4, 30)),
    "index_add": (lambda x, i: x.index_add(0, i, i[:, None] * x[:1]), (40,)),
    "index_put": (lambda x, i: x.index_put((i,), x[:1] * 2, accumulate=True), (20,)),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, i, (i * 0.5 - 1).to(x.dtype), "amax"), (6, 5)),
    "scatter_reduce anew": (
        lambda x, i: x.scatter_reduce(0, i, (i * 0.5 - 1).to(x.dtype), "amin", include_self=False),
        (6, 5),
    ),
    "scatter_reduce across": (lambda x, i: x.t().scatter_reduce(1, i, (i * 0.5 + 1).to(x.dtype), "prod"), (4, 30)),
    "scatter_reduce to means": (lambda x, i: x.scatter_reduce(0, i, (i * 0.5).to(x.dtype), "mean"), (6, 5)),
    "messages": (lambda x, i: torch.zeros_like(x).index_add(0, i.flip(0), x[i] * i[:, None]), (33,)),
}


def graph_of(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Graph:
    return run_pipeline(lift(weft.program(weft.hybridize(function), *inputs).graph))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_read_or_written_at_indices_is_the_interpreters(name: str, dtype: torch.dtype) -> None:
    function, shape = CASES[name]
    graph = graph_of(function, torch.randn(PLACES, 5).to(dtype), torch.randint(PLACES, shape))
    assert find_regions(graph, frozenset())
    assert not disagreements(graph)


# What is read at places that a reduction finds meets numbers of the same reduction.
FOUND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "beside the place": lambda x: x.gather(-1, x.argmax(-1, keepdim=True)) * x.argmax(-1, keepdim=True),
    "beside another number": lambda x: x.gather(-1, x.argmax(-1, keepdim=True)).exp() * x.sum(-1, keepdim=True),
    "at two places": lambda x: x[torch.arange(5), x.argmin(-1)] * x.argmax(-1) + x.amax(-1),
    "of a table": lambda x: torch.arange(24.0).sin()[x.argmax(-1)].to(x.dtype) * x.argmax(-1),
    "over whole rows": lambda x: (x.gather(-1, x.argmax(-1, keepdim=True).expand(-1, 24)) * x.argmax(-1)[:, None]).sum(
        -1
    ),
    "by how many": lambda x: x.cumsum(-1).gather(-1, (x > 0).sum(-1, keepdim=True)) / (x > 0).sum(-1, keepdim=True),
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_of_rows_beside_what_is_read_at_them_are_the_interpreters(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(5, 24).to(dtype)
    graph = graph_of(FOUND[name], x)
    assert find_regions(graph, frozenset())
    assert not disagreements(graph)
    torch.testing.assert_close(weft.hybridize(FOUND[name])(x), FOUND[name](x))


def test_an_index_is_checked_for_what_writes_before_its_own_constants_are_met() -> None:
    def function(a: torch.Tensor, c: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        c.add_(torch.addmm(c, x, x.t()), alpha=-0.1)
        c[i] = (c.cumsum(0) * 0.1)[: len(i)]
        a[i] = (x @ x.t() * 0.1 + a)[: len(i)]
        return a

    given = [torch.randn(200, 200, dtype=torch.float64) for _ in range(2)]
    x, i = torch.randn(200, 16, dtype=torch.float64), torch.tensor([3, -1, 9])
    ours = [tensor.clone() for tensor in given]
    torch.testing.assert_close(weft.hybridize(function)(*ours, x, i), function(*given, x, i))
    torch.testing.assert_close(ours, given)


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"take_along_dim"}))  # which wraps around
@pytest.mark.parametrize("wrong", [PLACES, -PLACES - 1, 2**40])
def test_an_index_out_of_range_is_eagers_error(name: str, wrong: int) -> None:
    function, shape = CASES[name]
    x, index = torch.randn(PLACES, 5), torch.randint(PLACES, shape)
    with overrides(codegen="native"):
        compiled = weft.hybridize(function)
        right = compiled(x, index)
        assert "0 calls" in weft.program(compiled, x, index).summary()
        strange = index.clone()
        strange.view(-1)[0] = wrong
        with pytest.raises((IndexError, RuntimeError)) as eagers:
            function(x, strange)
        for _ in range(4):  # the call that stands for the usual ones refuses it too
            with pytest.raises(type(eagers.value)):
                compiled(x, strange)
            assert torch.equal(compiled(x, index), right)


# Whether all of it is one region: what can be out of range, and is costly to make, is made in a region before.
MADE = {
    "where the largest is": (lambda x: x[x.argmax(0)] * 2, True),
    "where the smallest of all is": (lambda x: x.flatten().index_select(0, x.argmin().reshape(1)), True),
    "positions": (lambda x: x.gather(0, torch.arange(5).expand(2, 5)), True),
    "clamped": (lambda x: x[x.long().sum(0).clamp(0, PLACES - 1)], True),
    "a remainder that may be negative": (lambda x: x[x.argmax(0) - 1] + 1, True),
    "a sum": (lambda x: x.index_select(0, (x[1:] > 9).long().sum(0)), True),
    "a sum that may be too large": (lambda x: x.index_select(0, (x > 9).long().sum(0) * 2), False),
    "rounded numbers": (lambda x: x.index_select(0, x.sum(0).clamp(0, 1).long()), False),
}


@pytest.mark.parametrize("name", MADE)
def test_an_index_made_in_the_program_is_checked_only_where_it_can_be_wrong(name: str) -> None:
    function, whole = MADE[name]
    x = torch.randn(PLACES, 5)
    with overrides(codegen="native"):
        compiled = weft.hybridize(function)
        assert torch.equal(compiled(x), function(x))
    regions = find_regions(graph_of(function, x), frozenset())
    inside = [value for region in regions for value in region.values if value.op in INDEXED]
    assert (len(regions) == 1 and bool(inside)) == whole


@pytest.mark.parametrize("width", [1, 64, 200])
def test_sums_have_the_same_bits_in_any_number_of_lanes(width: int) -> None:
    x, index = torch.randn(500, width), torch.randint(20, (500,))

    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.zeros(20, width).index_add(0, index, x * 3)

    [region] = find_regions(graph_of(function, x, index), frozenset())
    fused, found = fuse(region, host_target()), []
    start_crew()
    for lanes in (1, 2, 4):
        plan = place(schedule(fused.plan, lanes, default_model(host_target())))
        out = torch.empty(20, width)
        assert NativeExecutable(plan, host_target(), fused.constants)([x, index], [out])
        found.append(out)
    assert all(torch.equal(out, found[0]) for out in found)
    torch.testing.assert_close(found[0], function(x, index), rtol=1e-4, atol=1e-4)
