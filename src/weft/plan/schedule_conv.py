"""A convolution's sizes and a target -> the ConvSchedule that should be fastest there, and the packing of its weights."""

from math import prod

from weft.plan.blocks import cut
from weft.plan.kernel_conv import ConvKernel, ConvSchedule, Window, out_size
from weft.plan.kernel_gemm import ELEMENT_BITS, Matrix, PackKernel
from weft.plan.schedule_gemm import BLOCK_CYCLES, TILE_CYCLES, register_block, step_cycles
from weft.target import Target

LONGEST_UNROLLED_RUN = 32  # steps: a longer run of merged columns is walked by a loop
LONGEST_UNROLLED_WINDOW = 64


def choose_conv_schedule(
    element: str, images: int, channels: tuple[int, int], in_size: tuple[int, int], window: Window, target: Target
) -> ConvSchedule:
    """Choose how a convolution with so many input and output channels (per group) is computed."""
    in_channels, out_channels = channels
    lanes = target.lanes(ELEMENT_BITS[element])
    height, width = out_size(in_size, window)
    depth = in_channels * prod(window.size)
    vectors = -(-out_channels // lanes)
    merge = window.padding == (0, 0) and window.dilation[1] == 1 and in_channels * window.size[1] <= LONGEST_UNROLLED_RUN
    across = not merge
    pixels, columns = register_block(images * height * width if across else width, vectors, depth, target)
    cycles = step_cycles(pixels, columns) * depth + BLOCK_CYCLES
    down = cut(images * height * width, pixels).count if across else images * height * cut(width, pixels).count
    tile_pixel_blocks = cut(down, max(1, int(TILE_CYCLES / cycles))).size
    panels = cut(vectors, columns).count
    tile_panels = cut(panels, max(1, int(TILE_CYCLES / (cycles * tile_pixel_blocks)))).size
    unroll = in_channels * window.size[1] if merge else 1
    return ConvSchedule(
        lanes=lanes,
        block_pixels=pixels,
        block_vectors=columns,
        channel_block=max(in_channels, 1),
        tile_pixel_blocks=tile_pixel_blocks,
        tile_panels=tile_panels,
        pixels_outside=False,
        across_rows=across,
        merge_columns=merge,
        unroll=unroll,
        unroll_rows=merge and depth <= LONGEST_UNROLLED_WINDOW,
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
