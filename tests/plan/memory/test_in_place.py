"""Updates of inputs take the inputs' memory where that changes nothing else, and only there."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

from weft.compile.pipeline import compile_graph
from weft.ir.graph import Graph, Result, Value, Write
from weft.ir.parser import parse_graph
from weft.ir.types import contiguous
from weft.plan.fuse.fuse import fuse
from weft.plan.memory.in_place import write_in_place
from weft.plan.memory.replaceable import replaceable
from weft.plan.regions.native_values import with_regions
from weft.plan.regions.region import Region, find_regions
from weft.target import host_target

KIND = contiguous(torch.float32, (8, 16), torch.device("cpu"))


def given(name: str) -> Value:
    return Value("input", (), KIND, name=name)


def made(op: str, *operands: Value) -> Value:
    return Value(op, operands, KIND)


def pairs_of(graph: Graph) -> list[tuple[tuple[int, int], ...]]:
    regions = find_regions(graph, frozenset())
    return replaceable(graph, with_regions(graph, regions), regions)


def region(inputs: tuple[Value, ...], values: tuple[Value, ...], outputs: tuple[Value, ...]) -> Region:
    return Region(inputs, values, outputs, frozenset())


def test_an_elementwise_update_takes_its_inputs_memory() -> None:
    weight, gradient = given("weight"), given("gradient")
    new = made("add", weight, gradient)
    plan = fuse(region((weight, gradient), (new,), (new,)), host_target()).plan
    changed, done = write_in_place(plan, [(0, 0)], host_target())
    assert done == ((0, 0),)
    [call] = changed.calls
    assert changed.buffers[call.writes[0].buffer].kind == "input"
    assert call.kernel.in_place  # type: ignore[union-attr]


def test_what_reads_the_old_elements_comes_first() -> None:
    weight, gradient = given("weight"), given("gradient")
    new, old_read_later = made("add", weight, gradient), made("exp", weight)
    plan = fuse(region((weight, gradient), (new, old_read_later), (new, old_read_later)), host_target()).plan
    changed, done = write_in_place(plan, [(0, 0)], host_target())
    assert done == ((0, 0),)
    source = next(number for number, buffer in changed.of_kind("input") if buffer.index == 0)
    writer = next(n for n, call in enumerate(changed.calls) if any(p.buffer == source for p in call.writes))
    assert writer == len(changed.calls) - 1


def test_two_inputs_that_change_places_are_not_written_over() -> None:
    first, second = given("first"), given("second")
    sum_, difference = made("add", first, second), made("sub", first, second)
    graph = Graph("swap", (first, second), (sum_, difference), (), (Write(first, sum_), Write(second, difference)))
    run = compile_graph(graph, frozenset())
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    expected = (x + y, x - y)
    for found, wanted in zip(run([x, y]), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_turned_update_gets_memory_of_its_own() -> None:
    square = contiguous(torch.float32, (16, 16), torch.device("cpu"))
    weight = Value("input", (), square, name="weight")
    turned = Value(
        "permute",
        (weight,),
        contiguous(torch.float32, (16, 16), torch.device("cpu")),
        MappingProxyType({"order": (1, 0)}),
    )
    new = Value("exp", (turned,), square)
    plan = fuse(region((weight,), (turned, new), (new,)), host_target()).plan
    assert write_in_place(plan, [(0, 0)], host_target())[1] == ()


def test_a_value_that_is_handed_out_too_is_no_replacement() -> None:
    weight, gradient = given("weight"), given("gradient")
    new = made("add", weight, gradient)
    write = (Write(weight, new),)
    assert pairs_of(Graph("update", (weight, gradient), (new,), (), write)) == [((0, 0),)]
    assert pairs_of(Graph("update", (weight, gradient), (new,), (Result(new),), write)) == [()]


def kept_rows(cache: Value, row: Value) -> tuple[Value, ...]:
    """The values that put a row into a cache, between the rows before it and those after it."""
    parts = [
        Value(
            "slice",
            (cache,),
            contiguous(torch.float32, (stop - start, 16), torch.device("cpu")),
            MappingProxyType({"start": (start, 0), "stop": (stop, 16), "step": (1, 1)}),
        )
        for start, stop in ((0, 3), (4, 8))
    ]
    new = Value("concat", (parts[0], row, parts[1]), KIND, MappingProxyType({"dimension": 0}))
    return (*parts, new)


ROW = contiguous(torch.float32, (1, 16), torch.device("cpu"))


def test_rows_that_stay_are_not_copied() -> None:
    cache, row = given("cache"), Value("input", (), ROW, name="row")
    values = kept_rows(cache, row)
    plan = fuse(region((cache, row), values, (values[-1],)), host_target()).plan
    changed, done = write_in_place(plan, [(0, 0)], host_target())
    assert done == ((0, 0),)
    assert len(plan.calls) == 3
    [call] = changed.calls
    assert changed.buffers[call.writes[0].buffer].kind == "input"


def test_what_reads_the_old_rows_comes_before_the_new_one() -> None:
    cache, row = given("cache"), Value("input", (), ROW, name="row")
    values, late = kept_rows(cache, row), made("exp", cache)
    plan = fuse(region((cache, row), (*values, late), (values[-1], late)), host_target()).plan
    changed, done = write_in_place(plan, [(0, 0)], host_target())
    assert done == ((0, 0),)
    first, last = changed.calls
    assert [changed.buffers[place.buffer].kind for place in (*first.writes, *last.writes)] == ["output", "input"]


def test_rows_made_of_old_ones_get_memory_of_their_own() -> None:
    cache = given("cache")
    first = Value("slice", (cache,), ROW, MappingProxyType({"start": (0, 0), "stop": (1, 16), "step": (1, 1)}))
    values = kept_rows(cache, first)
    plan = fuse(region((cache,), (first, *values), (values[-1],)), host_target()).plan
    assert write_in_place(plan, [(0, 0)], host_target())[1] == ()


def of_a_product(text: str, inner: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Run a graph whose result is written into its last input; gives it, and whether that had memory of its own."""
    graph = parse_graph(text.format(inner))
    result = graph.results[0].value
    run = compile_graph(replace(graph, results=(), writes=(Write(graph.inputs[-1], result),)), frozenset())
    [found] = run(tensors)
    return found, found is not tensors[-1]


MOMENTUM = """graph m(%g: f32[30,{0}], %x: f32[{0},50], %m: f32[30,50]) {{
  %1: f32[30,50] = matmul %g, %x
  %2: f32[30,50] = mul %m, %m
  %3: f32[30,50] = add %1, %2
  return %3
}}"""


@pytest.mark.parametrize("inner", [0, 1, 8, 64])
def test_what_follows_a_product_is_written_over_what_it_reads(inner: int) -> None:
    left, right, momentum = torch.randn(30, inner), torch.randn(inner, 50), torch.randn(30, 50)
    expected = left @ right + momentum * momentum
    found, own = of_a_product(MOMENTUM, inner, left, right, momentum)
    assert not own
    torch.testing.assert_close(found, expected)


def test_partial_sums_are_not_written_over_what_is_read_at_the_end() -> None:
    left, right, momentum = torch.randn(30, 5000), torch.randn(5000, 50), torch.randn(30, 50)
    expected = left @ right + momentum * momentum
    found, own = of_a_product(MOMENTUM, 5000, left, right, momentum)
    assert own
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_a_factor_is_not_written_over() -> None:
    text = """graph m(%x: f32[{0},{0}], %m: f32[{0},{0}]) {{
      %1: f32[{0},{0}] = matmul %m, %x
      %2: f32[{0},{0}] = add %1, %m
      return %2
    }}"""
    x, m = torch.randn(2, 16, 16)
    expected = m @ x + m
    found, own = of_a_product(text, 16, x, m)
    assert own
    torch.testing.assert_close(found, expected)


def test_what_is_read_turned_is_not_written_over() -> None:
    text = """graph m(%x: f32[{0},{0}], %y: f32[{0},{0}], %m: f32[{0},{0}]) {{
      %1: f32[{0},{0}] = matmul %x, %y
      %2: f32[{0},{0}] = permute %m, order=[1, 0]
      %3: f32[{0},{0}] = add %1, %2
      return %3
    }}"""
    x, y, m = torch.randn(3, 16, 16)
    expected = x @ y + m.t()
    torch.testing.assert_close(of_a_product(text, 16, x, y, m)[0], expected)


def test_a_border_that_fills_all_at_first_is_not_written_over_what_it_borders() -> None:
    graph = parse_graph("""graph p(%x: f32[2,3]) {
      %1: f32[2,3] = pad %x, low=[0, 0], high=[0, 0], value=0
      return %1
    }""")
    run = compile_graph(
        replace(graph, results=(), writes=(Write(graph.inputs[0], graph.results[0].value),)), frozenset()
    )
    x = torch.randn(2, 3)
    expected = x.clone()
    [found] = run((x,))
    assert torch.equal(found, expected)
