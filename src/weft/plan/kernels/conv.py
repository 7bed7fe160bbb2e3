"""Define the kernel of a convolution, and choose how it runs on a target.

Vectors run along the output channels, which lie side by side in the output; the rows of a register block are output
pixels, so a convolution is a product whose left operand is read where the window says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from weft.errors import InternalError
from weft.plan.kernels.expression import BLOCK_CYCLES, DTYPE_BYTES, body_cycles
from weft.plan.kernels.gemm import (
    ELEMENT_BITS,
    LEAST_TILE_ROWS,
    MOST_ROWS,
    TILE_CYCLES,
    Epilogue,
    EpilogueOperand,
    Matrix,
    register_block,
    step_cycles,
    vector_registers,
)
from weft.plan.kernels.images import (
    LIMIT_BOX,
    UNLIMITED,
    Images,
    ImageWindow,
    Limited,
    out_size,
    seen_places,
    window_sees_outside,
)
from weft.plan.kernels.kernel import Boxes, ByteBox, Kernel, Range, Sizes, box, by
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.walk import Blocks, Walk, cut
from weft.target import Target


@dataclass(frozen=True)
class ConvSizes:
    """What a convolution's speed depends on; channels are counted per group.

    `dense`: the numbers that a group sees of one column and of the next lie side by side in the input.
    """

    element: str
    images: int
    in_channels: int
    out_channels: int
    in_size: tuple[int, int]
    window: ImageWindow
    cropped: tuple[int, int] | None = None
    dense: bool = True
    limited: Limited = UNLIMITED

    @property
    def out_size(self) -> tuple[int, int]:
        """Give the rows and columns of an output image: `cropped`, or all that the window gives."""
        return self.cropped or out_size(self.in_size, self.window)

    @property
    def sees_outside(self) -> bool:
        """Tell whether some window reaches over an edge of the image."""
        return any(self.limited) or window_sees_outside(self.in_size, self.out_size, self.window)


@dataclass(frozen=True)
class ConvSchedule:
    """How a convolution is computed.

    A register block is `block_pixels` by `block_vectors` vectors of `lanes` channels. Its pixels are neighbours in a
    "row", go on into the next row and image ("rows"), or are the same pixel of several "images": then all of them see
    the same places of the window outside, which are left out. `channel_block` input channels are done before the next
    register block, partial sums waiting in the output; `set_aside` adds up what each row or column of the window gives
    on its own. `merge_columns` takes the input's columns and channels in a window as one run of numbers, `unroll` steps
    a turn; `unroll_rows` repeats that code for each row of the window. With few output channels `vectors_along` may be
    "inputs": lanes add up parts of one sum, and the columns must be merged. Of a depthwise window `taps` columns are
    done at a time, their weights in registers. Tiles are as for products, panels first.
    """

    lanes: int
    block_pixels: int
    block_vectors: int
    channel_block: int
    tile_pixel_blocks: int
    tile_panels: int
    pixels_of: Literal["row", "rows", "images"] = "rows"
    merge_columns: bool = False
    unroll: int = 1
    unroll_rows: bool = False
    set_aside: Literal["nothing", "rows", "columns"] = "nothing"
    vectors_along: Literal["outputs", "inputs"] = "outputs"
    taps: int = 1


@dataclass(frozen=True)
class ConvKernel(Kernel):
    """One convolution; arguments are out, input, packed weights, the epilogue's inputs, limits, begin, end, ends.

    Channels are counted per group. An epilogue operand's row is an output pixel, counted through all images. Where
    windows see outside the image the input's channels must lie side by side. Padding may be negative, and a window may
    have no places at all: then the result is the epilogue of the bias. In a `depthwise` convolution each output channel
    sees the one input channel at its place: there is one group of one input channel and all output channels.
    `of_bytes`: an element of the input and of the weights is a word of four integers of 8 bits, channels side by side,
    and a product the sum of theirs. Of `limited` rows and columns of the input an argument has how many there are:
    what is beyond is outside. `ends` are among the dimensions of images, rows and columns of the output: blocks of
    pixels that are wholly beyond are left out.
    """

    name: str
    element: str
    images: int
    groups: int
    in_channels: int
    out_channels: int
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    window: ImageWindow
    input: Images
    output: Images
    epilogue: Epilogue
    schedule: ConvSchedule
    depthwise: bool = False
    of_bytes: bool = False
    limited: Limited = UNLIMITED
    ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        side_by_side = self.input.column == self.in_channels and (self.input.channel == 1 or self.in_channels == 1)
        if self.schedule.merge_columns and not side_by_side:
            fact = f"the kernel {self.name} takes columns and channels of its input as one run"
            raise InternalError(fact, why="they do not lie side by side")
        if self.epilogue.stored(self.element) != self.element and self.walk.parts.count > 1:
            fact = f"the kernel {self.name} stores {self.epilogue.stored(self.element)} in parts"
            raise InternalError(fact, why=f"the sums of its parts are {self.element}")

    @property
    def way(self) -> Literal["channels", "depthwise", "dot"]:
        """Tell how a register block is computed."""
        if self.depthwise:
            return "depthwise"
        return "dot" if self.schedule.vectors_along == "inputs" else "channels"

    @property
    def sees_outside(self) -> bool:
        """Tell whether some window reaches over an edge of the image."""
        return any(self.limited) or window_sees_outside(self.in_size, self.out_size, self.window)

    @property
    def run(self) -> int:
        """Count the numbers that the innermost loop goes through: channels, or channels and columns."""
        return self.in_channels * (self.window.size[1] if self.schedule.merge_columns else 1)

    @property
    def depth(self) -> int:
        """Count the steps of the whole sum."""
        return self.in_channels * prod(self.window.size)

    @property
    def of_images(self) -> bool:
        """Tell whether a block's pixels are one place of several images: all see the same places outside."""
        return self.schedule.pixels_of == "images"

    @property
    def reads_zeros(self) -> bool:
        """Tell whether a pixel of a block may see outside where another does not, and then reads zeros."""
        return self.sees_outside and not self.of_images

    @property
    def depth_done(self) -> float:
        """Count the steps computed of a sum, on average: some blocks leave out what is outside."""
        leaves_out = self.of_images or self.depthwise
        places = seen_places(self.in_size, self.out_size, self.window) if leaves_out else prod(self.window.size)
        return self.in_channels * places

    @property
    def walk(self) -> Walk:
        """Give the blocks and tiles."""
        schedule, (height, width) = self.schedule, self.out_size
        lines, length, visits = {
            "row": (self.images * height, width, 1),
            "rows": (1, self.images * height * width, 1),
            "images": (1, self.images, height * width),
        }[schedule.pixels_of]
        most = self.run if schedule.merge_columns else schedule.channel_block
        return Walk(
            matrices=self.groups,
            lines=lines,
            row_blocks=cut(length, schedule.block_pixels),
            panels=self.panels,
            columns=self.out_channels,
            lanes=schedule.lanes,
            parts=cut(self.run // schedule.unroll, max(most // schedule.unroll, 1)),
            part_step=schedule.unroll,
            tile_row_blocks=schedule.tile_pixel_blocks,
            tile_panels=schedule.tile_panels,
            rows_outside=False,
            visits=visits,
        )

    @property
    def panels(self) -> Blocks:
        """Give the output channels, counted in vectors and cut into panels."""
        return cut(-(-self.out_channels // self.schedule.lanes), self.schedule.block_vectors)

    @property
    def packed_group(self) -> int:
        """Count the numbers of the packed weights of one group."""
        return self.packed_panels.total * self.packed_lanes * self.depth

    @property
    def packed_lanes(self) -> int:
        """Count the output channels whose weights lie side by side."""
        return 1 if self.way == "dot" else self.schedule.lanes

    @property
    def packed_panels(self) -> Blocks:
        """Give the output channels as weights are packed: along inputs, each channel's lie by themselves."""
        return cut(self.out_channels, 1) if self.way == "dot" else self.panels

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        return self.walk.tile_count

    @property
    def tile_sizes(self) -> tuple[Sizes, Sizes]:
        """Give the pixels of tiles above each other and the vectors of those side by side."""
        return self.walk.tile_sizes

    @property
    def cycles(self) -> float:
        """Estimate the cycles of its register blocks."""
        depth = self.depth_done
        if self.way == "dot":
            depth *= self.out_channels / self.schedule.lanes
        return self.walk.cycles(depth, body_cycles(self.epilogue.body))

    @property
    def summary(self) -> str:
        """Say the window, the channels and the images."""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        channels = f"{self.in_channels} to {self.out_channels}{groups}"
        kind = " words of u8 and i8" if self.of_bytes else ""
        return f"{by(*self.window.size)}, {channels}{kind}, {self.images} images of {by(*self.out_size)}"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give the pixels written, the rows of input images that their windows see, and the epilogue's operands there.

        Packed weights may be read anywhere.
        """
        part, element = self.walk.covered(begin, end), DTYPE_BYTES[self.element]
        groups = self.groups if not self.depthwise else 1
        first, last = part.matrices
        out = (first * self.out_channels + part.columns[0], (last - 1) * self.out_channels + part.columns[1])
        seen = part.columns if self.depthwise else (first * self.in_channels, last * self.in_channels)
        height, width = self.out_size
        images = (part.rows[0] // (height * width), -(-part.rows[1] // (height * width)))

        def operand(where: EpilogueOperand) -> ByteBox | None:
            rows, channels = part.rows, groups * self.out_channels
            steps = [(where.row, rows[1] - rows[0]), (where.column, channels)]
            return box(rows[0] * where.row, steps, DTYPE_BYTES[where.dtype or self.element])

        vertical = self.rows_seen(part.rows) if images[1] - images[0] == 1 else (0, self.in_size[0])
        stored = self.epilogue.stored_bytes(self.element)
        return (
            self.output.pixels((self.images, height, width), part.rows, out, stored),
            self.input.part((images, vertical, (0, self.in_size[1])), seen, element),
            None,
            *map(operand, self.epilogue.inputs),
            *(LIMIT_BOX for limit in self.limited if limit),
        )

    def rows_seen(self, pixels: Range) -> Range:
        """Give the rows of an input image that windows at these output pixels, all of one image, may see."""
        height, width = self.out_size
        window, image = self.window, pixels[0] // (height * width) * height * width
        top, bottom = (pixels[0] - image) // width, (pixels[1] - 1 - image) // width
        first = top * window.stride[0] - window.padding[0]
        last = bottom * window.stride[0] - window.padding[0] + (window.size[0] - 1) * window.dilation[0] + 1
        first = min(max(first, 0), self.in_size[0])
        return first, max(min(last, self.in_size[0]), first)

    def renamed(self, name: str) -> ConvKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> ConvKernel | None:
        """Give the same kernel for an operand whose rows are the output's pixels, unless partial sums wait there."""
        operand = self.epilogue.operand_stored_alike(read - 2, self.element)
        if operand is None or self.walk.parts.count > 1:
            return None
        return self if self.output.has_pixels_of(operand, (self.images, *self.out_size)) else None


# How a convolution should run on a target, and how its weights are packed.
LONGEST_UNROLLED_RUN = 32  # steps: a longer run of merged columns is walked by a loop
LONGEST_UNROLLED_WINDOW = 64
LONGEST_SUM = 256  # steps in one chain of additions, about: longer ones round worse than what eager does
MOST_DEPTHWISE_PIXELS, MOST_DEPTHWISE_VECTORS = 16, 4
TAPS_SHARE = 4  # the part of the registers that holds weights of a depthwise convolution's window, of each vector
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


def choose_byte_schedule(conv: ConvSizes, target: Target) -> ConvSchedule:
    """Choose how a convolution of words is computed: its sums are integers, exact in any order, and in one part."""
    chosen = choose_conv_schedule(conv, target)
    return replace(chosen, channel_block=max(1, conv.in_channels * conv.window.size[1]), set_aside="nothing")


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
    rest = 0 if kernel.groups > 1 or kernel.depthwise or any(sizes.limited) else _channels_to_spare(sizes, target)
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
    taps = cut(max(conv.window.size[1], 1), vector_registers(target) // TAPS_SHARE).size
    pixels, columns = _depthwise_block(conv.window, (width, vectors), taps, vector_registers(target))
    cycles = depthwise_cycles(conv.window, (pixels, columns), taps)
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
        taps=taps,
    )


def _depthwise_block(window: ImageWindow, sizes: tuple[int, int], taps: int, registers: int) -> tuple[int, int]:
    """Choose the pixels and vectors of a block of a depthwise convolution of rows of so many pixels and vectors.

    Registers hold the sums, the weights of some columns of the window, and what is seen of one column of the image.
    """
    width, vectors = sizes
    shapes = [
        (pixels, columns)
        for columns in range(1, min(max(vectors, 1), MOST_DEPTHWISE_VECTORS) + 1)
        for pixels in range(1, max(min(width, MOST_DEPTHWISE_PIXELS), 1) + 1)
        if (pixels + taps + 1) * columns < registers or (pixels, columns) == (1, 1)
    ]

    def cycles(shape: tuple[int, int]) -> float:
        of_pixels, of_vectors = cut(width, shape[0]).kinds, cut(vectors, shape[1]).kinds
        return sum(
            rows * panels * depthwise_cycles(window, (pixels, columns), taps)
            for pixels, rows in of_pixels
            for columns, panels in of_vectors
            if rows and panels
        )

    return min(shapes, key=lambda shape: (cycles(shape), shape[0] * shape[1]))


def depthwise_cycles(window: ImageWindow, block: tuple[int, int], taps: int) -> float:
    """Estimate the cycles of a block of pixels and vectors, of two multiply-adds or loads a cycle."""
    (rows, columns), (pixels, vectors) = window.size, block
    turns = -(-columns // taps)
    seen = len({pixel * window.stride[1] + tap * window.dilation[1] for pixel in range(pixels) for tap in range(taps)})
    return rows * max(pixels * columns, turns * (seen + taps)) * vectors / 2 + BLOCK_CYCLES


def conv_with_ends(kernel: ConvKernel, dimensions: tuple[int, ...]) -> ConvKernel:
    """Give the same kernel with output images that end where the caller says, in blocks of pixels of one row each."""
    schedule, (height, width) = kernel.schedule, kernel.out_size
    if schedule.pixels_of == "rows":
        pixels = schedule.block_pixels * schedule.tile_pixel_blocks
        block = cut(width, schedule.block_pixels).size
        count = kernel.images * height * cut(width, block).count
        tile = cut(count, max(1, pixels // block)).size
        schedule = replace(schedule, pixels_of="row", block_pixels=block, tile_pixel_blocks=tile)
    return replace(kernel, schedule=schedule, ends=dimensions)


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
