"""Say which rows and columns of images are needed by convolutions and poolings that end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from weft.ir.extents import Polynomial
from weft.plan.extents.ends import Ends, follows
from weft.plan.extents.parts import NEVER, Part
from weft.plan.form.plan import KernelCall
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.expression import DTYPE_BYTES
from weft.plan.kernels.pool import PoolKernel
from weft.plan.kernels.winograd import WinogradKernel

ImageKernel = ConvKernel | PoolKernel | WinogradKernel


def parts_seen(call: KernelCall, read: int, sizes: Mapping[int, Polynomial], ends: Ends) -> Iterator[Part]:
    """Give what a convolution or pooling reads of its images, by where it ends and by where they do.

    `sizes` are of buffers that hold one.
    """
    kernel = call.kernel
    if read or not isinstance(kernel, ImageKernel):
        return
    place, item, images = call.reads[0], DTYPE_BYTES[kernel.element], kernel.input
    channels = kernel.channels if isinstance(kernel, PoolKernel) else _channels(kernel)
    counts = (kernel.images, *kernel.in_size, channels)
    steps = tuple(step * item for step in (images.image, images.row, images.column, images.channel))
    begin = place.offset + images.offset * item
    holders = [sizes.get(place.buffer) for place in call.reads[len(call.reads) - sum(kernel.limited) :]]
    for axis in (0, 1):
        step, count = steps[axis + 1], counts[axis + 1]
        if not follows(counts, steps, axis + 1, begin, step):
            continue
        size = holders.pop(0) if kernel.limited[axis] else None
        if size is not None:
            yield Part(step, size, np.arange(count, dtype=np.int32))
        end = ends.get(axis + 1)
        if end is not None and end.times == 1:
            needed = end.part(step, kernel.out_size[axis]).least
            yield Part(step, end.size, _least(kernel, axis, needed))


def _channels(kernel: ConvKernel | WinogradKernel) -> int:
    if isinstance(kernel, WinogradKernel):
        return kernel.in_channels
    return kernel.out_channels if kernel.depthwise else kernel.groups * kernel.in_channels


def _least(kernel: ImageKernel, axis: int, needed: NDArray[np.int32]) -> NDArray[np.int32]:
    """For each row, or column, of the input the least size, less one, of a window that sees it."""
    length, window = kernel.in_size[axis], kernel.window
    found = np.full(length, NEVER, np.int32)
    for position, least in enumerate(needed):
        if isinstance(kernel, PoolKernel) and kernel.adaptive:
            out = kernel.out_size[axis]
            seen = range(position * length // out, -(-(position + 1) * length // out))
        else:
            start = position * window.stride[axis] - window.padding[axis]
            seen = range(start, start + (window.size[axis] - 1) * window.dilation[axis] + 1, window.dilation[axis])
        for place in seen:
            if 0 <= place < length:
                found[place] = min(found[place], least)
    return found
