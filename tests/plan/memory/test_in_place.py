"""Updates of inputs take the inputs' memory where that changes nothing else, and only there."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from tests.plan.test_native_orders import EAGER, HOST, NativeMachine, any_order, serial_order, small

from weft.compile.pipeline import compile_graph
from weft.ir.graph import Graph, Result, Value, Write
from weft.ir.library import Call, Operand
from weft.ir.parser import parse_graph
from weft.ir.types import contiguous
from weft.passes.pipeline import run_pipeline
from weft.plan.check import check_plan
from weft.plan.form.plan import Plan
from weft.plan.fuse.fuse import fuse
from weft.plan.fuse.merge_loops import merge_loops
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.expression import Instruction
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.images import Images
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.winograd import WinogradKernel, WinogradStage
from weft.plan.memory.arena import borrow_outputs, live_bytes, place
from weft.plan.memory.in_place import replaceable, write_in_place, write_over_operands
from weft.plan.regions.region import Region, find_regions, with_regions
from weft.plan.schedule.lanes import schedule
from weft.target import host_target

KIND = contiguous(torch.float32, (8, 16), torch.device("cpu"))


def given(name: str) -> Value:
    return Value("input", (), KIND, name=name)


def made(op: str, *operands: Value) -> Value:
    return Value(op, operands, KIND)


def pairs_of(graph: Graph, owned: Collection[Value] = ()) -> list[tuple[tuple[int, int], ...]]:
    regions = find_regions(graph, frozenset())
    return replaceable(graph, with_regions(graph, regions), regions, owned)


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


def test_before_what_can_fail_only_memory_that_nobody_else_has_is_written_over() -> None:
    cache, row, places = given("cache"), given("row"), given("places")
    new = made("add", cache, row)
    call = Call("aten.msort.default", (Operand(0),), ())
    later = Value("library", (new,), KIND, MappingProxyType({"call": call}))
    graph = Graph("grow", (cache, row, places), (new, later), (Result(later),), (Write(cache, new),))
    assert pairs_of(graph) == [()]
    assert pairs_of(graph, {cache}) == [((0, 0),)]


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


# Intermediates are written over operands that the same kernel's epilogue reads last, and nothing else is.


SIDE = 10
CONVOLUTION = "convolution %{0}, %{1}, stride=[1, 1], padding=[{2}, {2}], dilation=[1, 1], groups={3}"


def convolution(image: str, weight: str, padding: int = 1, groups: int = 1) -> str:
    return CONVOLUTION.format(image, weight, padding, groups)


def network(channels: int, steps: list[str], result: str, images: int = 2) -> str:
    """A graph of images that all have one shape; `w` weighs 3x3, `v` 1x1 and `u` each channel alone."""
    kind = f"f32[{images},{channels},{SIDE},{SIDE}]"
    weights = f"%w: f32[{channels},{channels},3,3], %v: f32[{channels},{channels},1,1], %u: f32[{channels},1,3,3]"
    lines = [f"  %{number}: {kind} = {step}" for number, step in enumerate(steps, 1)]
    return "\n".join([f"graph m(%x: {kind}, {weights}) {{", *lines, f"  return {result}", "}"])


def residual(last: str) -> list[str]:
    """A block whose last convolution is of %2 and is added to %1, between two others."""
    return [convolution("x", "w"), convolution("1", "v", 0), last, "add %3, %1", convolution("4", "v", 0)]


def fused(text: str) -> Plan:
    graph = run_pipeline(parse_graph(text))
    (region,) = find_regions(graph, frozenset(value for value in graph.inputs if value.name in "wvu"))
    plan = merge_loops(fuse(region, HOST).plan, HOST)
    return replace(plan, calls=tuple(replace(call, kernel=small(call.kernel)) for call in plan.calls))


def taken(text: str) -> list[type]:
    """The kernels that write over an operand."""
    calls = write_over_operands(fused(text), 1, HOST).calls
    return [type(call.kernel) for call in calls if {p.buffer for p in call.writes} & {p.buffer for p in call.reads}]


BLOCKS = {
    "Winograd's way": (network(24, residual(convolution("2", "w")), "%5"), WinogradKernel),
    "direct": (network(8, residual(convolution("2", "w")), "%5"), ConvKernel),
    "one place": (network(20, residual(convolution("2", "v", 0)), "%5"), ConvKernel),
    "depthwise": (network(20, residual(convolution("2", "u", 1, 20)), "%5"), ConvKernel),
    "the same pixel of several images": (network(40, residual(convolution("2", "w")), "%5", 16), WinogradKernel),
    "product": (
        """graph m(%x: f32[30,40], %w: f32[40,40]) {
  %1: f32[30,40] = matmul %x, %w
  %2: f32[30,40] = matmul %1, %w
  %3: f32[30,40] = matmul %2, %w
  %4: f32[30,40] = add %3, %1
  %5: f32[30,40] = matmul %4, %w
  return %5
}""",
        GemmKernel,
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_residual_block_ends_where_it_began(name: str) -> None:
    text, kernel = BLOCKS[name]
    assert taken(text) == [kernel]
    before = fused(text)
    assert live_bytes(write_over_operands(before, 1, HOST)) < live_bytes(before)


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("name", BLOCKS)
def test_the_bits_stay_the_same_in_any_order_that_the_waits_allow(name: str, lanes: int) -> None:
    check_orders(fused(BLOCKS[name][0]), lanes, orders=10)


def check_orders(before: Plan, lanes: int, orders: int) -> None:
    expected = NativeMachine(place(before)).run(serial_order(before))
    assert not np.isnan(np.frombuffer(expected[0], np.float32)).any()
    plan = place(borrow_outputs(schedule(write_over_operands(before, 1, HOST), lanes, EAGER), least=64))
    check_plan(plan)
    machine = NativeMachine(plan)
    assert machine.run(serial_order(plan)) == expected
    for seed in range(orders):
        assert machine.run(any_order(plan, seed)) == expected


REFUSED = {
    "read by a later call": network(20, [*residual(convolution("2", "v", 0)), "add %5, %1"], "%6"),
    "read by a convolution on a branch of its own": network(
        20, [*residual(convolution("x", "w"))[:1], convolution("1", "w"), convolution("x", "v", 0), "add %3, %1"],
        "%2, %4",
    ).replace("return %2, %4", f"%5: f32[2,20,{SIDE},{SIDE}] = {convolution('4', 'v', 0)}\n  return %2, %5"),
    "the image too": network(
        20, [convolution("x", "w"), convolution("1", "v", 0), "add %2, %1", convolution("3", "v", 0)], "%4"
    ),
    "read turned": """graph m(%x: f32[40,40], %w: f32[40,40]) {
  %1: f32[40,40] = matmul %x, %w
  %2: f32[40,40] = matmul %1, %w
  %3: f32[40,40] = matmul %2, %w
  %4: f32[40,40] = permute %1, order=[1, 0]
  %5: f32[40,40] = add %3, %4
  %6: f32[40,40] = matmul %5, %w
  return %6
}""",
    "partial sums of a product": """graph m(%x: f32[30,40], %w: f32[40,5000], %v: f32[5000,40], %u: f32[40,40]) {
  %1: f32[30,40] = matmul %x, %u
  %2: f32[30,5000] = matmul %1, %w
  %3: f32[30,40] = matmul %2, %v
  %4: f32[30,40] = add %3, %1
  %5: f32[30,40] = matmul %4, %u
  return %5
}""",
    "an input": network(20, [convolution("x", "w"), convolution("1", "v", 0), "add %2, %x", "sin %3"], "%4"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_must_stay_is_not_written_over(name: str) -> None:
    before = fused(REFUSED[name])
    if name.startswith("partial"):
        assert any(isinstance(call.kernel, GemmKernel) and call.kernel.walk.parts.count > 1 for call in before.calls)
    assert taken(REFUSED[name]) == []
    assert write_over_operands(before, 1, HOST) == before


def test_several_lanes_write_only_large_results_over_an_operand() -> None:
    small, large = fused(BLOCKS["direct"][0]), fused(BLOCKS["direct"][0].replace("f32[2,", "f32[400,"))
    assert write_over_operands(small, 2, HOST) == small
    assert write_over_operands(small, 1, HOST) != small
    assert write_over_operands(large, 2, HOST) != large


def ending(name: str) -> WinogradKernel | ConvKernel | GemmKernel:
    """The kernel of a block that reads the operand, as its third argument to read."""
    text, kind = BLOCKS[name]
    found = [call.kernel for call in fused(text).calls if isinstance(call.kernel, kind) and len(call.reads) == 3]
    [kernel] = found
    assert isinstance(kernel, WinogradKernel | ConvKernel | GemmKernel)
    return kernel


def over(kernel: Kernel, number: int) -> bool:
    return kernel.written_over(0, number, HOST) is kernel


@pytest.mark.parametrize("name", BLOCKS)
def test_results_of_another_kind_are_not_written_over_an_operand(name: str) -> None:
    kernel = ending(name)
    assert over(kernel, 2)
    assert [over(kernel, number) for number in (0, 1, 3)] == [False] * 3
    body = (*kernel.epilogue.body, Instruction("cast", (0,), "i32"))
    assert not over(replace(kernel, epilogue=replace(kernel.epilogue, body=body)), 2)


def test_partial_sums_of_a_convolution_wait_in_the_output() -> None:
    kernel = ending("direct")
    assert isinstance(kernel, ConvKernel)
    in_parts = replace(kernel, schedule=replace(kernel.schedule, channel_block=4, merge_columns=False))
    assert in_parts.walk.parts.count > 1
    assert not over(in_parts, 2)
    assert not over(replace(ending("product"), accumulate=True), 2)


@pytest.mark.parametrize("name", ["direct", "Winograd's way"])
def test_images_that_lie_elsewhere_are_not_written_over(name: str) -> None:
    kernel = ending(name)
    assert isinstance(kernel, ConvKernel | WinogradKernel)
    layout = kernel.output
    wide = layout.column * 2
    for other in (
        replace(layout, offset=1),
        Images(wide * SIDE * SIDE, wide * SIDE, wide, 1),
        Images(layout.image, layout.column, layout.column * SIDE, 1),
    ):
        assert not over(replace(kernel, output=other), 2)


def test_of_two_stages_only_the_one_that_makes_pixels_is_written_over_an_operand() -> None:
    kernel = ending("Winograd's way")
    assert isinstance(kernel, WinogradKernel)
    assert [over(WinogradStage("s", kernel, "pixels"), number) for number in range(3)] == [0, 1, 0]
    assert [over(WinogradStage("s", kernel, "patches"), number) for number in range(2)] == [0, 0]


def random_network(seed: int) -> str:
    """Convolutions of what was made lately, each added to something else that was."""
    dice = random.Random(seed)
    channels, steps, known = dice.choice([8, 20]), [convolution("x", "v", 0)], ["1"]
    kinds = (("w", 1, 1), ("v", 0, 1), ("u", 1, channels))
    for _ in range(dice.randrange(3, 9)):
        recent = known[-3:]
        steps.append(convolution(dice.choice(recent), *dice.choice(kinds)))
        for op in dice.choice([(), ("add",), ("add",), ("add", "sub"), ("relu",)]):
            other = "" if op == "relu" else f", %{dice.choice(recent)}"
            steps.append(f"{op} %{len(steps)}{other}")
        known.append(str(len(steps)))
    results = sorted({known[-1], *dice.sample(known, dice.choice([0, 1]))}, key=int)
    return network(channels, steps, ", ".join(f"%{name}" for name in results), images=1)


def test_random_networks_have_right_plans() -> None:
    shared = 0
    for seed in range(60):
        before = fused(random_network(seed))
        after = write_over_operands(before, 1, HOST)
        shared += after != before
        assert live_bytes(after) <= live_bytes(before)
        for lanes in (1, 2, 3):
            check_plan(place(borrow_outputs(schedule(after, lanes, EAGER), least=64)))
    assert shared > 10


@pytest.mark.parametrize("seed", range(6))
def test_random_networks_compute_the_same_in_any_order(seed: int) -> None:
    check_orders(fused(random_network(seed)), lanes=3, orders=6)
