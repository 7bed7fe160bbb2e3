"""Define the kernels of a convolution's weight gradient, also depthwise, and choose how they run.

For each place of the window it is a product whose sum runs over all pixels: rows are input channels, vectors run along
the output channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from weft.plan.kernels.conv import FEW_SHARE, LONGEST_UNROLLED_RUN, ConvSizes
from weft.plan.kernels.expression import MEMORY_CYCLES, vectors_of
from weft.plan.kernels.gemm import ELEMENT_BITS, register_block, vector_registers
from weft.plan.kernels.images import Images, ImageWindow
from weft.plan.kernels.kernel import Boxes, Kernel, Sizes, by
from weft.plan.kernels.walk import Walk, cut
from weft.target import Target

MOST_TILES = 4  # tiles that a gradient of full size is cut into; each reads all pixels
# Of small images several are added up while the sums are in registers: as many as these pixels (longer chains of
# additions round worse) and bytes of both tensors (every block reads them again) allow.
# Past the nearest cache only as many are taken as fill a chain of some length.
MOST_PIXELS, MOST_BYTES = 1024, 512 * 1024
NEAR_BYTES, LEAST_PIXELS = 64 * 1024, 128


@dataclass(frozen=True)
class WeightGradientSchedule:
    """How the gradient is computed: a register block is `block_rows` by `block_vectors` vectors of `lanes`.

    `merge_columns` takes the columns of the window and their channels as one run of rows; no window may then see
    outside the image. A tile is `tile_row_blocks` by `tile_panels` register blocks, for all places of the window;
    `images` are added up at a time.
    """

    lanes: int
    block_rows: int
    block_vectors: int
    tile_row_blocks: int
    tile_panels: int
    merge_columns: bool
    images: int = 1


@dataclass(frozen=True)
class WeightGradientKernel(Kernel):
    """One gradient; arguments are out, input, gradient of the output, begin, end, ends.

    What comes out lies densely as groups, input channels, rows and columns of the window, output channels; where
    columns are merged, as groups, rows and columns of the window, input channels, output channels. The output
    gradient's channels lie side by side. Channels are counted per group.
    `ends` are among the dimensions of images, rows and columns of the output: what is beyond is not added.
    """

    name: str
    conv: ConvSizes
    groups: int
    input: Images
    of_output: Images
    schedule: WeightGradientSchedule
    ends: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Count the rows of one product."""
        return self.conv.in_channels * (self.conv.window.size[1] if self.schedule.merge_columns else 1)

    @property
    def places(self) -> tuple[int, int]:
        """Count the places of the window that are products of their own, down and across."""
        down, across = self.conv.window.size
        return down, 1 if self.schedule.merge_columns else across

    @property
    def steps(self) -> tuple[int, int, int]:
        """Give how far apart numbers of neighbouring input channels, window rows and window columns come out."""
        (down, across), conv = self.conv.window.size, self.conv
        if self.schedule.merge_columns:
            column = conv.in_channels * conv.out_channels
            return conv.out_channels, across * column, column
        return down * across * conv.out_channels, across * conv.out_channels, conv.out_channels

    @property
    def group_size(self) -> int:
        """Count the numbers of one group's gradient."""
        return prod(self.conv.window.size) * self.conv.in_channels * self.conv.out_channels

    @property
    def walk(self) -> Walk:
        """Give the blocks and tiles; the turns of the sum are images."""
        schedule, conv = self.schedule, self.conv
        return Walk(
            matrices=self.groups,
            lines=1,
            row_blocks=cut(self.rows, schedule.block_rows),
            panels=cut(-(-conv.out_channels // schedule.lanes), schedule.block_vectors),
            columns=conv.out_channels,
            lanes=schedule.lanes,
            parts=cut(conv.images, schedule.images),
            part_step=1,
            tile_row_blocks=schedule.tile_row_blocks,
            tile_panels=schedule.tile_panels,
            rows_outside=False,
        )

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        return self.walk.tile_count

    @property
    def tile_sizes(self) -> tuple[Sizes, Sizes]:
        """Give the rows of tiles above each other and the vectors of those side by side."""
        return self.walk.tile_sizes

    @property
    def cycles(self) -> float:
        """Estimate the cycles of its register blocks, for each place of the window."""
        return prod(self.places) * self.walk.cycles(self.conv.images * prod(self.conv.out_size))

    @property
    def summary(self) -> str:
        """Say the window and the images."""
        return f"{by(*self.conv.window.size)}, {self.conv.images} images"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give nothing narrower than all of it: every tile reads all images."""
        return None, None, None

    def renamed(self, name: str) -> WeightGradientKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> None:
        """Never: every tile reads all images."""


def choose_weight_gradient_schedule(conv: ConvSizes, target: Target) -> WeightGradientSchedule:
    """Choose how the gradient of a convolution's weight is computed."""
    lanes = target.lanes(ELEMENT_BITS[conv.element])
    run = conv.in_channels * conv.window.size[1]
    one_run = conv.dense and not conv.sees_outside and conv.window.dilation[1] == 1
    merge = one_run and run <= LONGEST_UNROLLED_RUN
    rows, vectors = run if merge else conv.in_channels, -(-conv.out_channels // lanes)
    height, width = register_block(rows, vectors, prod(conv.out_size), vector_registers(target))
    row_blocks, panels = cut(rows, height).count, cut(vectors, width).count
    most_rows = max(1, row_blocks * panels // MOST_TILES)
    pixels, bytes_each = max(prod(conv.out_size), 1), ELEMENT_BITS[conv.element] // 8
    numbers = prod(conv.in_size) * conv.in_channels + prod(conv.out_size) * conv.out_channels
    image_bytes = max(numbers * bytes_each, 1)
    near = NEAR_BYTES // image_bytes
    return WeightGradientSchedule(
        lanes=lanes,
        block_rows=height,
        block_vectors=width,
        tile_row_blocks=cut(row_blocks, most_rows).size,
        tile_panels=cut(panels, max(1, most_rows // max(row_blocks, 1))).size,
        merge_columns=merge,
        images=max(1, min(MOST_PIXELS // pixels, MOST_BYTES // image_bytes, max(near, -(-LEAST_PIXELS // pixels)))),
    )


def with_roles_exchanged(kernel: WeightGradientKernel, first: int, name: str, target: Target) -> WeightGradientKernel:
    """Give the kernel for the last output channels, from `first` on, whose vectors run along the input channels.

    Few output channels would leave most of a vector empty. Where windows move by 1 the two tensors can change places:
    what comes out lies as output channels, rows and columns of the window, input channels.
    """
    conv, window = kernel.conv, kernel.conv.window
    other = ImageWindow(
        size=window.size,
        padding=(-window.padding[0], -window.padding[1]),
        dilation=(-window.dilation[0], -window.dilation[1]),
    )
    channels = conv.out_channels - first, conv.in_channels
    sizes = ConvSizes(conv.element, conv.images, *channels, conv.out_size, other, conv.in_size, dense=False)
    beside = replace(kernel.of_output, offset=kernel.of_output.offset + first * kernel.of_output.channel)
    return WeightGradientKernel(name, sizes, 1, beside, kernel.input, choose_weight_gradient_schedule(sizes, target))


def channels_to_spare(conv: ConvSizes, target: Target) -> int:
    """Count the last output channels that are better computed with both exchanged: few beside full vectors."""
    lanes = target.lanes(ELEMENT_BITS[conv.element])
    whole, rest = divmod(conv.out_channels, lanes)
    fits = conv.window.stride == (1, 1) and conv.in_channels >= lanes and whole > 0
    return rest if fits and rest <= lanes // FEW_SHARE and conv.images * prod(conv.out_size) >= LEAST_PIXELS else 0


# Depthwise, each channel sees itself alone: vectors run along the channels of both tensors, and each place of the
# window has one sum over all pixels.
CHAINS = 4  # sums that are added to in turn: an addition takes about as many cycles
TILES_OF_A_CORE = 2


@dataclass(frozen=True)
class DepthwiseWeightSchedule:
    """How the gradient is computed: a tile is a block of `block_vectors` vectors of `lanes` channels, for all places.

    Every `chains`-th pixel of a row is added to the same sum; rows are added up by image, and those to the whole.
    """

    lanes: int
    block_vectors: int
    chains: int


@dataclass(frozen=True)
class DepthwiseWeightKernel(Kernel):
    """One gradient; arguments are out, input, gradient of the output, begin, end, ends.

    `ends` are among the dimensions of images, rows and columns of the output: what is beyond is not added.
    `out_channels` of the convolution are all channels. They lie side by side in both tensors and in what comes out,
    which is dense as rows and columns of the window, channels.
    """

    name: str
    conv: ConvSizes
    input: Images
    of_output: Images
    schedule: DepthwiseWeightSchedule
    ends: tuple[int, ...] = ()

    @property
    def places(self) -> int:
        """Count the places of the window."""
        return prod(self.conv.window.size)

    @property
    def walk(self) -> Walk:
        """Give the blocks and tiles: there is one row, and the sum is in one part."""
        vectors = -(-self.conv.out_channels // self.schedule.lanes)
        return Walk(
            matrices=1,
            lines=1,
            row_blocks=cut(1, 1),
            panels=cut(vectors, self.schedule.block_vectors),
            columns=self.conv.out_channels,
            lanes=self.schedule.lanes,
            parts=cut(1, 1),
            part_step=1,
            tile_row_blocks=1,
            tile_panels=1,
            rows_outside=False,
        )

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        return self.walk.tile_count

    @property
    def tile_sizes(self) -> None:
        """All tiles are as many channels but the last."""

    @property
    def cycles(self) -> float:
        """Estimate the cycles to load both tensors' vectors for each place of the window."""
        vectors = vectors_of(self.conv.out_channels, self.schedule.lanes, masked=True)
        return self.conv.images * prod(self.conv.out_size) * self.places * vectors * 2 * MEMORY_CYCLES

    @property
    def summary(self) -> str:
        """Say the window and the images."""
        return f"{by(*self.conv.window.size)}, {self.conv.images} images"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give nothing narrower than all of it: every tile reads all images."""
        return None, None, None

    def renamed(self, name: str) -> DepthwiseWeightKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> None:
        """Never: every tile reads all images."""


def choose_depthwise_weight_schedule(conv: ConvSizes, target: Target) -> DepthwiseWeightSchedule:
    """Choose how the gradient of a depthwise convolution's weight is computed."""
    lanes = target.lanes(ELEMENT_BITS[conv.element])
    vectors = -(-conv.out_channels // lanes)
    most = max(1, min(CHAINS, vectors // (TILES_OF_A_CORE * target.cores)))
    return DepthwiseWeightSchedule(lanes, cut(vectors, most).size, CHAINS // most)
