"""Plans in machine code give the same bits in any order that their waits allow, tile by tile, from memory of garbage.

What a tile may touch is only right if no order that it allows changes anything: here kernels really run in such orders.
"""

import ctypes
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.plan.kernels.examples import finely

from weft.codegen.llvm.module import Module
from weft.codegen.objects.native import compile_native
from weft.codegen.plan_module import KernelFunctions
from weft.ir.parser import parse_graph
from weft.passes.pipeline import run_pipeline
from weft.plan.check import check_plan
from weft.plan.form.plan import Plan, Run, Wait
from weft.plan.fuse.fuse import fuse
from weft.plan.fuse.merge_loops import merge_loops
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.kernel import Kernel, Range
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.winograd import WinogradKernel
from weft.plan.memory.arena import place
from weft.plan.regions.region import find_regions
from weft.plan.schedule.cost import default_model
from weft.plan.schedule.lanes import schedule
from weft.target import host_target

POOL = "ceil_mode=False, count_include_pad=False, divisor_override=None"
GRAPHS = {
    "pools between convolutions": f"""graph m(%x: f32[1,16,24,24], %w: f32[32,16,3,3], %v: f32[32,32,3,3]) {{
  %1: f32[1,32,24,24] = convolution %x, %w, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1
  %2: f32[1,32,24,24] = relu %1
  %3: f32[1,32,12,12] = average_pool %2, kernel_size=[3, 3], stride=[2, 2], padding=[1, 1], {POOL}
  %4: f32[1,32,12,12] = convolution %3, %v, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1
  %5: f32[1,32,12,12] = average_pool %4, kernel_size=[3, 3], stride=[1, 1], padding=[1, 1], {POOL}
  return %5
}}""",
    "strided and dilated": """graph m(%x: f32[1,16,24,24], %w: f32[32,16,3,3], %v: f32[32,1,3,3], %u: f32[16,32,1,1]) {
  %1: f32[1,32,12,12] = convolution %x, %w, stride=[2, 2], padding=[1, 1], dilation=[1, 1], groups=1
  %2: f32[1,32,12,12] = convolution %1, %v, stride=[1, 1], padding=[2, 2], dilation=[2, 2], groups=32
  %3: f32[1,16,12,12] = convolution %2, %u, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=1
  %4: f32[1,16,12,12] = tanh %3
  return %4
}""",
    "one dimension": """graph m(%x: f32[1,16,1,160], %w: f32[32,16,1,3], %v: f32[16,32,1,3]) {
  %1: f32[1,32,1,160] = convolution %x, %w, stride=[1, 1], padding=[0, 8], dilation=[1, 8], groups=1
  %2: f32[1,32,1,160] = tanh %1
  %3: f32[1,16,1,160] = convolution %2, %v, stride=[1, 1], padding=[0, 2], dilation=[1, 2], groups=1
  %4: f32[1,16,1,160] = add %3, %x
  return %4
}""",
    "rows": """graph m(%x: f32[64,96], %w: f32[96,96]) {
  %1: f32[64,1] = sum %x, dimensions=[1], keep=True
  %2: f32[64,96] = expand %1, shape=[64, 96]
  %3: f32[64,96] = sub %x, %2
  %4: f32[64,96] = matmul %3, %w
  %5: f32[64,1] = max %4, dimensions=[1], keep=True
  %6: f32[64,96] = expand %5, shape=[64, 96]
  %7: f32[64,96] = sub %4, %6
  return %7
}""",
}
HOST = host_target()
# Tiles that take long and waits that cost nothing: whatever can be shared out is.
EAGER = replace(default_model(HOST), tile=1e-3, call=1e-3, wait=1e-9, check=1e-9, lane=1e-9, transfer=1e15)
Memory = NDArray[np.uint8]


def planned(text: str, lanes: int) -> Plan:
    graph = run_pipeline(parse_graph(text))
    (region,) = find_regions(graph, frozenset(value for value in graph.inputs if value.name in "wvu"))
    plan = merge_loops(fuse(region, HOST).plan, HOST)
    calls = tuple(replace(call, kernel=small(call.kernel)) for call in plan.calls)
    return place(schedule(replace(plan, calls=calls), lanes, EAGER))


def small(kernel: Kernel) -> Kernel:
    """Cut a kernel into small tiles, packed operands staying as they are."""
    if isinstance(kernel, WinogradKernel):
        return kernel  # a block of it decides how its weights are packed
    if isinstance(kernel, LoopKernel):
        schedule = kernel.schedule
        rows = schedule.block if schedule.transposed else 3
        return replace(kernel, schedule=replace(schedule, row_tile=rows, column_tile=schedule.lanes * schedule.unroll))
    return finely(kernel)


class NativeMachine:
    """Runs a plan's kernels on memory of its own."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        functions = KernelFunctions(Module(HOST))
        calls = (*plan.packing, *plan.calls)
        names = [functions.name(call.kernel) for call in calls]
        self._library = compile_native(str(functions.module), HOST)
        self._functions: list[Callable[..., None]] = []
        for call, name in zip(calls, names, strict=True):
            kinds = [*[ctypes.c_void_p] * len(call.arguments), ctypes.c_int64, ctypes.c_int64]
            self._functions.append(ctypes.CFUNCTYPE(None, *kinds)(self._library.address(name)))

    def run(self, order: Sequence[Run]) -> list[bytes]:
        """Run tiles in an order, on the same inputs always; gives the outputs."""
        made = np.random.default_rng(5)
        arena = aligned(self.plan.arena_bytes)
        memory: list[Memory] = []
        for buffer in self.plan.buffers:
            own = aligned(buffer.bytes)
            if buffer.kind == "input":
                own.view(np.float32)[:] = made.standard_normal(buffer.bytes // 4)
            start = self.plan.offsets[buffer.index] if buffer.kind == "arena" else 0
            memory.append(arena[start:] if buffer.kind == "arena" else own)
        for number, call in enumerate(self.plan.packing):
            self._call(memory, number, 0, call.kernel.tile_count)
        for run in order:
            self._call(memory, len(self.plan.packing) + run.call, run.begin, run.end)
        return [memory[number].tobytes() for number, _ in self.plan.of_kind("output")]

    def _call(self, memory: Sequence[Memory], number: int, begin: int, end: int) -> None:
        call = (*self.plan.packing, *self.plan.calls)[number]
        # SAFETY: the memory of each buffer is as large as the plan says, and held by the caller.
        places = (memory[place.buffer].ctypes.data + place.offset for place in call.arguments)
        self._functions[number](*places, begin, end)


def aligned(size: int) -> Memory:
    """Give memory of numbers that are none, at a cache line."""
    whole = np.full(size + 128, 0xFF, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]


def serial_order(plan: Plan) -> list[Run]:
    return [Run(number, 0, call.kernel.tile_count) for number, call in enumerate(plan.calls)]


def any_order(plan: Plan, seed: int) -> list[Run]:
    """Give tiles in a random order that the waits allow: one lane is fast for a while, then another."""
    dice, done, places = random.Random(seed), [0] * len(plan.lanes), [0] * len(plan.lanes)
    order: list[Run] = []
    while any(place < len(lane) for place, lane in zip(places, plan.lanes, strict=True)):
        number = dice.randrange(len(plan.lanes))
        for _ in range(dice.choice([1, 2, 100])):
            item = plan.lanes[number][places[number]] if places[number] < len(plan.lanes[number]) else None
            if item is None or (isinstance(item, Wait) and done[item.lane] < item.count):
                break
            if isinstance(item, Run):
                order += [Run(item.call, tile, tile + 1) for tile in range(item.begin, item.end)]
                done[number] += 1
            places[number] += 1
    return order


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_give_the_same_bits_in_any_order_that_the_waits_allow(name: str, lanes: int) -> None:
    plan = planned(GRAPHS[name], lanes)
    assert len(plan.lanes) == lanes
    check_plan(plan)
    machine = NativeMachine(plan)
    expected = machine.run(serial_order(plan))
    assert not np.isnan(np.frombuffer(expected[0], np.float32)).any()
    for seed in range(30):
        assert machine.run(any_order(plan, seed)) == expected


def test_boxes_that_are_too_small_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(kernel: ConvKernel, pixels: Range) -> Range:
        first, last = (pixel // kernel.out_size[1] * kernel.window.stride[0] for pixel in (pixels[0], pixels[1] - 1))
        return first, last + 1

    monkeypatch.setattr(ConvKernel, "rows_seen", narrow)
    plan = planned(GRAPHS["strided and dilated"], 2)
    monkeypatch.undo()
    machine = NativeMachine(plan)
    expected = machine.run(serial_order(plan))
    assert any(machine.run(any_order(plan, seed)) != expected for seed in range(30))
