"""A convolution's sizes and a target -> the ConvSchedule that should be fastest there, and how weights are packed."""

from dataclasses import dataclass, replace
from math import prod

from weft.plan.kernels.blocks import cut
from weft.plan.kernels.conv import ConvKernel, ConvSchedule, ConvSizes
from weft.plan.kernels.cycles import BLOCK_CYCLES
from weft.plan.kernels.gemm import ELEMENT_BITS, Matrix
from weft.plan.kernels.images import seen_places
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.schedule_gemm import (
    LEAST_TILE_ROWS,
    MOST_ROWS,
    TILE_CYCLES,
    register_block,
    step_cycles,
    vector_registers,
)
from weft.target import Target

LONGEST_UNROLLED_RUN = 32  # steps: a longer run of merged columns is walked by a loop
LONGEST_UNROLLED_WINDOW = 64
LONGEST_SUM = 256  # steps in one chain of additions, about: longer ones round worse than what eager does
MOST_DEPTHWISE_VECTORS = 4
LEAST_TILE_CYCLES = 3_000.0  # of a depthwise convolution: less is not worth another core
LEAST_IMAGES = 6  # of which one pixel each makes a block
MOST_SEEN = 0.92  # of the window's places; where more of them are inside, going from image to image does not pay
TILES_OF_A_CORE = 3
# Last channels in at most this part of a vector, beside few whole ones, are computed along the inputs, where a row of
# the window has so many vectors of them.
FEW_SHARE, MOST_VECTORS_BESIDE, LEAST_RUN_VECTORS = 4, 6, 4
LEAST_PIXELS = 256  # below, a kernel of their own is not worth while
# Convolutions to few channels alone: to this part of a vector at most, where the work is this much less; adding up a
# vector's lanes takes about so many operations.
FEW_ALONE, LESS_WORK, LANE_SUM_STEPS = 2, 1.5, 6
PANEL_SHARE = 8  # the part of the L2 cache that the weights of one panel and part of the channels may take


@dataclass(frozen=True)
class WeightOrder:
    """Where a convolution finds its weights: the first one, and the steps from one to the next along each axis."""

    group: int
    input: int
    output: int
    row: int
    column: int
    first: int = 0


def choose_conv_schedule(conv: ConvSizes, target: Target) -> ConvSchedule:
    """Choose how a convolution is computed."""
    window, (height, width) = conv.window, conv.out_size
    lanes, number_bytes = target.lanes(ELEMENT_BITS[conv.element]), ELEMENT_BITS[conv.element] // 8
    depth = conv.in_channels * prod(window.size)
    vectors = -(-conv.out_channels // lanes)
    run = conv.in_channels * window.size[1]
    merge = conv.dense and not conv.sees_outside and _has_short_runs(conv)
    if conv.sees_outside and not merge:
        by_images = _schedule_of_images(conv, target)
        if by_images is not None:
            return by_images
    lines, length = (conv.images * height, width) if merge else (1, conv.images * height * width)
    # Unrolled steps share numbers, which LLVM keeps in registers too.
    registers = vector_registers(target) * 3 // 4 if merge else vector_registers(target)
    shared = depth * conv.out_channels * number_bytes > target.l2_bytes // 2
    by_panels = shared and lines * length <= LEAST_TILE_ROWS
    pixels, columns = register_block(length, vectors, depth, registers, target.cores if by_panels else 1)
    cycles = step_cycles(pixels, columns) * depth + BLOCK_CYCLES
    most_blocks = max(1, int(TILE_CYCLES / cycles), -(-LEAST_TILE_ROWS // pixels) if shared else 1)
    tile_pixel_blocks = cut(lines * cut(length, pixels).count, most_blocks).size
    most_panels = max(1, int(TILE_CYCLES / (cycles * tile_pixel_blocks)))
    return ConvSchedule(
        lanes=lanes,
        block_pixels=pixels,
        block_vectors=columns,
        channel_block=_channel_block(conv, columns, target),
        tile_pixel_blocks=tile_pixel_blocks,
        tile_panels=cut(cut(vectors, columns).count, most_panels).size,
        pixels_of="row" if merge else "rows",
        merge_columns=merge,
        unroll=max(run, 1) if merge else 1,
        unroll_rows=merge and depth <= LONGEST_UNROLLED_WINDOW,
        set_aside="nothing" if depth <= LONGEST_SUM else "rows" if run <= 2 * LONGEST_SUM else "columns",
    )


def wants_border(conv: ConvSizes, target: Target) -> bool:
    """Tell whether a convolution is best computed inside a border of zeros: its windows' rows are unrolled there.

    With so few channels it would take about as long to find out what is inside as to multiply it.
    """
    enough = conv.images * prod(conv.out_size) >= LEAST_PIXELS
    return enough and conv.sees_outside and _has_short_runs(conv) and _schedule_of_images(conv, target) is None


def _has_short_runs(conv: ConvSizes) -> bool:
    """Tell whether what a row of the window sees, where it lies side by side, is short enough to be unrolled."""
    return conv.window.dilation[1] == 1 and conv.in_channels * conv.window.size[1] <= LONGEST_UNROLLED_RUN


def _channel_block(conv: ConvSizes, vectors: int, target: Target) -> int:
    """Count the input channels whose weights, for so many vectors of outputs, share the cache with all else."""
    channel_bytes = prod(conv.window.size) * vectors * target.vector_bytes
    return max(1, target.l2_bytes // PANEL_SHARE // max(1, channel_bytes))


def _schedule_of_images(conv: ConvSizes, target: Target) -> ConvSchedule | None:
    """Give a schedule whose blocks are one pixel of several images; None where too little is left out for that."""
    window, pixels = conv.window, prod(conv.out_size)
    places = seen_places(conv.in_size, conv.out_size, window)
    lanes = target.lanes(ELEMENT_BITS[conv.element])
    vectors = -(-conv.out_channels // lanes)
    height, columns = register_block(conv.images, vectors, conv.in_channels * int(places), vector_registers(target))
    image_blocks, panels = cut(conv.images, height).count, cut(vectors, columns).count
    few_tiles = image_blocks * panels < TILES_OF_A_CORE * target.cores
    if conv.images < LEAST_IMAGES or few_tiles or places > MOST_SEEN * prod(window.size):
        return None
    cycles = step_cycles(height, columns) * conv.in_channels * places + BLOCK_CYCLES
    run = conv.in_channels * window.size[1]
    merge = conv.dense and window.dilation[1] == 1 and run <= 2 * LONGEST_SUM
    shared_out = panels * image_blocks // (TILES_OF_A_CORE * target.cores)
    most_panels = max(1, min(shared_out, int(TILE_CYCLES / (cycles * pixels))))
    return ConvSchedule(
        lanes=lanes,
        block_pixels=height,
        block_vectors=columns,
        channel_block=_channel_block(conv, columns, target),
        tile_pixel_blocks=pixels,
        tile_panels=cut(panels, most_panels).size,
        pixels_of="images",
        merge_columns=merge,
        set_aside="nothing" if conv.in_channels * places <= LONGEST_SUM else "rows" if merge else "columns",
    )


def channel_parts(kernel: ConvKernel, sizes: ConvSizes, target: Target) -> list[tuple[int, ConvKernel]]:
    """Cut a convolution by its output channels: those that fill vectors, and a few last ones with vectors along inputs.

    Each part comes with its first channel. A convolution that is better left whole is the only part.
    """
    rest = 0 if kernel.groups > 1 or kernel.depthwise else _channels_to_spare(sizes, target)
    if not rest:
        return [(0, kernel)]
    whole = kernel.out_channels - rest
    beside = replace(kernel.output, offset=kernel.output.offset + whole * kernel.output.channel)
    full, few = replace(sizes, out_channels=whole), replace(sizes, out_channels=rest)
    return [
        (0, replace(kernel, out_channels=whole, schedule=choose_conv_schedule(full, target))),
        (whole, replace(kernel, out_channels=rest, output=beside, schedule=choose_dot_schedule(few, target))),
    ]


def _channels_to_spare(conv: ConvSizes, target: Target) -> int:
    """Count the last output channels that fill so little of a vector that they are better computed along the inputs."""
    lanes = target.lanes(ELEMENT_BITS[conv.element])
    whole, rest = divmod(conv.out_channels, lanes)
    run = conv.in_channels * conv.window.size[1]
    one_run = conv.dense and conv.window.dilation[1] == 1 and run >= LEAST_RUN_VECTORS * lanes
    alike = not conv.sees_outside or conv.images >= LEAST_IMAGES
    few = 0 < rest <= lanes // FEW_SHARE and 0 < whole <= MOST_VECTORS_BESIDE
    return rest if one_run and alike and few and conv.images * prod(conv.out_size) >= LEAST_PIXELS else 0


def goes_along_inputs(conv: ConvSizes, target: Target) -> bool:
    """Tell whether all of a convolution to few channels is best computed along the inputs, inside a border of zeros."""
    lanes, (rows, columns) = target.lanes(ELEMENT_BITS[conv.element]), conv.window.size
    few = 0 < conv.out_channels <= lanes // FEW_ALONE and conv.window.dilation[1] == 1
    row_steps = -(-conv.in_channels * columns // lanes)
    steps = conv.out_channels * (rows * row_steps + LANE_SUM_STEPS)
    enough = conv.images * prod(conv.out_size) >= LEAST_PIXELS
    return few and enough and steps * LESS_WORK <= conv.in_channels * rows * columns


def choose_dot_schedule(conv: ConvSizes, target: Target) -> ConvSchedule:
    """Choose how a convolution to few output channels is computed with vectors along the inputs."""
    height, width = conv.out_size
    lanes = target.lanes(ELEMENT_BITS[conv.element])
    most_pixels = max(1, vector_registers(target) * 5 // 8 // conv.out_channels)
    by_images = conv.sees_outside
    pixels = cut(conv.images if by_images else width, min(most_pixels, MOST_ROWS)).size
    vectors = prod(conv.window.size) * conv.in_channels * conv.out_channels / lanes
    blocks = conv.images * height * cut(width, pixels).count
    in_a_tile = max(1, int(TILE_CYCLES / (vectors * pixels)))
    return ConvSchedule(
        lanes=lanes,
        block_pixels=pixels,
        block_vectors=1,
        channel_block=conv.in_channels,
        tile_pixel_blocks=height * width if by_images else cut(blocks, in_a_tile).size,
        tile_panels=1,
        pixels_of="images" if by_images else "row",
        merge_columns=True,
        vectors_along="inputs",
    )


def choose_depthwise_schedule(conv: ConvSizes, target: Target) -> ConvSchedule:
    """Choose how a depthwise convolution is computed; `out_channels` are all channels."""
    height, width = conv.out_size
    lanes = target.lanes(ELEMENT_BITS[conv.element])
    vectors = -(-conv.out_channels // lanes)
    columns = cut(vectors, MOST_DEPTHWISE_VECTORS).size
    pixels = cut(width, max(1, vector_registers(target) * 5 // 8 // columns)).size
    cycles = pixels * columns * prod(conv.window.size) + BLOCK_CYCLES
    blocks = conv.images * height * cut(width, pixels).count
    panels = cut(vectors, columns).count
    # There is little to do for each number, so that one tile may be all of it: every core is to have some.
    tile_cycles = min(TILE_CYCLES, max(LEAST_TILE_CYCLES, cycles * blocks * panels / (TILES_OF_A_CORE * target.cores)))
    tile_pixel_blocks = cut(blocks, max(1, int(tile_cycles / cycles))).size
    most_panels = max(1, int(tile_cycles / (cycles * tile_pixel_blocks)))
    return ConvSchedule(
        lanes=lanes,
        block_pixels=pixels,
        block_vectors=columns,
        channel_block=1,
        tile_pixel_blocks=tile_pixel_blocks,
        tile_panels=cut(panels, most_panels).size,
        pixels_of="row",
    )


def pack_conv_weights(kernel: ConvKernel, name: str, weights: WeightOrder) -> PackKernel:
    """Describe the packing of a convolution's weights."""
    return PackKernel(
        name=name,
        element=kernel.element,
        batch=(kernel.groups,),
        inner=kernel.in_channels,
        columns=kernel.out_channels,
        source=Matrix((weights.group,), weights.input, weights.output),
        packed_batch=(kernel.packed_group,),
        lanes=kernel.packed_lanes,
        panels=kernel.packed_panels,
        outer=((kernel.window.size[0], weights.row), (kernel.window.size[1], weights.column)),
        offset=weights.first,
    )
