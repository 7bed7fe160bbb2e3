"""Find the tiles of a plan that a call of small sizes needs not run, where a program is for a range of sizes.

A plan is made for the largest sizes; of a result only a part counts in a call. What is needed is followed back from
there. Where a dimension of a result varies, each tile is needed from some size on: from the first of its rows, or
columns, that count. A tile that another one reads from is needed where that one is. So every tile that runs reads what
tiles have computed that run too. One thing alone is read that may not have been computed: what a `select` hides at
positions beyond a size.

A tensor that lies in memory as its largest form would needs no copy into larger memory, if all loops that touch it end
where it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from weft.ir.extents import Polynomial
from weft.plan.extents.axes import Axes, axes_of, boxes_of, row_axis, rows_of
from weft.plan.extents.dense import Digits, with_dense
from weft.plan.extents.ends import CallEnds, End, Ends, Nothing, follows, nothing_beyond
from weft.plan.extents.finer import finer_tiles, in_lines, with_ends
from weft.plan.extents.hidden import Hidden, Ramps, lines_of_ramps, unused
from weft.plan.extents.parts import NEVER, Part, PartKey, Parts, needed_by_both, positions_of
from weft.plan.form.plan import KernelCall, NeededTiles, Plan
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.expression import DTYPE_BYTES
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.pool import PoolKernel
from weft.plan.kernels.recurrent import ELEMENT_BYTES, RecurrentKernel
from weft.plan.kernels.reduce import RowKernel
from weft.plan.kernels.scatter import ScatterKernel
from weft.plan.kernels.winograd import WinogradKernel

ImageKernel = ConvKernel | PoolKernel | WinogradKernel


def parts_seen(call: KernelCall, read: int, sizes: Mapping[int, Polynomial], ends: Ends) -> Iterator[Part]:
    """Give what a convolution or pooling reads of its images, by where it ends and by where they do.

    `sizes` are of buffers that hold one.
    """
    kernel = call.kernel
    if isinstance(kernel, RecurrentKernel) and not read:
        yield from _steps_seen(call, kernel, sizes)
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


def _steps_seen(call: KernelCall, kernel: RecurrentKernel, sizes: Mapping[int, Polynomial]) -> Iterator[Part]:
    """Give what a recurrent layer reads of what inputs give: as many steps as it is told."""
    size = sizes.get(call.reads[-1].buffer) if kernel.limited else None
    step, row = kernel.given.step * ELEMENT_BYTES, kernel.given.row * ELEMENT_BYTES
    counts = (kernel.steps, kernel.batch, kernel.gates * kernel.size)
    if size is not None and follows(counts, (step, row, ELEMENT_BYTES), 0, call.reads[0].offset, step):
        yield Part(step, size, np.arange(kernel.steps, dtype=np.int32))


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
    ends = {axis: End(sizes[end.size], end.times, end.more) for axis, end in pairs if end.is_exact}
    if not _is_exact(call.kernel, number - len(call.writes), ends):
        return False
    touched = ending.parts(number, ends)
    return all(key in touched and np.array_equal(touched[key].least, part.least) for key, part in parts.items())


def _is_exact(kernel: Kernel, read: int, ends: Mapping[int, End]) -> bool:
    """Whether a kernel reads an argument no farther than its loops go; what is written never is."""
    if isinstance(kernel, LoopKernel):
        return True
    if isinstance(kernel, PackKernel):
        return len(kernel.batch) + 1 not in ends  # panels are as wide as ever
    if isinstance(kernel, AttentionKernel):
        return read != 1  # panels of keys
    return isinstance(kernel, RowKernel | GemmKernel | ScatterKernel)


LEAST_LINE = 12  # rows: of shorter ones each would be a block of its own, which costs more than is left out
MOST_UNITS = 256  # ranges of tiles of a call that are told apart
LEAST_ROWS, LEAST_BLOCK = 32, 4  # rows of a product whose blocks decide for all, and of these


@dataclass(frozen=True, slots=True)
class VaryingBuffers:
    """What varies of the buffers of a plan, by their numbers.

    `sizes` hold a size as an i32, `wanted` says what is needed of outputs, `results` which of these are results alone,
    `given` what there is of inputs; `handed_on` are inputs that other regions make. `ramps` have the numbers 0, 1, 2
    and so on, each as often as they say. `forms` are of those that may be dense.
    """

    sizes: Mapping[int, Polynomial]
    wanted: Mapping[int, Parts]
    results: frozenset[int]
    given: Mapping[int, Parts]
    handed_on: frozenset[int]
    ramps: Ramps
    forms: Mapping[int, Digits] = field(default_factory=dict)


def with_needed_tiles(plan: Plan, varying: VaryingBuffers) -> tuple[Plan, Mapping[int, Parts]]:
    """Say of each call of a plan which tiles it needs and where its loops end, and what of what is handed on to it."""
    if not varying.sizes:
        return plan, {}
    written = {place.buffer for call in plan.calls for place in call.writes}  # in the place of what they are made of
    varying = replace(varying, handed_on=varying.handed_on - written)
    needs = _Needs(plan, varying)
    found = replace(plan, calls=tuple(needs.found()))
    alone = {buffer: parts for buffer, parts in varying.wanted.items() if buffer in varying.results}
    found = replace(found, tight=tight_buffers(found, varying.sizes, {**alone, **varying.given}))
    found = with_dense(found, varying.sizes, varying.forms)
    return found, {buffer: needs.needed.get(buffer, {}) for buffer in varying.handed_on}


class _Needs:
    """Goes through calls from the last to the first, and collects what is needed of each buffer."""

    def __init__(self, plan: Plan, varying: VaryingBuffers) -> None:
        self.sizes = sizes = varying.sizes
        self.ramps = varying.ramps
        self.plan = plan = replace(plan, calls=tuple(map(self._in_lines, plan.calls)))
        # Of all kernels alike, and a power of two as most lines are: where tiles of one end inside of another's, ever
        # more rows are needed from call to call.
        heights = [
            call.kernel.schedule.block_rows
            for call in plan.calls
            if isinstance(call.kernel, GemmKernel) and call.kernel.rows >= LEAST_ROWS
        ]
        self.block = max(LEAST_BLOCK, 1 << (min(heights, default=LEAST_BLOCK).bit_length() - 1))
        self.holders = {size: buffer for buffer, size in sizes.items()}
        self.needed: dict[int, Parts] = {
            number: dict(varying.wanted.get(number, {})) for number, _ in plan.of_kind("output")
        }
        whole = {place.buffer for call in (*plan.checks, *plan.packing) for place in call.reads}
        self.needed |= {number: {} for number in whole & varying.handed_on}
        made = {number for kind in ("arena", "output") for number, _ in plan.of_kind(kind)}
        self.followed = made | varying.handed_on  # buffers of which something may be left out
        self.packed: dict[int, Ends] = {}  # where panels of packed operands are read to
        self.nothing, self.infinite = self._beyond("sum"), self._beyond("min")

    def _in_lines(self, call: KernelCall) -> KernelCall:
        """The call with dimensions that are several for the masks it reads as these."""
        lines = lines_of_ramps(call, self.ramps)
        return replace(call, kernel=in_lines(call.kernel, lines)) if lines else call

    def _beyond(self, kind: str) -> dict[int, Nothing]:
        """Beyond which sizes buffers are what a kind of reduction is not changed by, of those that one call writes."""
        found: dict[int, Nothing] = {}
        writers = Counter(place.buffer for call in self.plan.calls for place in call.writes)
        for call in self.plan.calls:
            here = nothing_beyond(call, Hidden(call, self.sizes, self.ramps), found, kind)
            found |= {buffer: some for buffer, some in here.items() if writers[buffer] == 1}
        return found

    def found(self) -> list[KernelCall]:
        """The calls, in order."""
        return [self._call(call) for call in reversed(self.plan.calls)][::-1]

    def _call(self, call: KernelCall) -> KernelCall:
        # What nobody reads, as the means that a norm's gradient would need, asks for nothing.
        written = {
            number: self.needed[place.buffer] for number, place in enumerate(call.writes) if place.buffer in self.needed
        }
        call = replace(call, kernel=in_lines(call.kernel, self._lines(call, written)))
        ended, ends = self._ended(call, written)
        sizes = [self._not_ended(ended, number, ends, parts) for number, parts in written.items()]
        common = set.intersection(*sizes) if sizes else set()
        if not common:
            self._read(ended, None, {}, ends)
            return ended
        block = self.block if not ends else 0
        finer = replace(ended, kernel=finer_tiles(ended.kernel, self._line(call, written), block))
        units = _Units(finer, MOST_UNITS)
        least = {size: units.least(written, size) for size in sorted(common, key=str)}
        self._read(finer, units, least, ends)
        return replace(finer, needed=units.tiles(self.holders, least)) if any(map(np.any, least.values())) else ended

    def _not_ended(self, call: KernelCall, number: int, ends: Ends, needed: Parts) -> set[Polynomial]:
        """The sizes by which something of what a call writes is not needed, beyond where its loops end."""
        exact = {axis: end for axis, end in ends.items() if end.is_exact}
        ended = CallEnds(call, Hidden(call, {}, {}), {}).parts(number, exact) if exact else {}
        return {part.size for key, part in needed.items() if key not in ended}

    def _ended(self, call: KernelCall, written: Mapping[int, Parts]) -> tuple[KernelCall, Ends]:
        """The call with loops that end where nothing more is needed."""
        hidden = Hidden(call, self.sizes, self.ramps)
        found = CallEnds(call, hidden, self.nothing, self.infinite).found(written, self.packed)
        axes = axes_of(call.kernel)
        ends = {axis: end for axis, end in found.items() if end.size in self.holders}
        if axes is None or not ends:
            return call, {}
        kernel = with_ends(call.kernel, tuple(ends))
        return replace(
            call, kernel=kernel, ends=tuple(end.of(self.holders, axes[0][axis]) for axis, end in ends.items())
        ), ends

    def _lines(self, call: KernelCall, written: Mapping[int, Parts]) -> list[tuple[int, int]]:
        """The dimensions of a kernel that are several in what it touches, each with how long a line of it is."""
        axes = axes_of(call.kernel)
        if axes is None:
            return []
        counts, steps = axes
        known: list[tuple[int, Iterable[PartKey]]] = [*written.items()]
        if isinstance(call.kernel, ScatterKernel):  # what adds nothing is left out, as what nobody needs is
            read = enumerate(call.reads, len(call.writes))
            known += [(number, self.nothing[place.buffer]) for number, place in read if place.buffer in self.nothing]
        found = set()
        for number, keys in known:
            own = steps[number] or (0,) * len(counts)
            for (stride, count, _), axis in product(keys, range(len(counts))):
                line = stride // own[axis] * count if own[axis] > 0 and stride % own[axis] == 0 else 0
                if LEAST_LINE <= line < counts[axis] and counts[axis] % line == 0:
                    found.add((axis, line))
        return sorted(found)

    def _line(self, call: KernelCall, written: Mapping[int, Parts]) -> int:
        """How many rows of a kernel are a line: tiles of one line leave out what varies inside of it; 0 for any."""
        axes, row = axes_of(call.kernel), row_axis(call.kernel)
        if axes is None or row is None:
            return 0
        counts, steps = axes
        found = set()
        for number, parts in written.items():
            own = (steps[number] or counts)[row]
            for stride, count, _ in parts:
                line = stride // own * count if own > 0 and stride % own == 0 else 0
                if LEAST_LINE <= line < rows_of(call.kernel) and line <= counts[row]:
                    found.add(line)
        return next((line for line in sorted(found) if counts[row] % line == 0), 0)

    def _read(
        self, call: KernelCall, units: _Units | None, least: Mapping[Polynomial, NDArray[np.int32]], ends: Ends
    ) -> None:
        """Add what a call reads to what is needed: all of it without `units`, as far as loops go."""
        own = [place.buffer in self.followed for place in call.reads]
        if not any(own):
            return
        axes = axes_of(call.kernel)
        hides = Hidden(call, self.sizes, self.ramps)
        tables = {
            number: self.plan.buffers[place.buffer].bytes - place.offset for number, place in enumerate(call.arguments)
        }
        hidden, ending = hides.found(), CallEnds(call, hides, self.nothing, sizes=tables)
        for buffer, some in ending.packed(ends).items():
            others = self.packed.get(buffer, some)
            self.packed[buffer] = {at: end for at, end in some.items() if others.get(at) == end}
        nobody = unused(call.kernel)
        for number, place in enumerate(call.reads):
            if own[number] and number not in nobody:
                parts = {} if units is None or axes is None else self._parts_read(call, units, least, axes, number)
                seen = parts_seen(call, number, self.sizes, ends)
                for one in (*hidden.get(number, ()), *seen, *ending.parts(len(call.writes) + number, ends).values()):
                    before = parts.get(one.key)
                    parts[one.key] = one if before is None else replace(one, least=np.maximum(one.least, before.least))
                self.needed[place.buffer] = needed_by_both(self.needed.get(place.buffer), parts)

    def _parts_read(
        self,
        call: KernelCall,
        units: _Units,
        least: Mapping[Polynomial, NDArray[np.int32]],
        axes: Axes,
        read: int,
    ) -> Parts:
        """What the needed tiles of a call read of one argument, by the dimensions by which they are needed."""
        counts, steps = axes
        here = steps[len(call.writes) + read]
        found: Parts = {}
        for number, place in enumerate(call.writes):
            there = steps[number]
            if here is None or there is None:
                continue
            for stride, count, size in self.needed.get(place.buffer, {}):
                for axis in range(len(counts)):
                    own, other = there[axis], here[axis]
                    if size not in least or min(own, other) <= 0 or stride % own or stride >= own * counts[axis]:
                        continue
                    key = (other * (stride // own), count, size)
                    if key not in found:
                        found[key] = Part(key[0], size, units.least_read(read, key[0], count, least[size]))
        return found


class _Units:
    """The tiles of a call in ranges, and what each touches."""

    def __init__(self, call: KernelCall, most: int) -> None:
        kernel = call.kernel
        count, sizes = kernel.tile_count, kernel.tile_sizes
        width = 1 if sizes is None or len(sizes[1]) > most else len(sizes[1])
        step = 1 if count <= most else width * -(-count // (width * most))
        self.starts = [*range(0, count, step)]
        self.count = count
        ends = [*self.starts[1:], count]
        self.writes = len(call.writes)
        self.boxes = [
            [
                None if one is None else one.moved(place.offset)
                for one, place in zip(boxes_of(kernel, begin, end), call.arguments, strict=True)
            ]
            for begin, end in zip(self.starts, ends, strict=True)
        ]

    def least(self, written: Mapping[int, Parts], size: Polynomial) -> NDArray[np.int32]:
        """For each range the least size, less one, for which it is needed by what is needed of what it writes."""
        found = np.full(len(self.starts), NEVER, np.int32)
        for number, parts in written.items():
            those = [part for part in parts.values() if part.size == size]
            for unit, boxes in enumerate(self.boxes):
                one = boxes[number]
                own = -1 if one is None else max(part.of(one) for part in those)
                found[unit] = min(found[unit], own)
        return found

    def least_read(self, read: int, stride: int, count: int, least: NDArray[np.int32]) -> NDArray[np.int32]:
        """For each position of a dimension of an argument the least size, less one, for which a range reads it."""
        found = np.full(count, NEVER, np.int32)
        for unit, boxes in enumerate(self.boxes):
            one = boxes[self.writes + read]
            first, last = (0, count - 1) if one is None else positions_of(one, stride, count)
            np.minimum(found[first : last + 1], least[unit], out=found[first : last + 1])
        return found

    def tiles(
        self, holders: Mapping[Polynomial, int], least: Mapping[Polynomial, NDArray[np.int32]]
    ) -> NeededTiles | None:
        """The same as the plan has it: neighbours that are needed alike are one range."""
        known = [size for size in least if size in holders and np.any(least[size] > 0)]
        if not known:
            return None
        rows = [tuple(int(least[size][unit]) for size in known) for unit in range(len(self.starts))]
        kept = [unit for unit, row in enumerate(rows) if unit == 0 or row != rows[unit - 1]]
        columns = zip(*(rows[unit] for unit in kept), strict=True)
        return NeededTiles(
            tuple(holders[size] for size in known),
            (*(self.starts[unit] for unit in kept), self.count),
            tuple(columns),
        )
