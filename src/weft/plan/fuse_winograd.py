"""Convolutions of 3x3 windows that Winograd's way computes faster -> kernels."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.graph import Value
from weft.plan.epilogue import Epilogue, Operand
from weft.plan.fuse_products import Product
from weft.plan.fusion import Fusion, tensor_type
from weft.plan.image_layout import channels_last_strides, images_of, pixel_steps
from weft.plan.kernel_conv import ConvSizes
from weft.plan.kernel_winograd import (
    LEAST_PATCHES,
    PRODUCTS,
    WinogradKernel,
    WinogradWeightKernel,
    choose_winograd,
    pack_winograd_weights,
    patch_count,
    winograd_product,
)
from weft.plan.lazy import Lazy, Leaf
from weft.plan.plan import KernelCall, Location
from weft.plan.window import Window, in_order_of
from weft.target import Target

BLOCKS_OF_A_CORE = 2  # so that cores end at about the same time


def winograd_block(sizes: ConvSizes, target: Target) -> int:
    """How many patches Winograd's way takes at a time; 0 where another way is faster, or exact enough alone."""
    way, block = choose_winograd(sizes, target)
    if way != "blocks" or sizes.element != "f32":
        return 0
    shared = block if target.cores == 1 else min(block, -(-patch_count(sizes) // (BLOCKS_OF_A_CORE * target.cores)))
    return shared if shared >= LEAST_PATCHES else 0


def convolve_by_winograd(fusion: Fusion, value: Value, sizes: ConvSizes, images: Leaf, weight: Leaf) -> Lazy:
    """A convolution, with the elementwise code behind it."""
    shape, target = tensor_type(value).shape, fusion.assembly.target
    home = in_order_of(shape, channels_last_strides(shape))
    block = winograd_block(sizes, target)
    plain_kernel = WinogradKernel(
        "winograd", sizes.element, sizes.images, sizes.in_channels, sizes.out_channels, sizes.in_size,
        sizes.window.padding, images_of(images.window), images_of(home), Epilogue(), block,
        winograd_product("product", sizes, block, target),
    )  # fmt: skip
    packed = _packed_weights(fusion, plain_kernel, weight)

    def emit(out: Leaf, epilogue: Epilogue, inputs: tuple[Leaf, ...]) -> None:
        name = fusion.assembly.name("winograd")
        kernel = replace(plain_kernel, name=name, output=images_of(out.window), epilogue=epilogue)
        places = [fusion.assembly.location(leaf) for leaf in inputs]
        reads = (fusion.assembly.location(images), packed, *places)
        fusion.assembly.call(kernel, (fusion.assembly.location(out),), reads)

    def steps(window: Window) -> Operand | None:
        return pixel_steps(shape, window)

    return Product(fusion, home, sizes.element, emit, steps, sizes.out_channels).lazy()


def _packed_weights(fusion: Fusion, kernel: WinogradKernel, weight: Leaf) -> Location:
    """The transformed weights, packed: when a weight has changed, or in the call where it is none."""
    assembly, strides = fusion.assembly, weight.window.strides
    prepare = WinogradWeightKernel(
        assembly.name("prepare"), kernel.element, kernel.out_channels, kernel.in_channels,
        (strides[0], strides[1], strides[2], strides[3]),
    )  # fmt: skip
    pack = pack_winograd_weights(kernel, assembly.name("pack"))
    transformed = Location(
        assembly.buffer("arena", PRODUCTS * kernel.out_channels * kernel.in_channels, kernel.element)
    )
    size, source = PRODUCTS * pack.packed_batch[0], assembly.location(weight)
    if fusion.is_weight(weight):
        packed = Location(assembly.buffer("packed", size, kernel.element))
        assembly.packing.append(KernelCall(prepare, (transformed,), (source,)))
        assembly.packing.append(KernelCall(pack, (packed,), (transformed,)))
        return packed
    packed = Location(assembly.buffer("arena", size, kernel.element))
    assembly.call(prepare, (transformed,), (source,))
    assembly.call(pack, (packed,), (transformed,))
    return packed
