"""Find the inputs and outputs of a plan of which nothing is touched beyond the sizes of a call.

A tensor that lies in memory as its largest form would needs no copy into larger memory, if all loops that touch it end
where it does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.ir.extents import Polynomial
from weft.plan.extents.ends import CallEnds, End
from weft.plan.extents.hidden import Hidden
from weft.plan.extents.parts import Parts
from weft.plan.form.plan import KernelCall, Plan
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.reduce import RowKernel
from weft.plan.kernels.scatter import ScatterKernel


def tight_buffers(plan: Plan, sizes: Mapping[int, Polynomial], counted: Mapping[int, Parts]) -> tuple[int, ...]:
    """Give those of some buffers of which nothing is touched beyond what counts, by what does of each."""
    found = {buffer: parts for buffer, parts in counted.items() if parts}
    for call in (*plan.calls, *plan.checks, *plan.packing):
        touched = [number for number, place in enumerate(call.arguments) if place.buffer in found]
        if touched:
            ending = CallEnds(call, Hidden(call, {}, {}), {})
            for number in touched:
                buffer = call.arguments[number].buffer
                if buffer in found and not _ends_there(call, number, ending, (sizes, found[buffer])):
                    del found[buffer]
    return tuple(sorted(found))


def _ends_there(call: KernelCall, number: int, ending: CallEnds, given: tuple[Mapping[int, Polynomial], Parts]) -> bool:
    """Whether a call touches nothing of an argument beyond what counts."""
    sizes, parts = given
    dimensions: tuple[int, ...] = getattr(call.kernel, "ends", ())
    pairs = zip(dimensions, call.ends, strict=True)
    ends = {axis: End(sizes[end.size], end.times, end.more) for axis, end in pairs if not end.more}
    if not _is_exact(call.kernel, number - len(call.writes), ends):
        return False
    touched = ending.parts(number, ends)
    return all(key in touched and np.array_equal(touched[key].least, part.least) for key, part in parts.items())


def _is_exact(kernel: Kernel, read: int, ends: Mapping[int, End]) -> bool:
    """Whether a kernel reads an argument no farther than its loops go; what is written never is."""
    if isinstance(kernel, LoopKernel):
        return read not in kernel.schedule.transposed  # squares of which are read whole
    if isinstance(kernel, PackKernel):
        return len(kernel.batch) + 1 not in ends  # panels are as wide as ever
    if isinstance(kernel, AttentionKernel):
        return read != 1  # panels of keys
    return isinstance(kernel, RowKernel | GemmKernel | ScatterKernel)
