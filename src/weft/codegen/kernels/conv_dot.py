"""One register block of a convolution to a few output channels -> its function: vectors run along what is summed.

The numbers that a row of the window sees lie side by side, and so do its weights. Every output channel has a vector of
sums for each pixel, whose lanes are added up at the end.
"""

from weft.codegen.kernels.conv_block import BlockParts
from weft.codegen.kernels.lane_sums import all_lanes
from weft.codegen.kernels.spans import mask_up_to
from weft.codegen.llvm.register import Register


class DotBlockEmitter:
    """Emits the sums of a block; all pixels see the same places of the window."""

    def __init__(self, parts: BlockParts) -> None:
        self.parts = parts
        self.vectors = parts.vectors

    def emit(self) -> str:
        """Emit the sums and what follows them, and give the function's name."""
        self.parts.function.emit(self._sums)
        return self.parts.name

    def _sums(self, starts: list[Register]) -> list[Register]:
        """Add what the rows of the window give."""
        writer, channels = self.parts.writer, self.parts.kernel.out_channels
        begins = [self.vectors.zero] * (len(starts) * channels)
        with writer.loop(*self.parts.pixels.bounds(0), carried=begins) as loop:
            loop.carry(*self._row(loop.index, list(loop.carried)))
        sums = list(loop.carried)
        totals = [
            all_lanes(writer, sums[place : place + channels], self.vectors.lanes)
            for place in range(0, len(sums), channels)
        ]
        return [writer.binary("fadd", start, total) for start, total in zip(starts, totals, strict=True)]

    def _row(self, row: Register, sums: list[Register]) -> list[Register]:
        """Add what one row of the window gives."""
        parts, writer, vectors, kernel = self.parts, self.parts.writer, self.vectors, self.parts.kernel
        first, behind = parts.pixels.bounds(1)
        channels = kernel.in_channels
        weights = vectors.moved(parts.weights, (row, channels * kernel.window.size[1]), (first, channels))
        pixels = parts.pixels.seen(parts.inputs, row, first)
        # Only pixels of several images may see a part of the window.
        numbers = writer.multiply(writer.binary("sub", behind, first), channels)
        whole, _ = writer.divide(numbers, vectors.lanes)
        start = writer.multiply(whole, vectors.lanes)
        with writer.loop(0, start, vectors.lanes, carried=sums) as loop:
            loop.carry(*self._step(list(loop.carried), pixels, weights, (loop.index, None)))
        if not kernel.of_images and kernel.run % vectors.lanes == 0:
            return list(loop.carried)
        mask = mask_up_to(writer, start, numbers, vectors.lanes)
        return self._step(list(loop.carried), pixels, weights, (start, mask))

    def _step(
        self,
        sums: list[Register],
        pixels: list[Register],
        weights: Register,
        place: tuple[Register, Register | None],
    ) -> list[Register]:
        """Add the products of one vector of numbers, or of those that a mask keeps."""
        vectors, writer, depth = self.vectors, self.parts.writer, self.parts.kernel.depth
        start, mask = place

        def load(address: Register) -> Register:
            at = vectors.moved(address, (start, 1))
            return vectors.load(at) if mask is None else writer.masked_load(vectors.kind, at, mask)

        seen = [load(pixel) for pixel in pixels]
        panel = [load(vectors.address(weights, out * depth)) for out in range(self.parts.kernel.out_channels)]
        pairs = [(number, weight) for number in seen for weight in panel]
        return [writer.fma(*pair, total) for pair, total in zip(pairs, sums, strict=True)]
