"""One register block of a convolution -> its function: all taps of the window, all channels of a part.

Contract of the emitted function: void block(out*, input*, weights*, inputs*..., pixel, turns, phase). out and input are
at the first pixel of the first image, all pointers at the block's first channels.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from weft.codegen.kernels.block_function import BlockFunction, Ending, PartOfSum, SetAside
from weft.codegen.kernels.epilogue import EpilogueEmitter
from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.kernels.pixels import Bounds, Pixels
from weft.codegen.kernels.register_block import (
    BlockShape,
    BlockWriter,
    PanelAddress,
    RegisterBlock,
    Turns,
    begin_block_function,
)
from weft.codegen.llvm.module import Module
from weft.codegen.llvm.register import Register
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.epilogue import Epilogue


@dataclass(frozen=True)
class BlockParts:
    """A block's function while it is written, and what its parameters mean."""

    name: str
    kernel: ConvKernel
    writer: BlockWriter
    block: RegisterBlock
    pixels: Pixels
    inputs: list[Register]
    weights: Register
    turns: Register
    phase: PartOfSum | None
    ending: Ending

    @classmethod
    def begin(cls, module: Module, kernel: ConvKernel, shape: BlockShape) -> "BlockParts":
        """Begin the function of a block."""
        name = f"{kernel.name}.{shape.rows}x{shape.vectors}.{shape.tail}"
        pointers = ["ptr"] * (3 + len(kernel.epilogue.inputs))
        writer = begin_block_function(module, name, [*pointers, "i64", "i64", "i64"])
        vectors = Vectors(writer, kernel.element, kernel.schedule.lanes)
        out, image, weights, *inputs, pixel, turns, phase = writer.parameters
        in_parts = kernel.walk.parts.count > 1
        pixels = Pixels(vectors, kernel, pixel, shape.rows)
        return cls(
            name=name,
            kernel=kernel,
            writer=writer,
            block=RegisterBlock(vectors, shape),
            pixels=pixels,
            inputs=pixels.inputs(image),
            weights=weights,
            turns=turns if in_parts else writer.integer(kernel.walk.parts.total),
            phase=PartOfSum.of(phase, kernel.walk.parts.count),
            ending=Ending(pixels.outputs(out), EpilogueEmitter(vectors, _block_epilogue(kernel), inputs)),
        )

    @property
    def vectors(self) -> Vectors:
        """Give the vectors of the block."""
        return self.block.vectors

    @property
    def function(self) -> BlockFunction:
        """Give what emits the start and end of the sums."""
        return BlockFunction(self.block, self.writer, self.ending, self.phase)


class ConvBlockEmitter:
    """Emits the sums of a block in which every output channel sees all input channels."""

    def __init__(self, parts: BlockParts) -> None:
        self.parts = parts

    def emit(self) -> str:
        """Emit the sums and what follows them, and give the function's name."""
        self.parts.function.emit(self._rows)
        return self.parts.name

    def _rows(self, sums: list[Register]) -> list[Register]:
        """Add what the rows of the window give."""
        writer, rows = self.parts.writer, self.parts.kernel.window.size[0]
        if self.parts.kernel.schedule.unroll_rows:
            for row in range(rows):
                sums = self._columns(writer.integer(row), sums)
            return sums
        return self._repeat("rows", self.parts.pixels.bounds(0), sums, self._columns)

    def _columns(self, row: Register, sums: list[Register]) -> list[Register]:
        """Add what the columns of one row of the window give."""
        kernel, writer, turns = self.parts.kernel, self.parts.writer, self.parts.turns
        first, behind = self.parts.pixels.bounds(1)
        if kernel.schedule.merge_columns:
            if kernel.of_images:
                turns = writer.multiply(writer.binary("sub", behind, first), kernel.in_channels)
            return self._run((row, first), turns, sums)
        add = partial(self._column, row, turns)
        return self._repeat("columns", (first, behind), sums, add)

    def _column(self, row: Register, turns: Register, column: Register, sums: list[Register]) -> list[Register]:
        """Add what one place of the window gives."""
        if self.parts.kernel.reads_zeros:
            # Where all pixels see zeros there is nothing to add.
            seen = self.parts.pixels.any_seen(row, column)
            turns = self.parts.writer.select(seen, turns, self.parts.writer.integer(0))
        return self._run((row, column), turns, sums)

    def _repeat(
        self, name: str, bounds: Bounds, sums: list[Register], add: Callable[[Register, list[Register]], list[Register]]
    ) -> list[Register]:
        """Add to the sums again and again: in registers, or in memory what each time gives alone."""
        if self.parts.kernel.schedule.set_aside != name:
            with self.parts.writer.loop(*bounds, carried=sums) as loop:
                loop.carry(*add(loop.index, list(loop.carried)))
            return list(loop.carried)
        aside = SetAside(self.parts.writer, self.parts.vectors, sums)
        with self.parts.writer.loop(*bounds) as loop:
            aside.add(add(loop.index, [self.parts.vectors.zero] * len(sums)))
        return aside.totals()

    def _run(self, tap: tuple[Register, Register], turns: Register, sums: list[Register]) -> list[Register]:
        """Add the products of the numbers that lie in a row from a place of the window on."""
        kernel, vectors = self.parts.kernel, self.parts.vectors
        row, column = tap
        width = self.parts.block.shape.vectors * vectors.lanes
        per_column = kernel.in_channels * width
        weights = vectors.moved(self.parts.weights, (row, per_column * kernel.window.size[1]), (column, per_column))
        pointers = self.parts.pixels.seen(self.parts.inputs, row, column)
        # A merged run goes on through columns; its numbers are side by side.
        step = 1 if kernel.schedule.merge_columns else kernel.input.channel
        unroll = kernel.schedule.unroll

        def numbers(turn: Register, place: int) -> list[Register]:
            bases = [vectors.moved(pointer, (turn, unroll * step)) for pointer in pointers]
            return [vectors.load_splat(vectors.address(base, place * step)) for base in bases]

        panel = PanelAddress(weights, width, whole=True)
        return self.parts.block.loop(sums, Turns(turns, unroll), panel, numbers)


def _block_epilogue(kernel: ConvKernel) -> Epilogue:
    """Give the epilogue as a block sees it: from one row of the block to the next may be a whole image."""
    if not kernel.of_images:
        return kernel.epilogue
    pixels, bias = prod(kernel.out_size), kernel.epilogue.bias
    operands = tuple(replace(operand, row=operand.row * pixels) for operand in kernel.epilogue.operands)
    return replace(kernel.epilogue, bias=bias and replace(bias, row=bias.row * pixels), operands=operands)
