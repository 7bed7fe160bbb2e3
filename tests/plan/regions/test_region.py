"""Regions are cut by library calls and behind places to be checked; cheap values are made behind the cut."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch

import weft
from weft.ir.graph import Graph, Result, Value
from weft.ir.library import Call, Operand
from weft.ir.types import TensorType, contiguous
from weft.plan.regions.region import find_regions

CPU = torch.device("cpu")
NUMBER_OF_PLACES = contiguous(torch.int64, (1,), CPU)
NUMBER, TENSOR = contiguous(torch.float32, (), CPU), contiguous(torch.float32, (64,), CPU)


def given(name: str, kind: TensorType = TENSOR) -> Value:
    return Value("input", (), kind, name=name)


def made(op: str, *operands: Value, **attributes: Any) -> Value:
    return Value(op, operands, TENSOR, MappingProxyType(attributes))


def by_library(value: Value) -> Value:
    return made("library", value, call=Call("aten.digamma.default", (Operand(0),)))


def regions_of(inputs: tuple[Value, ...], values: tuple[Value, ...], *roots: Value) -> list[tuple[Value, ...]]:
    graph = Graph("graph", inputs, values, tuple(map(Result, roots)))
    return [region.values for region in find_regions(graph, frozenset())]


def test_a_number_is_spread_out_where_it_is_read() -> None:
    x, number = given("x"), given("number", NUMBER)
    before, spread = made("exp", x), made("expand", number, shape=(64,))
    called = by_library(before)
    after = made("mul", called, spread)
    assert regions_of((x, number), (before, spread, called, after), after) == [(before,), (spread, after)]


def test_what_is_handed_over_anyway_is_worked_on_behind_the_call() -> None:
    x = given("x")
    before = made("exp", x)
    doubled = made("add", before, before)
    called = by_library(x)
    after, other = made("mul", called, doubled), made("sub", called, before)
    found = regions_of((x,), (before, doubled, called, after, other), after, other)
    assert found in ([(before,), (doubled, after, other)], [(before, doubled, after, other)])


def test_two_tensors_are_not_stored_instead_of_one() -> None:
    square = contiguous(torch.float32, (8, 8), CPU)
    x, y = given("x", square), given("y", square)
    first, second, third = (Value("matmul", pair, square) for pair in ((x, y), (y, x), (x, x)))
    both = Value("add", (first, second), square)
    called = Value("library", (third,), square, MappingProxyType({"call": Call("aten.digamma.default", (Operand(0),))}))
    after = Value("mul", (called, both), square)
    found = regions_of((x, y), (first, second, third, both, called, after), after)
    assert found == [(first, second, third, both), (after,)]


def test_places_that_kernels_find_are_checked_behind_a_cut_of_their_own() -> None:
    x, where = given("x"), given("where", contiguous(torch.int64, (8,), CPU))
    total = Value("sum", (where,), NUMBER_OF_PLACES, MappingProxyType({"dimensions": (0,), "keep": True}))
    place = Value("add", (total, total), NUMBER_OF_PLACES)  # what the check reads lies in memory: it does not move
    found = Value("take", (x, place), contiguous(torch.float32, (1,), CPU), MappingProxyType({"dimension": 0}))
    doubled = Value("add", (found, found), found.type)
    assert regions_of((x, where), (total, place, found, doubled), doubled) == [(total, place), (found, doubled)]


def test_a_call_that_needs_nothing_native_cuts_nothing() -> None:
    x = given("x")
    before, called = made("exp", x), by_library(x)
    after = made("mul", called, before)
    assert regions_of((x,), (before, called, after), after) == [(before, after)]


def test_nor_does_one_that_fills_memory_made_of_nothing() -> None:
    x, zero = given("x"), made("constant", tensor=torch.zeros(64))
    memory, before = made("neg", zero), made("exp", x)
    called = by_library(memory)
    after = made("mul", called, before)
    found = regions_of((x,), (zero, memory, before, called, after), after)
    assert found == [(zero, memory), (before, after)]


def test_a_call_stays_behind_one_that_keeps_order_with_it() -> None:
    x = given("x")
    before = made("exp", x)
    first, second = by_library(before), by_library(x)
    after = made("mul", second, before)
    assert regions_of((x,), (before, first, second, after), first, after) == [(before,), (after,)]


def test_what_is_handed_out_stays() -> None:
    x = given("x")
    doubled = made("add", x, x)
    called = by_library(made("exp", x))
    exponent = called.operands[0]
    after = made("mul", called, doubled)
    found = regions_of((x,), (doubled, exponent, called, after), doubled, after)
    assert found == [(doubled, exponent), (after,)]


# Regions as single values: what only a region reads is not left outside of it.


def test_a_constant_that_only_a_region_reads_is_not_left_outside() -> None:
    program = weft.program(lambda x: x * 2, torch.ones(3))
    assert program._execute._alone == (0,)


def test_a_weight_that_several_products_read_alike_is_packed_once() -> None:
    weight = torch.randn(8, 8)
    layer = torch.nn.Linear(8, 8, bias=False)
    layer.weight = torch.nn.Parameter(weight)
    with torch.no_grad():
        net = torch.nn.Sequential(layer, torch.nn.Tanh(), layer, torch.nn.Tanh(), layer)
        program = weft.program(net, torch.randn(4, 8))
    assert len(program._execute.regions[0].plan.packing) == 1


def test_a_program_of_library_calls_that_ends_in_a_check_has_an_order() -> None:
    matrix = torch.eye(3) * 2
    for function in (torch.linalg.inv, torch.linalg.cholesky, torch.linalg.lu_factor):
        torch.testing.assert_close(weft.hybridize(function)(matrix), function(matrix))
