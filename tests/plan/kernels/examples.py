"""A small kernel of each kind: what every kind must say about itself is tried on them.

A new kind has a row here; `test_kinds.py` names a kind that has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from weft.ir.parser import parse_graph
from weft.passes.pipeline import run_pipeline
from weft.plan.fuse.fuse import fuse
from weft.plan.kernels.attention import AttentionKernel, AttentionSizes, choose_attention
from weft.plan.kernels.attention_gradient import AttentionGradientKernel, AttentionOperands, choose_attention_gradient
from weft.plan.kernels.conv import ConvKernel, ConvSizes
from weft.plan.kernels.expression import Instruction
from weft.plan.kernels.gemm import GemmKernel, Matrix, choose_schedule
from weft.plan.kernels.images import ImageWindow
from weft.plan.kernels.kernel import KINDS, Kernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pool import PoolGradientKernel, PoolKernel
from weft.plan.kernels.reduce import RowKernel
from weft.plan.kernels.winograd import WinogradKernel, WinogradStage, winograd_product
from weft.plan.regions.region import find_regions
from weft.target import host_target

HOST = host_target()
CONVOLUTION = """graph m(%x: f32[2,{0},9,9], %w: f32[{1},{0},3,3]) {{
  %1: f32[2,{1},9,9] = convolution %x, %w, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=1
  %2: f32[2,{1},9,9] = relu %1
  return %2
}}"""
WEIGHT_GRADIENT = """graph m(%x: f32[2,20,9,9], %g: f32[2,20,9,9]) {{
  %1: f32[20,{1},3,3] = convolution_weight_gradient %x, %g, stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups={0},\
 shape=[20, {1}, 3, 3]
  return %1
}}"""
GATHER = """graph m(%x: f32[7,5], %i: i64[4,5]) {
  %1: f32[4,5] = gather %x, %i, dimension=0
  return %1
}"""
SCATTER = """graph m(%x: f32[7,40], %i: i64[6,40], %s: f32[6,40]) {
  %1: f32[7,40] = scatter_add %x, %i, %s, dimension=0
  return %1
}"""
TOP = """graph m(%x: f32[300,9]) {
  %1: i64[300,2] = top_places %x, count=2, largest=True, sorted=True
  return %1
}"""
RECURRENT = """graph m(%x: f32[7,5,32], %w: f32[32,8], %h: f32[5,8], %c: f32[5,8]) {
  %1: (f32[7,5,8], f32[5,8]) = recurrent %x, %w, %h, %c, cell="lstm", reverse=False
  %2: f32[7,5,8] = item %1, index=0
  %3: f32[5,8] = item %1, index=1
  return %2, %3
}"""
LOOP = """graph m(%x: f32[40,50], %y: f32[50,40]) {
  %1: f32[40,50] = permute %y, order=[1, 0]
  %2: f32[40,50] = mul %x, %1
  %3: f32[40,50] = exp %2
  return %3
}"""
SUMS = """graph m(%x: f32[12,5,40]) {
  %1: f32[12,5] = sum %x, dimensions=[2], keep=False
  return %1
}"""
PRODUCT = """graph m(%x: f32[30,40], %w: f32[40,50], %r: f32[30,50]) {
  %1: f32[30,50] = matmul %x, %w
  %2: f32[30,50] = mul %1, %r
  return %2
}"""
POOLING = (
    "kernel_size=[3, 3], stride=[1, 1], padding=[1, 1], ceil_mode=False, count_include_pad=True, divisor_override=None"
)
POOL = f"""graph m(%x: f32[2,5,9,9]) {{
  %1: f32[2,5,9,9] = average_pool %x, {POOLING}
  return %1
}}"""
POOL_GRADIENT = f"""graph m(%g: f32[2,5,9,9], %x: f32[2,5,9,9]) {{
  %1: f32[2,5,9,9] = average_pool_gradient %g, %x, {POOLING}
  return %1
}}"""


def planned(kind: str, text: str) -> Kernel:
    """Give the first kernel of a kind that computes a graph, or packs for it, or checks; %w is a weight."""
    graph = run_pipeline(parse_graph(text))
    (region,) = find_regions(graph, frozenset(value for value in graph.inputs if value.name == "w"))
    plan = fuse(region, HOST).plan
    calls = (*plan.calls, *plan.packing, *plan.checks)
    found = [call.kernel for call in calls if isinstance(call.kernel, KINDS[kind])]
    assert found, f"src/weft/plan/fuse/fuse.py: nothing that is fused there becomes a {kind}"
    return found[0]


SIZES = AttentionSizes("f32", (2,), 20, 30, 8, 5)


def matrices(rows: int, columns: int) -> Matrix:
    return Matrix((rows * columns,), columns, 1)


def across(rows: int, columns: int) -> Matrix:
    return Matrix((rows * columns,), 1, rows)


def attention() -> Kernel:
    scores = choose_schedule("f32", (20, 30, 8), HOST)
    schedule = choose_attention(SIZES, scores, HOST, causal=False)
    assert schedule is not None
    body = (Instruction("constant", (), "f32", (0.25,)), Instruction("mul", (0, 1), "f32"))
    query, key, value, out = matrices(20, 8), across(8, 30), matrices(30, 5), matrices(20, 5)
    schedule = replace(schedule, row_block=7)
    return AttentionKernel("attention", SIZES, query, key, value, out, (), body, schedule, keeps_numbers=True)


def attention_gradient() -> Kernel:
    scores, pull = choose_schedule("f32", (20, 30, 8), HOST), choose_schedule("f32", (20, 30, 5), HOST)
    schedule = choose_attention_gradient(SIZES, scores, pull, HOST, causal=False)
    assert schedule is not None
    body = (Instruction("exp", (0,), "f32"), Instruction("mul", (2, 1), "f32"))
    operands = AttentionOperands(
        for_query=matrices(20, 8),
        for_key=matrices(30, 8),
        for_value=matrices(30, 5),
        query=matrices(20, 8),
        keys_across=across(8, 30),
        gradient=matrices(20, 5),
        values_across=across(5, 30),
        key=matrices(30, 8),
    )
    return AttentionGradientKernel("gradient", SIZES, operands, (), body, 2, 3, schedule)


def file_of(kind: type[Kernel]) -> str:
    """Give the file that a kind of kernel is defined in."""
    return f"src/{kind.__module__.replace('.', '/')}.py"


def finely(kernel: Kernel) -> Kernel:
    """Cut a kernel into small tiles."""
    if isinstance(kernel, LoopKernel):
        return replace(
            kernel, schedule=replace(kernel.schedule, row_tile=16 if kernel.schedule.transposed else 3, column_tile=16)
        )
    if isinstance(kernel, RowKernel):
        return replace(kernel, schedule=replace(kernel.schedule, row_tile=3))
    if isinstance(kernel, GemmKernel):
        return replace(kernel, schedule=replace(kernel.schedule, tile_row_blocks=1, tile_panels=1))
    if isinstance(kernel, ConvKernel):
        return replace(kernel, schedule=replace(kernel.schedule, tile_pixel_blocks=1, tile_panels=1))
    if isinstance(kernel, WinogradKernel):
        window = ImageWindow((3, 3), padding=kernel.padding)
        conv = ConvSizes("f32", kernel.images, kernel.in_channels, kernel.out_channels, kernel.in_size, window)
        return replace(kernel, block=7, product=winograd_product(kernel.product.name, conv, 7, HOST))
    if isinstance(kernel, AttentionKernel):
        return replace(kernel, schedule=replace(kernel.schedule, row_block=7))
    if isinstance(kernel, (PoolKernel, PoolGradientKernel)):
        return replace(kernel, schedule=replace(kernel.schedule, tile_lines=1))
    return kernel


def _stage() -> Kernel:
    kernel = planned("WinogradKernel", CONVOLUTION.format(24, 40))
    assert isinstance(kernel, WinogradKernel)
    whole = replace(kernel, block=kernel.images * prod(kernel.squares))
    return WinogradStage("stage", whole, "patches")


EXAMPLES: dict[str, Callable[[], Kernel]] = {
    "LoopKernel": lambda: planned("LoopKernel", LOOP),
    "RowKernel": lambda: planned("RowKernel", SUMS),
    "GemmKernel": lambda: planned("GemmKernel", PRODUCT),
    "PackKernel": lambda: planned("PackKernel", PRODUCT),
    "ConvKernel": lambda: planned("ConvKernel", CONVOLUTION.format(5, 40)),
    "WeightGradientKernel": lambda: planned("WeightGradientKernel", WEIGHT_GRADIENT.format(1, 20)),
    "DepthwiseWeightKernel": lambda: planned("DepthwiseWeightKernel", WEIGHT_GRADIENT.format(20, 1)),
    "WinogradKernel": lambda: planned("WinogradKernel", CONVOLUTION.format(24, 40)),
    "WinogradStage": _stage,
    "WinogradWeightKernel": lambda: planned("WinogradWeightKernel", CONVOLUTION.format(24, 40)),
    "PoolKernel": lambda: planned("PoolKernel", POOL),
    "PoolGradientKernel": lambda: planned("PoolGradientKernel", POOL_GRADIENT),
    "ScatterKernel": lambda: planned("ScatterKernel", SCATTER),
    "TopKernel": lambda: planned("TopKernel", TOP),
    "RecurrentKernel": lambda: planned("RecurrentKernel", RECURRENT),
    "CheckKernel": lambda: planned("CheckKernel", GATHER),
    "AttentionKernel": attention,
    "AttentionGradientKernel": attention_gradient,
}
