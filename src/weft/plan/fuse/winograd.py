"""Convolutions of 3x3 windows that Winograd's way computes faster -> kernels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from weft.ir.graph import Value
from weft.plan.form.plan import KernelCall, Location
from weft.plan.fuse.fusion import Fusion, tensor_type
from weft.plan.fuse.image_layout import channels_last_strides, images_of, pixel_steps, writes_images
from weft.plan.fuse.products import Product
from weft.plan.kernels.conv import ConvSizes
from weft.plan.kernels.epilogue import Epilogue, Operand
from weft.plan.kernels.winograd import (
    PRODUCTS,
    Way,
    WinogradKernel,
    WinogradStage,
    choose_winograd,
    winograd_product,
    winograd_weights,
)
from weft.plan.regions.lazy import Lazy, Leaf
from weft.plan.regions.window import Window, in_order_of
from weft.target import Target


def winograd_way(sizes: ConvSizes, target: Target) -> tuple[Way, int]:
    """Which way a convolution is computed, and how many patches Winograd's takes at a time."""
    return choose_winograd(sizes, target) if sizes.element == "f32" else ("direct", 0)


def convolve_by_winograd(fusion: Fusion, value: Value, sizes: ConvSizes, images: Leaf, weight: Leaf) -> Lazy:
    """A convolution, with the elementwise code behind it."""
    shape, assembly = tensor_type(value).shape, fusion.assembly
    home = in_order_of(shape, channels_last_strides(shape))
    way, block = winograd_way(sizes, assembly.target)
    plain_kernel = WinogradKernel(
        "winograd", sizes.element, sizes.images, sizes.in_channels, sizes.out_channels, sizes.in_size,
        sizes.window.padding, images_of(images.window), images_of(home), Epilogue(), block,
        winograd_product("product", sizes, block, assembly.target),
    )  # fmt: skip
    is_weight = fusion.is_weight(weight)
    packed_now = None if is_weight else _packed_weights(fusion, plain_kernel, weight, None)

    def emit(scale: Leaf | None, out: Leaf, epilogue: Epilogue, inputs: tuple[Leaf, ...]) -> None:
        packed = packed_now or _packed_weights(fusion, plain_kernel, weight, scale)
        source = assembly.location(images) if way == "blocks" else _products(fusion, plain_kernel, images, packed)
        kernel = replace(plain_kernel, name=assembly.name("winograd"), output=images_of(out.window), epilogue=epilogue)
        places = [assembly.location(leaf) for leaf in inputs]
        if way == "blocks":
            assembly.call(kernel, (assembly.location(out),), (source, packed, *places))
        else:
            assembly.call(WinogradStage(kernel.name, kernel, "pixels"), (assembly.location(out),), (source, *places))

    def steps(window: Window) -> Operand | None:
        return pixel_steps(shape, window)

    scaled = partial(partial, emit) if is_weight else None
    made = Product(fusion, home, sizes.element, partial(emit, None), steps, sizes.out_channels, scaled=scaled)
    made.writes = writes_images
    return made.lazy()


def _products(fusion: Fusion, kernel: WinogradKernel, images: Leaf, packed: Location) -> Location:
    """The products of all patches, in memory."""
    assembly = fusion.assembly
    patches, products = (
        Location(assembly.buffer("arena", PRODUCTS * kernel.blocks.size * channels, kernel.element))
        for channels in (kernel.in_channels, kernel.out_channels)
    )
    stage = WinogradStage(assembly.name("patches"), kernel, "patches")
    assembly.call(stage, (patches,), (assembly.location(images),))
    product = replace(kernel.product, name=assembly.name("product"))
    assembly.call(product, (products,), (patches, packed))
    return products


def _packed_weights(fusion: Fusion, kernel: WinogradKernel, weight: Leaf, scale: Leaf | None) -> Location:
    """The transformed weights, packed: when a weight has changed, or in the call where it is none."""
    assembly, (out, into, row, column) = fusion.assembly, weight.window.strides
    prepare = winograd_weights(kernel, assembly.name("prepare"), (out, into, row, column), scaled=scale is not None)
    size, source = PRODUCTS * prepare.packed_size, assembly.location(weight)
    if not fusion.is_weight(weight):
        packed = Location(assembly.buffer("arena", size, kernel.element))
        assembly.call(prepare, (packed,), (source,))
        return packed
    packed = Location(assembly.buffer("packed", size, kernel.element))
    by_channel = () if scale is None else (assembly.location(scale),)
    assembly.packing.append(KernelCall(prepare, (packed,), (source, *by_channel)))
    return packed
