"""Make kernels of pooling and of its gradients."""

from __future__ import annotations

import torch

from weft.ir.graph import Value
from weft.ir.types import TensorType, TupleType
from weft.plan.fuse.fusion import Fusion, dtype_of, tensor_type
from weft.plan.fuse.image_layout import channels_last, channels_last_strides, images_of, pair, side_by_side
from weft.plan.kernels.images import UNLIMITED, ImageWindow
from weft.plan.kernels.pool import PoolGradientKernel, PoolKernel, choose_pool_gradient_schedule, choose_pool_schedule
from weft.plan.regions.lazy import Computed, FixedNumber, Lazy, Leaf, Node, in_order_of, plain

NO_DILATION = (1, 1)
FEWEST_CHANNELS = 8  # that are worth moving side by side for a gradient


def pool(fusion: Fusion, value: Value) -> tuple[Lazy, ...]:
    """A pooling; its results are laid out as its input is."""
    images = fusion.assembly.in_memory(fusion.images(value))
    images = fusion.copies.get((images.source.buffer, images.window), images)
    given = value.attributes
    items = value.type.items if isinstance(value.type, TupleType) else (value.type,)
    shape = items[0].shape if isinstance(items[0], TensorType) else ()
    home = in_order_of(shape, images.window.strides)
    window = _window(value)
    count, channels, *in_size = images.window.shape
    sizes = (pair(in_size), pair(shape[2:]))
    is_max = value.op == "max_pool"
    indices = is_max and any(user.op == "item" and user.attributes["index"] == 1 for user in _users(fusion, value))
    layout = images_of(home)
    kernel = PoolKernel(
        fusion.assembly.name("pool"), images.dtype, "max" if is_max else "mean", count, channels, *sizes, window,
        images_of(images.window), layout,
        choose_pool_schedule(images.dtype, channels, sizes, layout, fusion.assembly.target), indices,
        bool(given.get("count_include_pad", True)), given.get("divisor_override"),
        limited=fusion.limited[value].limited if value in fusion.limited else UNLIMITED,
    )  # fmt: skip
    limits = fusion.limits(value)
    first = fusion.place_for(value, home) if value.op == "average_pool" else fusion.arena(home, images.dtype)
    outs = [first, fusion.arena(home, "i64")] if indices else [first]
    locate = fusion.assembly.location
    fusion.assembly.call(kernel, tuple(map(locate, outs)), (locate(images), *limits))
    return tuple(Lazy(shape, leaf) for leaf in outs)


def pool_back(fusion: Fusion, value: Value) -> Lazy:
    """The gradient of a pooling's input, from that of its output; windows may overlap and reach outside."""
    assembly, shape, dtype = fusion.assembly, tensor_type(value).shape, dtype_of(value)
    count, channels, *in_size = shape
    beside = channels >= FEWEST_CHANNELS
    reads = [_shared_out(fusion, value, beside)] if value.op == "average_pool_gradient" else []
    if not reads:
        lies = side_by_side if beside else _in_memory
        reads = [lies(fusion, value, 0), lies(fusion, value, 2)]
    home = in_order_of(shape, channels_last_strides(shape)) if beside else plain(shape)
    layout, *given = images_of(home), *(images_of(leaf.window) for leaf in reads)
    kernel = PoolGradientKernel(
        assembly.name("pool_gradient"), dtype, count, channels, pair(in_size), pair(reads[0].window.shape[2:]),
        _window(value), layout, given[0], given[1] if len(given) > 1 else None,
        choose_pool_gradient_schedule(dtype, channels, in_size[1], layout, assembly.target),
    )  # fmt: skip
    out = fusion.place_for(value, home)
    assembly.call(kernel, (assembly.location(out),), tuple(map(assembly.location, reads)))
    return Lazy(shape, out)


def _in_memory(fusion: Fusion, value: Value, index: int) -> Leaf:
    return fusion.assembly.in_memory(fusion.operand(value, index))


def _shared_out(fusion: Fusion, value: Value, beside: bool) -> Leaf:
    """What each window of a mean gives to a place that it sees: its gradient divided by what the mean was."""
    lazy, dtype = fusion.operand(value), dtype_of(value)
    counts = _counts(value, lazy.shape)
    divisor: Node = FixedNumber(float(counts.reshape(-1)[0]), dtype)
    if bool((counts != counts.reshape(-1)[0]).any()):
        number = fusion.assembly.buffer("constant", counts.numel(), dtype)
        fusion.assembly.constants.append(counts.to(tensor_type(value).dtype))
        leaf = fusion.assembly.leaf_in(number, plain(lazy.shape[2:]).expanded(lazy.shape), dtype)
        divisor = leaf
    shared = fusion.assembly.in_memory(Lazy(lazy.shape, Computed("div", (lazy.node, divisor), dtype)))
    in_place = not beside or shared.window.strides == channels_last_strides(lazy.shape)
    return shared if in_place else channels_last(fusion, shared)


def _counts(value: Value, pooled: tuple[int, ...]) -> torch.Tensor:
    """The number that each window's mean divides by."""
    if value.attributes["divisor_override"]:
        return torch.full(pooled[2:], float(value.attributes["divisor_override"]), dtype=torch.float64)
    window, sizes = _window(value), []
    for axis, extent in enumerate(tensor_type(value).shape[2:]):
        padding = window.padding[axis]
        first = torch.arange(pooled[2 + axis]) * window.stride[axis] - padding
        stop = (first + window.size[axis]).clamp(max=extent + padding)
        if not value.attributes["count_include_pad"]:
            first, stop = first.clamp(min=0), stop.clamp(max=extent)
        sizes.append((stop - first).double())
    return sizes[0][:, None] * sizes[1]


def _window(value: Value) -> ImageWindow:
    given = value.attributes
    stride, dilation = given["stride"] or given["kernel_size"], given.get("dilation", NO_DILATION)
    return ImageWindow(pair(given["kernel_size"]), pair(stride), pair(given["padding"]), pair(dilation))


def _users(fusion: Fusion, value: Value) -> list[Value]:
    return [user for user in fusion.region.values if value in user.operands]
