"""A WinogradKernel -> LLVM functions: both transforms, the products between them, and the loop over blocks.

Contract of the emitted function: void name(out*, input*, weights*, inputs*..., begin, end). It computes tiles
[begin, end); out overlaps no input except where an epilogue operand is read at the very place that is written. Nothing
outside the tensors is read or written. A call takes `stack_bytes` of stack.
"""

from dataclasses import replace

from weft.codegen.kernels.gemm import emit_gemm
from weft.codegen.kernels.panel_vectors import Vectors
from weft.codegen.kernels.tiles import first_of
from weft.codegen.kernels.winograd_transforms import emit_input_transform, emit_output_transform
from weft.codegen.llvm.module import Module
from weft.codegen.llvm.register import constant
from weft.plan.kernels.winograd import PRODUCTS, WinogradKernel, WinogradStage


def emit_winograd(module: Module, kernel: WinogradKernel) -> None:
    """Emit the functions of a convolution into a module; the one to call has the kernel's name."""
    pointers = ["ptr"] * (3 + len(kernel.epilogue.inputs))
    writer = module.function(kernel.name, [*pointers, "i64", "i64"])
    if not kernel.tile_count:
        return
    emit_gemm(module, kernel.product)
    transforms = emit_input_transform(module, kernel), emit_output_transform(module, kernel)
    out, image, weights, *inputs, begin, end = writer.parameters
    vectors = Vectors(writer, kernel.element, 1)
    rows = kernel.blocks.size
    patches = writer.emit("ptr", f"alloca [{PRODUCTS * rows * kernel.in_channels} x {vectors.element}], align 64")
    products = writer.emit("ptr", f"alloca [{PRODUCTS * rows * kernel.out_channels} x {vectors.element}], align 64")
    # A smaller block leaves rows of patches as they are: they are multiplied too, and must be numbers.
    with writer.loop(0, PRODUCTS * rows * kernel.in_channels) as loop:
        writer.store(constant(vectors.element, 0.0), vectors.address(patches, loop.index))
    with writer.loop(begin, end) as loop:
        first = first_of(writer, kernel.blocks, loop.index)
        stop = first_of(writer, kernel.blocks, writer.add(loop.index, 1))
        writer.emit_void(f"call void @{transforms[0]}({patches}, {image}, {first}, {stop})")
        name, tiles = kernel.product.name, kernel.product.tile_count
        writer.emit_void(f"call void @{name}({products}, {patches}, {weights}, i64 0, i64 {tiles})")
        arguments = ", ".join(map(str, (out, products, *inputs, first, stop)))
        writer.emit_void(f"call void @{transforms[1]}({arguments})")


def emit_winograd_stage(module: Module, stage: WinogradStage) -> None:
    """Emit the function of one end: void name(patches*, input*, ...) or name(out*, products*, inputs*..., ...)."""
    inputs = len(stage.of.epilogue.inputs) if stage.makes == "pixels" else 0
    writer = module.function(stage.name, [*["ptr"] * (2 + inputs), "i64", "i64"])
    if not stage.tile_count:
        return
    emit, between, channels = {
        "patches": (emit_input_transform, 0, stage.of.in_channels),
        "pixels": (emit_output_transform, 1, stage.of.out_channels),
    }[stage.makes]
    transform = emit(module, replace(stage.of, name=f"{stage.name}.of"))
    *pointers, begin, end = writer.parameters
    first, stop = first_of(writer, stage.tiles, begin), first_of(writer, stage.tiles, end)
    # A transform counts rows of patches or products from its first one.
    pointers[between] = Vectors(writer, stage.of.element, 1).moved(pointers[between], (first, channels))
    writer.emit_void(f"call void @{transform}({', '.join(map(str, (*pointers, first, stop)))})")
