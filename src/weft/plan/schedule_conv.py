"""A convolution's sizes and a target -> the ConvSchedule that should be fastest there, and how weights are packed."""

from math import prod

from weft.plan.blocks import cut
from weft.plan.kernel_conv import ConvKernel, ConvSchedule, ConvSizes, seen_places
from weft.plan.kernel_gemm import ELEMENT_BITS, Matrix, PackKernel
from weft.plan.schedule_gemm import (
    BLOCK_CYCLES,
    LEAST_TILE_ROWS,
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
LEAST_IMAGES = 6  # of which one pixel each makes a block
MOST_SEEN = 0.92  # of the window's places; where more of them are inside, going from image to image does not pay
TILES_OF_A_CORE = 3
PANEL_SHARE = 8  # the part of the L2 cache that the weights of one panel and part of the channels may take


def choose_conv_schedule(conv: ConvSizes, target: Target) -> ConvSchedule:
    """Choose how a convolution is computed."""
    window, (height, width) = conv.window, conv.out_size
    lanes, number_bytes = target.lanes(ELEMENT_BITS[conv.element]), ELEMENT_BITS[conv.element] // 8
    depth = conv.in_channels * prod(window.size)
    vectors = -(-conv.out_channels // lanes)
    run = conv.in_channels * window.size[1]
    one_run = conv.dense and not conv.sees_outside and window.dilation[1] == 1
    merge = one_run and run <= LONGEST_UNROLLED_RUN
    if conv.sees_outside and not merge:
        by_images = _schedule_of_images(conv, target)
        if by_images is not None:
            return by_images
    lines, length = (conv.images * height, width) if merge else (1, conv.images * height * width)
    # Unrolled steps share numbers, which LLVM keeps in registers too.
    registers = vector_registers(target) * 3 // 4 if merge else vector_registers(target)
    pixels, columns = register_block(length, vectors, depth, registers)
    cycles = step_cycles(pixels, columns) * depth + BLOCK_CYCLES
    shared = depth * conv.out_channels * number_bytes > target.l2_bytes // 2
    most_blocks = max(1, int(TILE_CYCLES / cycles), -(-LEAST_TILE_ROWS // pixels) if shared else 1)
    tile_pixel_blocks = cut(lines * cut(length, pixels).count, most_blocks).size
    most_panels = max(1, int(TILE_CYCLES / (cycles * tile_pixel_blocks)))
    channel_bytes = max(1, prod(window.size) * columns * lanes * number_bytes)
    return ConvSchedule(
        lanes=lanes,
        block_pixels=pixels,
        block_vectors=columns,
        channel_block=max(1, target.l2_bytes // PANEL_SHARE // channel_bytes),
        tile_pixel_blocks=tile_pixel_blocks,
        tile_panels=cut(cut(vectors, columns).count, most_panels).size,
        pixels_outside=False,
        pixels_of="row" if merge else "rows",
        merge_columns=merge,
        unroll=max(run, 1) if merge else 1,
        unroll_rows=merge and depth <= LONGEST_UNROLLED_WINDOW,
        set_aside="nothing" if depth <= LONGEST_SUM else "rows" if run <= 2 * LONGEST_SUM else "columns",
    )


def _schedule_of_images(conv: ConvSizes, target: Target) -> ConvSchedule | None:
    """Give a schedule whose blocks are one pixel of several images; None where too little is left out for that."""
    window, pixels = conv.window, prod(conv.out_size)
    places = seen_places(conv.in_size, conv.out_size, window)
    lanes, number_bytes = target.lanes(ELEMENT_BITS[conv.element]), ELEMENT_BITS[conv.element] // 8
    vectors = -(-conv.out_channels // lanes)
    height, columns = register_block(conv.images, vectors, conv.in_channels * int(places), vector_registers(target))
    image_blocks, panels = cut(conv.images, height).count, cut(vectors, columns).count
    few_tiles = image_blocks * panels < TILES_OF_A_CORE * target.cores
    if conv.images < LEAST_IMAGES or few_tiles or places > MOST_SEEN * prod(window.size):
        return None
    cycles = step_cycles(height, columns) * conv.in_channels * places + BLOCK_CYCLES
    run = conv.in_channels * window.size[1]
    merge = conv.dense and window.dilation[1] == 1 and run <= 2 * LONGEST_SUM
    channel_bytes = prod(window.size) * columns * lanes * number_bytes
    most_panels = max(1, min(panels * image_blocks // (TILES_OF_A_CORE * target.cores), int(TILE_CYCLES / (cycles * pixels))))
    return ConvSchedule(
        lanes=lanes,
        block_pixels=height,
        block_vectors=columns,
        channel_block=max(1, target.l2_bytes // PANEL_SHARE // channel_bytes),
        tile_pixel_blocks=pixels,
        tile_panels=cut(panels, most_panels).size,
        pixels_outside=False,
        pixels_of="images",
        merge_columns=merge,
        set_aside="nothing" if conv.in_channels * places <= LONGEST_SUM else "rows" if merge else "columns",
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
    tile_pixel_blocks = cut(blocks, max(1, int(TILE_CYCLES / cycles))).size
    most_panels = max(1, int(TILE_CYCLES / (cycles * tile_pixel_blocks)))
    return ConvSchedule(
        lanes=lanes,
        block_pixels=pixels,
        block_vectors=columns,
        channel_block=1,
        tile_pixel_blocks=tile_pixel_blocks,
        tile_panels=cut(cut(vectors, columns).count, most_panels).size,
        pixels_outside=False,
        pixels_of="row",
    )


def pack_conv_weights(kernel: ConvKernel, name: str, weight: tuple[int, int, int, int]) -> PackKernel:
    """Describe the packing of a convolution's weights, from strides of output, input channel, row and column."""
    out_channel, in_channel, row, column = weight
    return PackKernel(
        name=name,
        element=kernel.element,
        batch=(kernel.groups,),
        inner=kernel.in_channels,
        columns=kernel.out_channels,
        source=Matrix((kernel.out_channels * out_channel,), in_channel, out_channel),
        packed_batch=(kernel.packed_group,),
        lanes=kernel.schedule.lanes,
        panels=kernel.panels,
        outer=((kernel.window.size[0], row), (kernel.window.size[1], column)),
    )
