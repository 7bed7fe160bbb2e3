"""A convolution -> the kernel that computes it, with every scheduling choice as a field.

Vectors run along the output channels, which lie side by side in the output; the rows of a register block are output
pixels, so a convolution is a product whose left operand is read where the window says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from weft.errors import InternalError
from weft.plan.kernels.blocks import Blocks, cut
from weft.plan.kernels.box import Box, Range, box
from weft.plan.kernels.cycles import body_cycles
from weft.plan.kernels.epilogue import Epilogue, Operand
from weft.plan.kernels.expression import DTYPE_BYTES
from weft.plan.kernels.images import Images, Window, out_size, seen_places, window_sees_outside
from weft.plan.kernels.kernel import Boxes, Kernel, Sizes, by
from weft.plan.kernels.walk import Walk
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
    window: Window
    cropped: tuple[int, int] | None = None
    dense: bool = True

    @property
    def out_size(self) -> tuple[int, int]:
        """Give the rows and columns of an output image: `cropped`, or all that the window gives."""
        return self.cropped or out_size(self.in_size, self.window)

    @property
    def sees_outside(self) -> bool:
        """Tell whether some window reaches over an edge of the image."""
        return window_sees_outside(self.in_size, self.out_size, self.window)


@dataclass(frozen=True)
class ConvSchedule:
    """How a convolution is computed.

    A register block is `block_pixels` by `block_vectors` vectors of `lanes` channels. Its pixels are neighbours in a
    "row", go on into the next row and image ("rows"), or are the same pixel of several "images": then all of them see
    the same places of the window outside, which are left out. `channel_block` input channels are done before the next
    register block, partial sums waiting in the output; `set_aside` adds up what each row or column of the window gives
    on its own. `merge_columns` takes the input's columns and channels in a window as one run of numbers, `unroll` steps
    a turn; `unroll_rows` repeats that code for each row of the window. With few output channels `vectors_along` may be
    "inputs": lanes add up parts of one sum, and the columns must be merged. Tiles are as for products, panels first.
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


@dataclass(frozen=True)
class ConvKernel(Kernel):
    """One convolution; arguments are out, input, packed weights, the epilogue's inputs, begin, end.

    Channels are counted per group. An epilogue operand's row is an output pixel, counted through all images. Where
    windows see outside the image the input's channels must lie side by side. Padding may be negative, and a window may
    have no places at all: then the result is the epilogue of the bias. In a `depthwise` convolution each output channel
    sees the one input channel at its place: there is one group of one input channel and all output channels.
    """

    name: str
    element: str
    images: int
    groups: int
    in_channels: int
    out_channels: int
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    window: Window
    input: Images
    output: Images
    epilogue: Epilogue
    schedule: ConvSchedule
    depthwise: bool = False

    def __post_init__(self) -> None:
        side_by_side = self.input.column == self.in_channels and (self.input.channel == 1 or self.in_channels == 1)
        if self.schedule.merge_columns and not side_by_side:
            fact = f"the kernel {self.name} takes columns and channels of its input as one run"
            raise InternalError(fact, why="they do not lie side by side")

    @property
    def way(self) -> Literal["channels", "depthwise", "dot"]:
        """Tell how a register block is computed."""
        if self.depthwise:
            return "depthwise"
        return "dot" if self.schedule.vectors_along == "inputs" else "channels"

    @property
    def sees_outside(self) -> bool:
        """Tell whether some window reaches over an edge of the image."""
        return window_sees_outside(self.in_size, self.out_size, self.window)

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
        """Count the steps computed of a sum, on average: blocks of several images leave out what is outside."""
        places = seen_places(self.in_size, self.out_size, self.window) if self.of_images else prod(self.window.size)
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
        return f"{by(*self.window.size)}, {channels}, {self.images} images of {by(*self.out_size)}"

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

        def operand(where: Operand) -> Box | None:
            rows, channels = part.rows, groups * self.out_channels
            steps = [(where.row, rows[1] - rows[0]), (where.column, channels)]
            return box(rows[0] * where.row, steps, element)

        vertical = self.rows_seen(part.rows) if images[1] - images[0] == 1 else (0, self.in_size[0])
        stored = self.epilogue.stored_bytes(self.element)
        return (
            self.output.pixels((self.images, height, width), part.rows, out, stored),
            self.input.part((images, vertical, (0, self.in_size[1])), seen, element),
            None,
            *map(operand, self.epilogue.inputs),
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
