"""A ConvKernel -> LLVM functions: one per register block, and one that walks the blocks of a range of tiles.

Contract of the emitted function: void name(out*, input*, weights*, inputs*..., begin, end). It computes tiles
[begin, end); out overlaps no input except where an epilogue operand is read at the very place that is written.
Nothing outside the tensors is read or written. Sizes are constants and may be 0.
"""

from collections.abc import Callable
from math import prod

from weft.codegen.kernels.conv_block import BlockParts, ConvBlockEmitter
from weft.codegen.kernels.conv_dot import DotBlockEmitter
from weft.codegen.kernels.depthwise import DepthwiseBlockEmitter
from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.kernels.register_block import BlockShape
from weft.codegen.kernels.walk import Place, Visitor, emit_walk
from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register
from weft.plan.kernels.conv import ConvKernel

EMITTERS: dict[str, Callable[[BlockParts], str]] = {
    "channels": lambda parts: ConvBlockEmitter(parts).emit(),
    "depthwise": lambda parts: DepthwiseBlockEmitter(parts).emit(),
    "dot": lambda parts: DotBlockEmitter(parts).emit(),
}


def emit_conv(module: Module, kernel: ConvKernel) -> None:
    """Emit the functions of a convolution into a module; the one to call has the kernel's name."""
    pointers = ["ptr"] * (3 + len(kernel.epilogue.inputs))
    writer = module.function(kernel.name, [*pointers, "i64", "i64"])
    if kernel.tile_count:
        ConvEmitter(writer, kernel).emit()


class ConvEmitter:
    """Emits the walk over blocks, and a function for each shape of block that the walk meets."""

    def __init__(self, writer: FunctionWriter, kernel: ConvKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.element, kernel.schedule.lanes)
        self.pointers = list(writer.parameters[:-2])
        self.blocks: dict[BlockShape, str] = {}

    def emit(self) -> None:
        """Emit the walk."""
        emit_walk(self.writer, self.kernel.walk, Visitor(self._enter, self._block))

    def _enter(self, group: Register) -> None:
        """Move all pointers to the channels of one group."""
        kernel, moved = self.kernel, self.vectors.moved
        out, image, weights, *inputs = self.writer.parameters[:-2]
        self.pointers = [
            moved(out, (group, kernel.out_channels)),
            moved(image, (group, kernel.in_channels * kernel.input.channel)),
            moved(weights, (group, kernel.packed_group)),
        ]
        for pointer, operand in zip(inputs, kernel.epilogue.inputs, strict=True):
            self.pointers.append(moved(pointer, (group, kernel.out_channels * operand.column)))

    def _block(self, shape: BlockShape, place: Place) -> None:
        """Call the function of a shape."""
        kernel, moved = self.kernel, self.vectors.moved
        out, image, weights, *inputs = self.pointers
        arguments = [
            moved(out, (place.column, 1)),
            moved(image, (place.column if kernel.depthwise else place.first, kernel.input.channel)),
            moved(weights, (place.column, kernel.depth), (place.first, shape.vectors * self.vectors.lanes)),
        ]
        pixel = place.row
        if kernel.of_images:
            pixel = self.writer.add(self.writer.multiply(place.row, prod(kernel.out_size)), place.visit)
        for pointer, operand in zip(inputs, kernel.epilogue.inputs, strict=True):
            arguments.append(moved(pointer, (pixel, operand.row), (place.column, operand.column)))
        if shape not in self.blocks:
            self.blocks[shape] = EMITTERS[kernel.way](BlockParts.begin(self.writer.module, kernel, shape))
        listed = ", ".join(map(str, (*arguments, pixel, place.turns, place.phase)))
        self.writer.emit_void(f"call void @{self.blocks[shape]}({listed})")
