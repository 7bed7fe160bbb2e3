"""A plan -> text: its calls with sizes and estimated times, its lanes with runs and waits, its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.errors import counted
from weft.plan.form.dependencies import Footprints
from weft.plan.form.order import lanes_of
from weft.plan.form.plan import Kernel, KernelCall, Location, Plan, Run
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.conv_weight import WeightGradientKernel
from weft.plan.kernels.depthwise_weight import DepthwiseWeightKernel
from weft.plan.kernels.gemm import GemmKernel, PackKernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pool import PoolKernel
from weft.plan.kernels.pool_gradient import PoolGradientKernel
from weft.plan.kernels.reduce import RowKernel
from weft.plan.kernels.scatter import ScatterKernel
from weft.plan.kernels.top import TopKernel
from weft.plan.kernels.winograd import WinogradKernel, WinogradStage, WinogradWeightKernel
from weft.plan.memory.arena import live_bytes
from weft.plan.schedule.machine_model import MachineModel
from weft.plan.schedule.timetable import CallCosts

MICROSECOND = 1e-6


def plan_text(plan: Plan, model: MachineModel) -> str:
    """Describe a plan, one line a call and one a lane; times are microseconds on one core, as the model estimates."""
    costs = CallCosts(Footprints(plan), model)
    total = sum(costs.whole) / MICROSECOND
    lines = [
        f"plan of {counted(len(plan.calls), 'call')}, {counted(sum(costs.tiles), 'tile')}, {total:.1f} us on one lane"
    ]
    for number, call in enumerate(plan.calls):
        time = costs.whole[number] / MICROSECOND
        lines.append(f"  call {number:<4} {time:>9.1f} us  {describe(call.kernel)}  {_arguments(plan, call)}")
    for number, lane in enumerate(lanes_of(plan)):
        lines.append(f"  lane {number}: " + ", ".join(_item(plan, item) for item in lane))
    if plan.packing:
        lines.append(f"  packing when a weight has changed: {counted(len(plan.packing), 'call')}")
    lines.append(f"  arena of {plan.arena_bytes} bytes, {live_bytes(plan)} in use at once at most in order")
    return "\n".join(lines)


def describe(kernel: Kernel) -> str:
    """Name a kernel's kind, its sizes and its tiles."""
    find = SIZES.get(type(kernel))
    sizes = find(kernel) if find else ""
    return f"{type(kernel).__name__.removesuffix('Kernel').lower()} {sizes} in {counted(kernel.tile_count, 'tile')}"


def _arguments(plan: Plan, call: KernelCall) -> str:
    def name(place: Location) -> str:
        buffer = plan.buffers[place.buffer]
        return f"{buffer.kind}{buffer.index}" + (f"+{place.offset}" if place.offset else "")

    return f"{', '.join(map(name, call.writes))} = f({', '.join(map(name, call.reads))})"


def _item(plan: Plan, item: Any) -> str:
    if not isinstance(item, Run):
        return f"wait for {item.count} of lane {item.lane}"
    whole = (item.begin, item.end) == (0, plan.calls[item.call].kernel.tile_count)
    return f"{item.call}" if whole else f"{item.call}[{item.begin}:{item.end}]"


def _by(*sizes: int) -> str:
    return "x".join(map(str, sizes))


def _convolution(kernel: ConvKernel) -> str:
    window, groups = kernel.window, f" in {kernel.groups} groups" if kernel.groups > 1 else ""
    channels = f"{kernel.in_channels} to {kernel.out_channels}{groups}"
    return f"{_by(*window.size)}, {channels}, {kernel.images} images of {_by(*kernel.out_size)}"


def _attention(kernel: AttentionKernel | AttentionGradientKernel) -> str:
    sizes = kernel.sizes
    causal = ", causal" if kernel.schedule.key_block else ""
    return f"{_by(*sizes.batch, sizes.rows, sizes.keys)}, {sizes.inner} to {sizes.columns}{causal}"


# Kernels are of many classes without a common one; each row's function takes its own.
SIZES: dict[type, Callable[[Any], str]] = {
    LoopKernel: lambda kernel: f"{_by(*kernel.sizes)}, {len(kernel.body)} ops",
    RowKernel: lambda kernel: f"{_by(*kernel.expression.rows)} rows of {_by(*kernel.expression.columns)}",
    GemmKernel: lambda kernel: _by(*kernel.batch, kernel.rows, kernel.columns, kernel.inner),
    ConvKernel: _convolution,
    WeightGradientKernel: lambda kernel: f"{_by(*kernel.conv.window.size)}, {kernel.conv.images} images",
    DepthwiseWeightKernel: lambda kernel: f"{_by(*kernel.conv.window.size)}, {kernel.conv.images} images",
    WinogradKernel: lambda kernel: f"{kernel.in_channels} to {kernel.out_channels}, {kernel.images} images",
    WinogradStage: lambda stage: f"{stage.makes} of {_by(stage.of.in_channels, stage.of.out_channels)}",
    WinogradWeightKernel: lambda kernel: f"{kernel.in_channels} to {kernel.out_channels}",
    PoolKernel: lambda kernel: f"{kernel.kind} of {kernel.images}x{kernel.channels} images of {_by(*kernel.out_size)}",
    PoolGradientKernel: lambda kernel: f"{kernel.images}x{kernel.channels} images of {_by(*kernel.in_size)}",
    PackKernel: lambda kernel: _by(*kernel.batch, kernel.depth, kernel.columns),
    AttentionKernel: _attention,
    AttentionGradientKernel: _attention,
    TopKernel: lambda kernel: f"{kernel.rows} rows of {kernel.extent}",
    ScatterKernel: lambda kernel: f"{kernel.expression.join} of {_by(*kernel.expression.sizes)}",
}
