"""A kernel and a model of the machine -> the seconds that one core takes for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from weft.plan.form.access import Boxes, boxes
from weft.plan.form.plan import Kernel, KernelCall, Plan
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.blocks import Blocks
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.conv_weight import WeightGradientKernel
from weft.plan.kernels.depthwise_weight import DepthwiseWeightKernel
from weft.plan.kernels.expression import Instruction
from weft.plan.kernels.gemm import GemmKernel, PackKernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pool import PoolKernel
from weft.plan.kernels.pool_gradient import PoolGradientKernel
from weft.plan.kernels.reduce import Pass, RowKernel
from weft.plan.kernels.scatter import ScatterKernel
from weft.plan.kernels.schedule_gemm import BLOCK_CYCLES, dot_cycles
from weft.plan.kernels.top import TopKernel
from weft.plan.kernels.walk import Walk
from weft.plan.kernels.winograd import PRODUCTS, WinogradKernel, WinogradStage, WinogradWeightKernel
from weft.plan.memory.arena import live_bytes
from weft.plan.schedule.machine_model import MachineModel

# Cycles of an op on one vector; what is not here takes SIMPLE.
SIMPLE = 0.6
CYCLES_OF_OP = {
    "constant": 0.0,
    "div": 5.0,
    "sqrt": 6.0,
    "rsqrt": 10.0,
    "exp": 9.0,
    "expm1": 14.0,
    "log": 11.0,
    "log1p": 16.0,
    "tanh": 16.0,
    "sigmoid": 14.0,
    "erf": 16.0,
    "sin": 16.0,
    "cos": 16.0,
    "tan": 30.0,
    "pow": 30.0,
    "take": 8.0,
    "remainder": 10.0,
}
STEP_SHARE = 1.03  # of its multiply-adds or loads, whichever take longer, is what a step of a sum takes
LASTING = ("packed", "constant")
MEMORY_CYCLES = 1.0  # per vector loaded or stored
ROW_CYCLES = 6.0  # per row of a loop or reduction, to begin and end it
STRIDED = 4.0  # times as long for vectors of elements that do not lie side by side
SCATTER_CYCLES = 4.0
STEP_CYCLES = 8.0  # of a number that is compared and moved
# Per vector packed: what is packed at a call has just been written, often by another core, and its rows lie far apart.
PACK_CYCLES, PACK_ACROSS_CYCLES = 10.0, 20.0


@dataclass(frozen=True, slots=True)
class CallCost:
    """Seconds of one core for a call: computing, moving to and from caches, and from memory that all cores share.

    Computing and moving overlap. Tiles cost extra.
    """

    computing: float
    moving: float
    from_memory: float


def kernel_seconds(kernel: Kernel, model: MachineModel) -> float:
    """Estimate the seconds of all tiles on one core, with as much as possible in its caches."""
    moved = sum(argument_bytes(kernel))
    moving = moved / model.rate(moved)
    return max(computing_seconds(kernel, model), moving) + kernel.tile_count * model.tile + model.call


def tile_seconds(kernel: Kernel, model: MachineModel) -> float:
    """Estimate the seconds of one tile among the others."""
    return (kernel_seconds(kernel, model) - model.call) / max(kernel.tile_count, 1)


def computing_seconds(kernel: Kernel, model: MachineModel) -> float:
    """Estimate the seconds of a kernel whose data is always at hand."""
    find = CYCLES.get(type(kernel))
    return find(kernel) * model.cycle if find else 0.0


def argument_bytes(kernel: Kernel) -> tuple[int, ...]:
    """Count the bytes of each argument as far as the kernel alone tells."""
    if not kernel.tile_count:
        return ()
    return tuple(found.bytes if found else 0 for found in boxes(kernel, 0, kernel.tile_count) or ())


class PlanCosts:
    """Estimates for the calls of one plan: what lasts from call to call stays in the cache where all of it fits.

    So do intermediates, which are counted together for calls that move more than the second cache holds.
    """

    def __init__(self, plan: Plan, model: MachineModel) -> None:
        self.plan = plan
        self.model = model
        self.live = live_bytes(plan)
        self.lasting = sum(buffer.bytes for buffer in plan.buffers if buffer.kind in LASTING)

    def cost(self, call: KernelCall, found: Boxes) -> CallCost:
        """Estimate what a call costs one core, from the boxes of what it touches."""
        buffers, kernel, model = self.plan.buffers, call.kernel, self.model
        fresh = lasting = 0
        for place, one in zip(call.arguments, found, strict=True):
            buffer = buffers[place.buffer]
            size = min(one.bytes, buffer.bytes) if one else buffer.bytes
            if buffer.kind in LASTING:
                lasting += size
            else:
                fresh += size
        near = far = 0.0
        # What was made before is still in the last cache only if all that is in use at once fits.
        moved = max(fresh, self.live) if fresh > model.l2_bytes else fresh
        for size, together in ((fresh, moved), (lasting, max(lasting, self.lasting))):
            rate = model.rate(together)
            if together > model.l3_bytes:
                far += size / rate
            else:
                near += size / rate
        return CallCost(computing_seconds(kernel, model), near, far)


def _body_cycles(body: Sequence[Instruction]) -> float:
    return sum(CYCLES_OF_OP.get(line.op, SIMPLE) for line in body)


def _vectors(length: int, lanes: int, *, masked: bool) -> int:
    whole, rest = divmod(length, lanes)
    return whole + (bool(rest) if masked else rest)


def _loop(kernel: LoopKernel) -> float:
    schedule = kernel.schedule
    views = (*kernel.outputs, *kernel.inputs)
    memory = sum(
        0.0 if view.strides[-1] == 0 else STRIDED if view.strides[-1] != 1 and number not in schedule.turned else 1.0
        for number, view in enumerate(views, -len(kernel.outputs))
    )
    vectors = _vectors(kernel.columns, schedule.lanes, masked=schedule.masked)
    return kernel.rows * (vectors * (_body_cycles(kernel.body) + memory * MEMORY_CYCLES) + ROW_CYCLES)


def _rows(kernel: RowKernel) -> float:
    expression, schedule = kernel.expression, kernel.schedule
    rows, columns = prod(expression.rows), prod(expression.columns)
    per_vector = per_row = 0.0
    for stage in expression.stages:
        if isinstance(stage, Pass):
            reads = sum(number < len(expression.inputs) for line in stage.body for number in line.operands)
            work = _body_cycles(stage.body) + SIMPLE * len(stage.reductions)
            per_vector += work + MEMORY_CYCLES * (max(reads, 1) + len(stage.stores))
            per_row += ROW_CYCLES
        else:
            per_row += _body_cycles(stage.body) + ROW_CYCLES
    if schedule.along_rows:
        groups = rows // max(kernel.lane_rows, 1) * _vectors(kernel.lane_rows, schedule.lanes, masked=False)
        return groups * (columns * per_vector + per_row)
    return rows * (_vectors(columns, schedule.lanes, masked=schedule.masked) * per_vector + per_row)


def _step_cycles(height: int, width: int) -> float:
    """Estimate the cycles of one step of a register block in a whole product.

    All else that the choice of a block weighs goes on beside the multiply-adds: blocks of 9 x 3 vectors take 1.01 of
    what these do, blocks of 10 x 1 take 1.02, on a Zen 4 core, which does one multiply-add of 512 bits at a time.
    """
    return STEP_SHARE * max(height * width, height + width) / 2


def walk_cycles(walk: Walk, steps: float, epilogue: float = 0.0) -> float:
    """Estimate the cycles of all register blocks of a walk, each so many steps of a sum and an epilogue per vector."""
    return (
        walk.matrices
        * walk.lines
        * walk.visits
        * sum(
            rows * columns * (_step_cycles(height, width) * steps + BLOCK_CYCLES + epilogue * height * width)
            for height, rows in _kinds(walk.row_blocks)
            for width, columns in _kinds(walk.panels)
        )
    )


def _kinds(blocks: Blocks) -> tuple[tuple[int, int], tuple[int, int]]:
    return (blocks.size, blocks.large), (blocks.size - 1, blocks.small)


def _product(kernel: GemmKernel) -> float:
    if kernel.schedule.along_sum:
        panel = dot_cycles(kernel.inner, kernel.schedule.lanes) + BLOCK_CYCLES + _body_cycles(kernel.epilogue.body)
        return kernel.walk.matrices * kernel.rows * kernel.walk.panels.count * panel
    return walk_cycles(kernel.walk, kernel.inner, _body_cycles(kernel.epilogue.body))


def _convolution(kernel: ConvKernel) -> float:
    depth = kernel.depth_done
    if kernel.way == "dot":
        depth *= kernel.out_channels / kernel.schedule.lanes
    return walk_cycles(kernel.walk, depth, _body_cycles(kernel.epilogue.body))


def _weight_gradient(kernel: WeightGradientKernel) -> float:
    return prod(kernel.places) * walk_cycles(kernel.walk, kernel.conv.images * prod(kernel.conv.out_size))


def _depthwise_weight(kernel: DepthwiseWeightKernel) -> float:
    conv = kernel.conv
    vectors = _vectors(conv.out_channels, kernel.schedule.lanes, masked=True)
    return conv.images * prod(conv.out_size) * kernel.places * vectors * 2 * MEMORY_CYCLES


def _winograd(kernel: WinogradKernel) -> float:
    patches, lanes = kernel.images * prod(kernel.squares), kernel.product.schedule.lanes
    transforms = patches * PRODUCTS * 3 * (kernel.in_channels + kernel.out_channels) / lanes
    return kernel.blocks.count * _product(kernel.product) + transforms


def _winograd_stage(stage: WinogradStage) -> float:
    kernel = stage.of
    channels = kernel.in_channels if stage.makes == "patches" else kernel.out_channels
    return kernel.images * prod(kernel.squares) * PRODUCTS * 3 * channels / kernel.product.schedule.lanes


def _winograd_weights(kernel: WinogradWeightKernel) -> float:
    # Nine numbers are copied one by one; the rest is vectors.
    return kernel.out_channels * kernel.in_channels * (9.0 + 7.0 * PRODUCTS / kernel.lanes)


def _pooling(kernel: PoolKernel) -> float:
    seen = prod(kernel.in_size) / max(prod(kernel.out_size), 1) if kernel.adaptive else prod(kernel.window.size)
    numbers = kernel.images * kernel.channels * prod(kernel.out_size)
    return numbers * seen * MEMORY_CYCLES * (2 if kernel.indices else 1) / kernel.schedule.lanes


def _pool_gradient(kernel: PoolGradientKernel) -> float:
    seen = kernel.most_windows(0) * kernel.most_windows(1)
    numbers = kernel.images * kernel.channels * prod(kernel.in_size)
    work = MEMORY_CYCLES * (3 if kernel.indices else 1) * (STRIDED if kernel.schedule.along == "columns" else 1)
    return numbers * seen * work / kernel.schedule.lanes


def _pack(kernel: PackKernel) -> float:
    cycles = PACK_CYCLES if kernel.source.column == 1 else PACK_ACROSS_CYCLES
    return prod(kernel.batch) * kernel.depth * kernel.columns * cycles / kernel.lanes


def _scatter(kernel: ScatterKernel) -> float:
    vectors = _vectors(kernel.columns, kernel.lanes, masked=kernel.masked)
    return kernel.rows * vectors * (_body_cycles(kernel.expression.body) + SCATTER_CYCLES)


def _top(kernel: TopKernel) -> float:
    return kernel.rows * (kernel.extent + kernel.count**2 / 4) * STEP_CYCLES


def _attention(kernel: AttentionKernel) -> float:
    sizes, schedule, blocks = kernel.sizes, kernel.schedule, kernel.row_blocks
    keys = sum(kernel.seen(block) for block in range(blocks.count)) / blocks.count
    element = CYCLES_OF_OP["exp"] + _body_cycles(kernel.body) + 3 * SIMPLE + (4 + len(kernel.inputs)) * MEMORY_CYCLES
    rows = blocks.size * (element * keys / schedule.scores.lanes + 4 * ROW_CYCLES)
    products = _product(kernel.scores(blocks.size)) + _product(kernel.values(blocks.size, sizes.keys))
    return kernel.tile_count * (products * keys / sizes.keys + rows)


def _attention_gradient(kernel: AttentionGradientKernel) -> float:
    sizes, blocks, rows = kernel.sizes, kernel.row_blocks, kernel.row_blocks.size
    keys = sum(kernel.seen(block) for block in range(blocks.count)) / blocks.count
    element = _body_cycles(kernel.body) + (4 + len(kernel.inputs)) * MEMORY_CYCLES
    parts = (kernel.for_query, kernel.for_key, kernel.for_value)
    products = [_product(kernel.scores(rows)), _product(kernel.pull(rows))]
    products += [_product(part(rows, kernel.key_step)) * sizes.keys / kernel.key_step for part in parts]
    vectors = rows * (element * keys / kernel.schedule.scores.lanes + 4 * ROW_CYCLES)
    return kernel.tile_count * blocks.count * (sum(products) * keys / sizes.keys + vectors)


# Kernels are of many classes without a common one; each row's function takes its own.
CYCLES: dict[type, Callable[[Any], float]] = {
    LoopKernel: _loop,
    RowKernel: _rows,
    GemmKernel: _product,
    ConvKernel: _convolution,
    WeightGradientKernel: _weight_gradient,
    DepthwiseWeightKernel: _depthwise_weight,
    WinogradKernel: _winograd,
    WinogradStage: _winograd_stage,
    WinogradWeightKernel: _winograd_weights,
    PoolKernel: _pooling,
    PoolGradientKernel: _pool_gradient,
    PackKernel: _pack,
    ScatterKernel: _scatter,
    TopKernel: _top,
    AttentionKernel: _attention,
    AttentionGradientKernel: _attention_gradient,
}
