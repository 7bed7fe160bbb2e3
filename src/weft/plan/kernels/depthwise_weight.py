"""A depthwise convolution -> the kernel that computes the gradient of its weight.

Each channel sees itself alone, so vectors run along the channels of both tensors, and each place of the window has one
sum over all pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from weft.plan.kernels.blocks import cut
from weft.plan.kernels.conv import ConvSizes
from weft.plan.kernels.cycles import MEMORY_CYCLES, vectors_of
from weft.plan.kernels.gemm import ELEMENT_BITS
from weft.plan.kernels.images import Images
from weft.plan.kernels.kernel import Boxes, Kernel, by
from weft.plan.kernels.walk import Walk
from weft.target import Target

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
    """One gradient; arguments are out, input, gradient of the output, begin, end.

    `out_channels` of the convolution are all channels. They lie side by side in both tensors and in what comes out,
    which is dense as rows and columns of the window, channels.
    """

    name: str
    conv: ConvSizes
    input: Images
    of_output: Images
    schedule: DepthwiseWeightSchedule

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
