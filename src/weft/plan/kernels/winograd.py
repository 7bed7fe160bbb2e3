"""Define the kernels of Winograd's convolution F(2x2, 3x3), and choose how they run.

Each square of 2x2 output pixels comes from a patch of 4x4 input pixels by 16 multiplications a channel instead of 36.
Patches and weights are transformed, multiplied as 16 matrix products, and the products are transformed back. Larger
squares would save more, but their error is several times eager's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from weft.plan.kernels.conv import LEAST_IMAGES, ConvSizes
from weft.plan.kernels.expression import DTYPE_BYTES
from weft.plan.kernels.gemm import (
    ELEMENT_BITS,
    Epilogue,
    EpilogueOperand,
    GemmKernel,
    Matrix,
    PackedMatrix,
    choose_schedule,
    packed_size,
    panels,
)
from weft.plan.kernels.images import LIMIT_BOX, UNLIMITED, Images, ImageWindow, Limited, seen_places
from weft.plan.kernels.kernel import Boxes, ByteBox, Kernel, box, by
from weft.plan.kernels.walk import Blocks, cut
from weft.target import Target

PRODUCTS = 16  # the places of a transformed patch
PATCH, SQUARE = 4, 2  # the side of a patch, and of the pixels it gives
STACK_BYTES = 384 * 1024  # of one call's stack, for transformed patches and products
STACK_BYTES_OF_LARGE = 512 * 1024  # the same where the weights do not fit the cache: fewer blocks read them
BLOCKS_OF_A_CORE = 2  # so that cores end at about the same time
LEAST_PATCHES = 12  # patches that share one reading of the weights, or direct convolution is faster
LEAST_STAGED_PATCHES = 16  # the same where transformed patches go through memory
LEAST_STAGE_SAVING = 1.5  # multiplications of direct convolution for each that is left, where they go through memory
MOST_STAGE_BYTES = 16 * 1024 * 1024  # of patches and products in memory
STAGE_PATCHES = 4  # patches of a tile of a stage
LONGEST_SUM = 64  # steps in one chain of additions: the transforms have used up some of the error that eager makes
LEAST_CHANNELS = 12  # below, the transforms cost more than they save
WEIGHT_TILE_CHANNELS = 16  # input channels of a tile of weights: their windows stay in the nearest cache

Way = Literal["direct", "blocks", "stages"]


@dataclass(frozen=True)
class WinogradKernel(Kernel):
    """One convolution; arguments are out, input, packed transformed weights, the epilogue's inputs, limits, begin, end.

    `block` patches are transformed at a time, and then multiplied; a tile is one such block. Both layouts have channels
    side by side. An epilogue operand's row is an output pixel, counted through all images.

    Where one block has all patches, the work can also be done in three stages, with patches and products in memory: two
    WinogradStages and the product between them.

    `limited` and `ends` are as those of a ConvKernel: of a block the patches are transformed and multiplied that give
    pixels which are within.
    """

    name: str
    element: str
    images: int
    in_channels: int
    out_channels: int
    in_size: tuple[int, int]
    padding: tuple[int, int]
    input: Images
    output: Images
    epilogue: Epilogue
    block: int
    product: GemmKernel
    limited: Limited = UNLIMITED
    ends: tuple[int, ...] = ()

    @property
    def window(self) -> ImageWindow:
        """Give the window of the convolution."""
        return ImageWindow((3, 3), padding=self.padding)

    @property
    def out_size(self) -> tuple[int, int]:
        """Give the rows and columns of an output image."""
        (height, width), (top, left) = self.in_size, self.padding
        return height + 2 * top - 2, width + 2 * left - 2

    @property
    def squares(self) -> tuple[int, int]:
        """Give the rows and columns of squares of output pixels; the last may be half outside."""
        height, width = self.out_size
        return -(-height // SQUARE), -(-width // SQUARE)

    @property
    def blocks(self) -> Blocks:
        """Give the patches of all images, cut into blocks."""
        return cut(self.images * prod(self.squares), self.block)

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        return self.blocks.count

    @property
    def stack_bytes(self) -> int:
        """Count the bytes of stack that a call takes."""
        number_bytes = ELEMENT_BITS[self.element] // 8
        return PRODUCTS * self.blocks.size * (self.in_channels + self.out_channels) * number_bytes

    @property
    def tile_sizes(self) -> None:
        """All tiles are a block of patches, which are as even as possible."""

    @property
    def cycles(self) -> float:
        """Estimate the cycles of both transforms and of the products between them."""
        patches, lanes = self.images * prod(self.squares), self.product.schedule.lanes
        transforms = patches * PRODUCTS * 3 * (self.in_channels + self.out_channels) / lanes
        return self.blocks.count * self.product.cycles + transforms

    @property
    def summary(self) -> str:
        """Say the channels and the images."""
        return f"{self.in_channels} to {self.out_channels}, {self.images} images"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give the whole images that some of the patches are of; packed weights may be read anywhere."""
        out, image, *inputs = self.boxes_of_patches(self.blocks.start(begin), self.blocks.start(end))
        return out, image, None, *inputs, *(LIMIT_BOX for limit in self.limited if limit)

    def boxes_of_patches(self, first: int, last: int) -> list[ByteBox | None]:
        """Give the images that patches are of: of the output, of the input, and of the epilogue's operands."""
        patches, (height, width), element = prod(self.squares), self.out_size, DTYPE_BYTES[self.element]
        images = first // patches, -(-last // patches)
        pixels = images[0] * height * width, images[1] * height * width

        def operand(where: EpilogueOperand) -> ByteBox | None:
            steps = [(where.row, pixels[1] - pixels[0]), (where.column, self.out_channels)]
            return box(pixels[0] * where.row, steps, DTYPE_BYTES[where.dtype or self.element])

        ranges = (images, (0, self.in_size[0]), (0, self.in_size[1]))
        stored = self.epilogue.stored_bytes(self.element)
        return [
            self.output.pixels((self.images, height, width), pixels, (0, self.out_channels), stored),
            self.input.part(ranges, (0, self.in_channels), element),
            *map(operand, self.epilogue.inputs),
        ]

    def renamed(self, name: str) -> WinogradKernel:
        """Give the same kernel under another name, and one made from it to the product inside it."""
        return replace(self, name=name, product=self.product.renamed(f"{name}.product"))

    def written_over(self, output: int, read: int, target: Target) -> WinogradKernel | None:
        """Give the same kernel for an operand of its epilogue whose rows are the output's pixels."""
        return self if self.reads_pixels_written(read - 2) else None

    def reads_pixels_written(self, number: int) -> bool:
        """Tell whether the rows of an input of the epilogue, by its number, are the output's pixels."""
        operand = self.epilogue.operand_stored_alike(number, self.element)
        return operand is not None and self.output.has_pixels_of(operand, (self.images, *self.out_size))


@dataclass(frozen=True)
class WinogradStage(Kernel):
    """One end of a convolution whose patches and products lie in memory, all in one block.

    Arguments to make patches are patches, input, begin, end; to make pixels out, products, the epilogue's inputs,
    begin, end.
    """

    name: str
    of: WinogradKernel
    makes: Literal["patches", "pixels"]

    @property
    def tiles(self) -> Blocks:
        """Give the patches, cut into tiles."""
        return cut(self.of.images * prod(self.of.squares), STAGE_PATCHES)

    @property
    def tile_count(self) -> int:
        """Count the tiles; any split of them over calls gives the same bits."""
        return self.tiles.count

    @property
    def tile_sizes(self) -> None:
        """All tiles are as many patches but the last ones."""

    @property
    def cycles(self) -> float:
        """Estimate the cycles of one of the transforms."""
        kernel = self.of
        return kernel.images * prod(kernel.squares) * PRODUCTS * 3 * self.channels / kernel.product.schedule.lanes

    @property
    def channels(self) -> int:
        """Count the channels of what lies between the stages."""
        return self.of.in_channels if self.makes == "patches" else self.of.out_channels

    @property
    def summary(self) -> str:
        """Say what it makes of how many channels."""
        return f"{self.makes} of {by(self.of.in_channels, self.of.out_channels)}"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give some rows of each matrix of patches or products, and the whole images that they are of."""
        kernel, first, last = self.of, self.tiles.start(begin), self.tiles.start(end)
        out, image, *inputs = kernel.boxes_of_patches(first, last)
        channels = self.channels
        steps = [(kernel.blocks.size * channels, PRODUCTS), (channels, last - first), (1, channels)]
        between = box(first * channels, steps, DTYPE_BYTES[kernel.element])
        return (between, image) if self.makes == "patches" else (out, between, *inputs)

    def renamed(self, name: str) -> WinogradStage:
        """Give the same stage under another name; what it is a stage of has none of its own."""
        return replace(self, name=name, of=self.of.renamed(""))

    def written_over(self, output: int, read: int, target: Target) -> WinogradStage | None:
        """Give the same stage, if it makes pixels, for an epilogue's operand whose rows are those of the output."""
        return self if self.makes == "pixels" and self.of.reads_pixels_written(read - 1) else None


@dataclass(frozen=True)
class WinogradWeightKernel(Kernel):
    """The transform of weights; arguments are packed, weight, begin, end.

    `weight` has the strides of output and input channel, row and column, and `offset` the elements before the first:
    the gradient of an input is a convolution with the window mirrored and the channels exchanged. What comes out
    is 16 matrices of input by output channels, packed as the product reads them: no more than some windows of weights
    are anywhere else meanwhile. With `scaled` there is another argument behind the weight: numbers side by side that
    the output channels are multiplied with. With `casts` the source has the first of these dtypes, and its numbers are
    converted to the others in turn. A tile is one vector of output channels at a few input channels.
    """

    name: str
    element: str
    out_channels: int
    in_channels: int
    weight: tuple[int, int, int, int]
    lanes: int
    panels: Blocks
    offset: int = 0
    scaled: bool = False
    casts: tuple[str, ...] = ()

    @property
    def packed_size(self) -> int:
        """Count the numbers of one packed matrix."""
        return self.panels.total * self.lanes * self.in_channels

    @property
    def parts(self) -> int:
        """Count the tiles of each vector of output channels."""
        return -(-self.in_channels // WEIGHT_TILE_CHANNELS)

    @property
    def tile_count(self) -> int:
        """Count the tiles."""
        return self.panels.total * self.parts

    @property
    def tile_sizes(self) -> None:
        """A tile is as much as another, but for the last."""

    @property
    def cycles(self) -> float:
        """Estimate the cycles of the transform."""
        # Nine numbers are copied one by one; the rest is vectors.
        return self.out_channels * self.in_channels * (9.0 + 7.0 * PRODUCTS / self.lanes)

    @property
    def summary(self) -> str:
        """Say the channels."""
        return f"{self.in_channels} to {self.out_channels}"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give nothing narrower than all of it: whoever reads packed weights reads all of them."""
        return (None,) * (3 if self.scaled else 2)

    def renamed(self, name: str) -> WinogradWeightKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> None:
        """Never: sixteen numbers come of nine."""


def winograd_with_ends(kernel: WinogradKernel, dimensions: tuple[int, ...]) -> WinogradKernel:
    """Give the same kernel with output images that end where the caller says."""
    return replace(kernel, ends=dimensions, product=replace(kernel.product, ends=(len(kernel.product.batch),)))


def choose_winograd(conv: ConvSizes, target: Target) -> tuple[Way, int]:
    """Choose between direct convolution, blocks on the stack, and stages with a block of all patches in memory."""
    window = conv.window
    fits = window.size == (3, 3) and window.stride == window.dilation == (1, 1) and max(window.padding) <= 2
    patches = patch_count(conv)
    if not fits or patches < LEAST_PATCHES or min(conv.in_channels, conv.out_channels) < LEAST_CHANNELS:
        return "direct", 0
    number_bytes = ELEMENT_BITS[conv.element] // 8
    weights = PRODUCTS * conv.in_channels * conv.out_channels * number_bytes
    stack = STACK_BYTES if weights <= target.l2_bytes else STACK_BYTES_OF_LARGE
    most = stack // (PRODUCTS * (conv.in_channels + conv.out_channels) * number_bytes)
    count = max(1, -(-patches // max(most, 1)))
    if target.cores > 1:
        count = max(-(-count // target.cores), BLOCKS_OF_A_CORE) * target.cores
    block = -(-patches // count)
    if block >= LEAST_PATCHES and (weights <= target.l2_bytes or patches <= block):
        return "blocks", block
    return ("stages", patches) if _pays_in_stages(conv, patches) else ("direct", 0)


def _pays_in_stages(conv: ConvSizes, patches: int) -> bool:
    """Tell whether enough multiplications are saved to take patches and products through memory."""
    between = PRODUCTS * patches * (conv.in_channels + conv.out_channels) * ELEMENT_BITS[conv.element] // 8
    skips = conv.images >= LEAST_IMAGES  # direct convolution leaves out what windows see outside the image
    places = seen_places(conv.in_size, conv.out_size, conv.window) if skips else prod(conv.window.size)
    saving = conv.images * prod(conv.out_size) * places / (PRODUCTS * patches)
    return patches >= LEAST_STAGED_PATCHES and between <= MOST_STAGE_BYTES and saving >= LEAST_STAGE_SAVING


def patch_count(conv: ConvSizes) -> int:
    """Count the patches of all images."""
    height, width = conv.out_size
    return conv.images * -(-height // SQUARE) * -(-width // SQUARE)


def winograd_product(name: str, conv: ConvSizes, block: int, target: Target) -> GemmKernel:
    """Describe the 16 products of a block of patches."""
    rows, inner, columns = cut(patch_count(conv), block).size, conv.in_channels, conv.out_channels
    chosen = choose_schedule(conv.element, (rows, columns, inner), target)
    schedule = replace(chosen, inner_block=min(inner, LONGEST_SUM))  # however many rows a block has: the same bits
    return GemmKernel(
        name=name,
        element=conv.element,
        batch=(PRODUCTS,),
        rows=rows,
        columns=columns,
        inner=inner,
        left=Matrix((rows * inner,), inner, 1),
        right=PackedMatrix((packed_size(columns, inner, schedule),)),
        out=Matrix((rows * columns,), columns, 1),
        epilogue=Epilogue(),
        schedule=schedule,
    )


def winograd_weights(
    kernel: WinogradKernel, name: str, strides: tuple[int, int, int, int], offset: int = 0, *, scaled: bool = False
) -> WinogradWeightKernel:
    """Describe how the weights of a convolution are transformed: those at these strides, an offset on."""
    schedule = kernel.product.schedule
    return WinogradWeightKernel(
        name=name,
        element=kernel.element,
        out_channels=kernel.out_channels,
        in_channels=kernel.in_channels,
        weight=strides,
        lanes=schedule.lanes,
        panels=panels(kernel.out_channels, schedule),
        offset=offset,
        scaled=scaled,
    )
