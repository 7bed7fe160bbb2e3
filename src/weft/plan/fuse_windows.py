"""Pooling of windows -> kernels."""

from __future__ import annotations

from weft.ir.graph import Value
from weft.ir.types import TensorType, TupleType
from weft.plan.fusion import Fusion
from weft.plan.kernel_conv import Images
from weft.plan.kernel_conv import Window as PoolWindow
from weft.plan.kernel_pool import PoolKernel, choose_pool_schedule
from weft.plan.lazy import Lazy
from weft.plan.window import Window, in_order_of

NO_DILATION = (1, 1)


def pool(fusion: Fusion, value: Value) -> tuple[Lazy, ...]:
    """A pooling; its results are laid out as its input is."""
    images = fusion.assembly.in_memory(fusion.operand(value))
    images = fusion.copies.get((images.source.buffer, images.window), images)
    given = value.attributes
    items = value.type.items if isinstance(value.type, TupleType) else (value.type,)
    shape = items[0].shape if isinstance(items[0], TensorType) else ()
    home = in_order_of(shape, images.window.strides)
    stride = given["stride"] or given["kernel_size"]
    window = PoolWindow(
        _pair(given["kernel_size"]), _pair(stride), _pair(given["padding"]), _pair(given.get("dilation", NO_DILATION))
    )
    count, channels, *in_size = images.window.shape
    sizes = (_pair(in_size), _pair(shape[2:]))
    is_max = value.op == "max_pool"
    indices = is_max and any(user.op == "item" and user.attributes["index"] == 1 for user in _users(fusion, value))
    layout = _images(home)
    kernel = PoolKernel(
        fusion.assembly.name("pool"), images.dtype, "max" if is_max else "mean", count, channels, *sizes, window,
        _images(images.window), layout,
        choose_pool_schedule(images.dtype, channels, sizes, layout, fusion.assembly.target), indices,
        bool(given.get("count_include_pad", True)), given.get("divisor_override"),
    )  # fmt: skip
    first = fusion.place_for(value, home) if value.op == "average_pool" else fusion.arena(home, images.dtype)
    outs = [first, fusion.arena(home, "i64")] if indices else [first]
    locate = fusion.assembly.location
    fusion.assembly.call(kernel, tuple(map(locate, outs)), (locate(images),))
    return tuple(Lazy(shape, leaf) for leaf in outs)


def _users(fusion: Fusion, value: Value) -> list[Value]:
    return [user for user in fusion.region.values if value in user.operands]


def _images(window: Window) -> Images:
    image, channel, row, column = window.strides
    return Images(image, row, column, channel)


def _pair(sizes: object) -> tuple[int, int]:
    assert isinstance(sizes, (list, tuple))
    return (int(sizes[0]), int(sizes[-1]))
