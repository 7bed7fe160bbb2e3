"""Find the tiles of a plan that a call of small sizes needs not run, where a program is for a range of sizes.

A plan is made for the largest sizes; of a result only a part counts in a call. What is needed is followed back from
there. Where a dimension of a result varies, each tile is needed from some size on: from the first of its rows, or
columns, that count. A tile that another one reads from is needed where that one is. So every tile that runs reads what
tiles have computed that run too. One thing alone is read that may not have been computed: what a `select` hides at
positions beyond a size.

A `Part` of a buffer says from which size on each position of a dimension is needed, as far as the buffer is seen as
rows of so many positions, `stride` bytes apart. That is sound for any stride and count: what a box of bytes covers of
the positions is asked of the box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from weft.ir.extents import Polynomial
from weft.ir.graph import Value
from weft.passes.within import Within
from weft.plan.form.plan import KernelCall, Location, NeededTiles, Plan
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.blocks import cut
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.expression import DTYPE_BYTES, Instruction, View, strides_of
from weft.plan.kernels.gemm import Epilogue, EpilogueOperand, GemmKernel, Matrix, PackedMatrix, packed_size
from weft.plan.kernels.kernel import Boxes, ByteBox, Kernel, box, cut_range
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.pool import PoolKernel
from weft.plan.kernels.reduce import RowKernel, RowPass

LEAST_LINE = 12  # rows: of shorter ones each would be a block of its own, which costs more than is left out
MOST_UNITS = 256  # ranges of tiles of a call that are told apart
LEAST_ROWS, LEAST_BLOCK = 32, 4  # rows of a product whose blocks decide for all, and of these
FAR_BYTES, FAR_ROWS = 1 << 20, 32  # of a right operand that is in no near cache when the next rows come: more of these
LOOP_TILE, ROW_TILE = 512, 512  # elements of a tile of a loop, or of rows: small, for a few rows to be left out
NEVER = np.iinfo(np.int32).max
Axes = tuple[tuple[int, ...], tuple[tuple[int, ...] | None, ...]]
"""The counts of a kernel's dimensions, and how many bytes each argument steps for them; None of one read anywhere."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """From which size on the positions of a dimension are needed: position i where the size is above `least[i]`."""

    stride: int
    size: Polynomial
    least: NDArray[np.int32]

    @property
    def key(self) -> tuple[int, int, Polynomial]:
        """Which dimension it is of, and by which size."""
        return (self.stride, len(self.least), self.size)

    def of(self, found: ByteBox) -> int:
        """The least size, less one, for which something of a box is needed."""
        first, last = positions_of(found, self.stride, len(self.least))
        return int(self.least[first : last + 1].min())


@dataclass(frozen=True, slots=True, eq=False)
class VaryingSizes:
    """What varies of a Graph of the largest sizes: the inputs that hold a size, and what counts of its roots."""

    holders: Mapping[Value, Polynomial]
    within: Mapping[Value, Within]


Parts = dict[tuple[int, int, Polynomial], Part]
"""Of a buffer: all must find that an element is needed. Without any, all of it is needed always."""


def parts_of(strides: Sequence[int], within: Within) -> Parts:
    """Say what counts of a result whose dimensions step by so many bytes."""
    found: Parts = {}
    for stride, factors in zip(strides, within, strict=True):
        inner = prod(factor.largest for factor in factors)
        for factor in factors:
            inner //= max(factor.largest, 1)
            if factor.size is not None and stride > 0:
                part = Part(stride * inner, factor.size, np.arange(factor.largest, dtype=np.int32))
                found[part.key] = part
    return found


def positions_of(found: ByteBox, stride: int, count: int) -> tuple[int, int]:
    """Give the first and the last position that bytes of a box have in rows of so many, `stride` bytes apart."""
    period, high = stride * count, found.low + found.item
    for step, times in found.steps:
        if step % period:
            high += step * (times - 1)
    first, last = found.low // stride, (high - 1) // stride
    return (first % count, last % count) if first // count == last // count else (0, count - 1)


def with_needed_tiles(
    plan: Plan, sizes: Mapping[int, Polynomial], wanted: Mapping[int, Parts], ramps: frozenset[int]
) -> Plan:
    """Say of each call of a plan which tiles it needs.

    `sizes` are the buffers that hold a size as an i32, `wanted` says what counts of outputs, `ramps` are buffers of the
    numbers 0, 1, 2 and so on.
    """
    return replace(plan, calls=tuple(_Needs(plan, sizes, wanted, ramps).found())) if sizes and wanted else plan


class _Needs:
    """Goes through calls from the last to the first, and collects what is needed of each buffer."""

    def __init__(
        self, plan: Plan, sizes: Mapping[int, Polynomial], wanted: Mapping[int, Parts], ramps: frozenset[int]
    ) -> None:
        self.plan = plan
        self.sizes = sizes
        self.ramps = ramps
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
            number: dict(wanted.get(buffer.index, {})) for number, buffer in plan.of_kind("output")
        }

    def found(self) -> list[KernelCall]:
        """The calls, in order."""
        return [self._call(call) for call in reversed(self.plan.calls)][::-1]

    def _call(self, call: KernelCall) -> KernelCall:
        # What nobody reads, as the means that a norm's gradient would need, asks for nothing.
        written = {
            number: self.needed[place.buffer] for number, place in enumerate(call.writes) if place.buffer in self.needed
        }
        sizes = [{part.size for part in parts.values()} for parts in written.values()]
        common = set.intersection(*sizes) if sizes else set()
        if not common:
            self._read(call, None, {})
            return call
        finer = replace(call, kernel=finer_tiles(call.kernel, self._line(call, written), self.block))
        units = _Units(finer, MOST_UNITS)
        least = {size: units.least(written, size) for size in common}
        self._read(finer, units, least)
        return replace(finer, needed=units.tiles(self.holders, least)) if any(map(np.any, least.values())) else call

    def _line(self, call: KernelCall, written: Mapping[int, Parts]) -> int:
        """How many rows of a kernel are a line: tiles of one line leave out what varies inside of it; 0 for any."""
        axes, row = axes_of(call.kernel), _row_axis(call.kernel)
        if axes is None or row is None:
            return 0
        counts, steps = axes
        found = set()
        for number, parts in written.items():
            own = (steps[number] or counts)[row]
            for stride, count, _ in parts:
                line = stride // own * count if own > 0 and stride % own == 0 else 0
                if LEAST_LINE <= line < _rows_of(call.kernel) and line <= counts[row]:
                    found.add(line)
        return next((line for line in sorted(found) if counts[row] % line == 0), 0)

    def _read(self, call: KernelCall, units: _Units | None, least: Mapping[Polynomial, NDArray[np.int32]]) -> None:
        """Add what a call reads to what is needed: all of it without `units`."""
        own = [self.plan.buffers[place.buffer].kind in ("arena", "output") for place in call.reads]
        if not any(own):
            return
        axes = axes_of(call.kernel)
        hidden = _Hidden(call, self.sizes, self.ramps).found()
        for number, place in enumerate(call.reads):
            if own[number]:
                parts = {} if units is None or axes is None else self._parts_read(call, units, least, axes, number)
                for one in hidden.get(number, ()):
                    before = parts.get(one.key)
                    parts[one.key] = one if before is None else replace(one, least=np.maximum(one.least, before.least))
                self._add(place.buffer, parts)

    def _add(self, buffer: int, parts: Parts) -> None:
        before = self.needed.get(buffer)
        if before is not None:
            both = before.keys() & parts.keys()
            parts = {key: replace(parts[key], least=np.minimum(parts[key].least, before[key].least)) for key in both}
        self.needed[buffer] = parts

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


# What tiles touch, and how arguments of kernels step along their dimensions.


def boxes_of(kernel: Kernel, begin: int, end: int) -> Boxes:
    """Give what tiles touch, of packed operands too: of these the matrices that the tiles are of."""
    if isinstance(kernel, PackKernel) and not (kernel.casts or kernel.group > 1):
        return _boxes_of_packing(kernel, begin, end)
    found = kernel.boxes(begin, end)
    if not isinstance(kernel, AttentionKernel):
        return found
    first = 1 + 2 * kernel.keeps_numbers
    operands = zip((kernel.key, kernel.value), (kernel.scores(1), kernel.values(1, kernel.sizes.keys)), strict=True)
    packed = []
    for place, (operand, product) in enumerate(operands, first + 1):
        one = found[place]
        if isinstance(operand, PackedMatrix):
            blocks = kernel.row_blocks.count
            matrices = (begin // blocks, (end - 1) // blocks + 1)
            elements = packed_size(product.columns, product.inner, product.schedule)
            one = _matrices(kernel.sizes.batch, operand.batch, matrices, (elements, DTYPE_BYTES[kernel.sizes.element]))
        packed.append(one)
    return (*found[: first + 1], *packed, *found[first + 3 :])


def _boxes_of_packing(kernel: PackKernel, begin: int, end: int) -> Boxes:
    item, panels = DTYPE_BYTES[kernel.element], kernel.panels
    matrices = (begin // panels.count, (end - 1) // panels.count + 1)
    elements = panels.total * kernel.lanes * kernel.depth
    source = kernel.source
    offset, steps = cut_range(kernel.batch, source.batch, *matrices) if kernel.batch else (0, [])
    sides = [*((stride, size) for size, stride in kernel.outer), (source.row, kernel.inner)]
    read = box(offset + kernel.offset, [*steps, *sides, (source.column, kernel.columns)], item)
    written = _matrices(kernel.batch, kernel.packed_batch, matrices, (elements, item))
    return (written, read, *((None,) if kernel.scale_batch is not None else ()))


def _matrices(
    batch: tuple[int, ...], strides: tuple[int, ...], matrices: tuple[int, int], sizes: tuple[int, int]
) -> ByteBox | None:
    """The box of some packed matrices of so many elements, each of so many bytes."""
    elements, item = sizes
    offset, steps = cut_range(batch, strides, *matrices) if batch else (0, [])
    return box(offset, [*steps, (1, elements)], item)


def axes_of(kernel: Kernel) -> Axes | None:
    """Give a kernel's dimensions, as far as arguments step along them evenly; None of a kind that is not known."""
    if isinstance(kernel, LoopKernel):
        views = [*kernel.outputs, *kernel.inputs]
        return kernel.sizes, (*map(_steps, views), *(None for _ in kernel.tables))
    if isinstance(kernel, RowKernel):
        expression = kernel.expression
        views = [*expression.outputs, *expression.inputs]
        return (*expression.rows, *expression.columns), tuple(map(_steps, views))
    if isinstance(kernel, PackKernel):
        item = DTYPE_BYTES[kernel.element]
        steps = (kernel.packed_batch, kernel.source.batch)
        others = () if kernel.scale_batch is None else (None,)
        return kernel.batch, (*(tuple(step * item for step in row) for row in steps), *others)
    if isinstance(kernel, GemmKernel):
        return _axes_of_product(kernel)
    if isinstance(kernel, AttentionKernel):
        return _axes_of_attention(kernel)
    if isinstance(kernel, (ConvKernel, PoolKernel)):
        return _axes_of_images(kernel)
    return None


def _row_axis(kernel: Kernel) -> int | None:
    """The dimension of a kernel that tiles cut into rows."""
    if isinstance(kernel, LoopKernel):
        return max(len(kernel.sizes) - 2, 0)
    if isinstance(kernel, RowKernel):
        return len(kernel.expression.rows) - 1
    return len(kernel.batch) if isinstance(kernel, GemmKernel) else None


def _rows_of(kernel: Kernel) -> int:
    """How many rows tiles cut, of one matrix where there are several."""
    if isinstance(kernel, LoopKernel):
        return kernel.rows if kernel.rows > 1 else kernel.columns
    if isinstance(kernel, RowKernel):
        return prod(kernel.outer_rows)
    return kernel.rows if isinstance(kernel, GemmKernel) else 0


def _steps(view: View) -> tuple[int, ...]:
    return tuple(step * DTYPE_BYTES[view.dtype] for step in view.strides)


def _axes_of_product(kernel: GemmKernel) -> Axes:
    item, batch = DTYPE_BYTES[kernel.element], len(kernel.batch)

    def steps(where: Matrix | EpilogueOperand, row: int, column: int, size: int = item) -> tuple[int, ...]:
        return tuple(step * size for step in (*where.batch, row, column))

    right = kernel.right
    return (*kernel.batch, kernel.rows, kernel.columns), (
        steps(kernel.out, kernel.out.row, kernel.out.column, kernel.epilogue.stored_bytes(kernel.element)),
        steps(kernel.left, kernel.left.row, 0),
        None
        if isinstance(right, PackedMatrix)
        else (*(step * item for step in right.batch[:batch]), 0, right.column * item),
        *(steps(operand, operand.row, operand.column) for operand in kernel.epilogue.inputs),
    )


def _axes_of_attention(kernel: AttentionKernel) -> Axes:
    sizes, item = kernel.sizes, DTYPE_BYTES[kernel.sizes.element]

    def steps(batch: Sequence[int], row: int, size: int = item) -> tuple[int, ...]:
        return tuple(step * size for step in (*batch, row))

    counts = (*sizes.batch, sizes.rows)
    number = tuple(prod(counts[place + 1 :]) * item for place in range(len(counts)))
    return counts, (
        steps(kernel.out.batch, kernel.out.row),
        *((number, number) if kernel.keeps_numbers else ()),
        steps(kernel.query.batch, kernel.query.row),
        steps(kernel.key.batch, 0),
        steps(kernel.value.batch, 0),
        *(steps(view.strides[:-2], view.strides[-2], DTYPE_BYTES[view.dtype]) for view in kernel.inputs),
    )


def _axes_of_images(kernel: ConvKernel | PoolKernel) -> Axes:
    item = DTYPE_BYTES[kernel.element]
    out, given = (kernel.output.image * item,), (kernel.input.image * item,)
    if isinstance(kernel, PoolKernel):
        return (kernel.images,), (out, *((None,) if kernel.indices else ()), given)
    stored = (kernel.output.image * kernel.epilogue.stored_bytes(kernel.element),)
    pixels = prod(kernel.out_size) * item
    return (kernel.images,), (stored, given, None, *((one.row * pixels,) for one in kernel.epilogue.inputs))


# What a kernel hides.


class _Hidden:
    """Finds what `select` hides of a kernel's inputs, at positions beyond a size."""

    def __init__(self, call: KernelCall, sizes: Mapping[int, Polynomial], ramps: frozenset[int]) -> None:
        self.call = call
        self.sizes = sizes
        self.ramps = ramps

    def found(self) -> dict[int, list[Part]]:
        """For each read the parts outside of which nothing of it is used."""
        kernel = self.call.kernel
        axes = axes_of(kernel)
        if axes is None:
            return {}
        if isinstance(kernel, LoopKernel):
            first = len(kernel.inputs)
            hidden = self._of_body(kernel.inputs, kernel.body, first, kernel.results)
        elif isinstance(kernel, RowKernel):
            hidden = self._of_rows(kernel)
        else:
            return {}
        return {number: self._parts(number, some, axes) for number, some in hidden.items() if some}

    def _of_rows(self, kernel: RowKernel) -> dict[int, set[tuple[int, Polynomial]]]:
        expression = kernel.expression
        inputs = expression.inputs
        found: dict[int, set[tuple[int, Polynomial]]] = {}
        numbers = len(inputs) + len(expression.outputs)
        for stage in expression.stages:
            stored = [store.value for store in stage.stores]
            if isinstance(stage, RowPass):
                given = [reduction.value for reduction in stage.reductions]
            else:
                given = [*stage.results]
            for number, some in self._of_body(inputs, stage.body, numbers, [*stored, *given]).items():
                found[number] = found[number] & some if number in found else some
            numbers += len(given)
        return found

    def _of_body(
        self, inputs: Sequence[View], body: Sequence[Instruction], first: int, roots: Sequence[int]
    ) -> dict[int, set[tuple[int, Polynomial]]]:
        """For each input that is read the axes along which only positions below a size are used."""
        needs: dict[int, set[tuple[int, Polynomial]]] = {root: set() for root in roots}

        def use(value: int, some: set[tuple[int, Polynomial]]) -> None:
            needs[value] = needs[value] & some if value in needs else set(some)

        for place in reversed(range(len(body))):
            line, own = body[place], needs.get(first + place)
            if own is None:
                continue
            if line.op == "select":
                condition, kept, other = line.operands
                use(condition, own)
                use(kept, own | self._within(inputs, body, first, condition))
                use(other, own)
            else:
                for operand in line.operands:
                    use(operand, own)
        return {number: some for number, some in needs.items() if number < len(inputs)}

    def _within(
        self, inputs: Sequence[View], body: Sequence[Instruction], first: int, value: int
    ) -> set[tuple[int, Polynomial]]:
        """The axes and sizes of which a condition says that positions are below."""
        if value < first:
            return set()
        line = body[value - first]
        if line.op == "logical_and":
            one, other = (self._within(inputs, body, first, operand) for operand in line.operands)
            return one | other
        if line.op != "lt":
            return set()
        axis = self._ramp(inputs, body, first, line.operands[0])
        size = self._size(inputs, line.operands[1])
        return set() if axis is None or size is None else {(axis, size)}

    def _ramp(self, inputs: Sequence[View], body: Sequence[Instruction], first: int, value: int) -> int | None:
        """The axis along which a value is the position."""
        if value < len(inputs):
            place = self._place(value)
            is_ramp = place.buffer in self.ramps and place.offset == 0 and inputs[value].offset == 0
            strides: Sequence[int] | None = inputs[value].strides if is_ramp else None
        elif value >= first and body[value - first].op == "iota" and body[value - first].attributes[-1] == 0:
            strides = strides_of(body[value - first])
        else:
            strides = None
        moving = [axis for axis, step in enumerate(strides or ()) if step]
        return moving[0] if strides is not None and len(moving) == 1 and strides[moving[0]] == 1 else None

    def _size(self, inputs: Sequence[View], value: int) -> Polynomial | None:
        if value >= len(inputs) or any(inputs[value].strides):
            return None
        return self.sizes.get(self._place(value).buffer)

    def _place(self, number: int) -> Location:
        return self.call.reads[number]

    def _parts(self, number: int, some: set[tuple[int, Polynomial]], axes: Axes) -> list[Part]:
        counts, steps = axes
        here = steps[len(self.call.writes) + number]
        view = _inputs_of(self.call.kernel)[number]
        item = DTYPE_BYTES[view.dtype]
        begin = self._place(number).offset + view.offset * item
        found = []
        for axis, size in some:
            step, count = 0 if here is None else here[axis], counts[axis]
            if here is None or step <= 0 or begin // step % count:
                continue
            others = [(here[place], times) for place, times in enumerate(counts) if place != axis and here[place]]
            inner = begin % step + item + sum((times - 1) * other for other, times in others if 0 < other < step)
            if inner <= step and all(
                0 < other < step or (other > 0 and not other % (step * count)) for other, _ in others
            ):
                found.append(Part(step, size, np.arange(count, dtype=np.int32)))
        return found


def _inputs_of(kernel: Kernel) -> tuple[View, ...]:
    if isinstance(kernel, RowKernel):
        return kernel.expression.inputs
    return kernel.inputs if isinstance(kernel, LoopKernel) else ()


# Tiles of a few rows, so that a call leaves out most of what it can.


def finer_tiles(kernel: Kernel, line: int, block: int) -> Kernel:
    """Give the same kernel in smaller tiles, none of which is of two lines of so many rows; 0 is one line.

    Products and attentions have blocks of so many rows.
    """
    if isinstance(kernel, LoopKernel) and kernel.rows == 1:
        step, before = kernel.schedule.lanes * kernel.schedule.unroll, kernel.schedule.column_tile
        steps = _rows(LOOP_TILE // step, before // step, line // step if line % step == 0 else 0)
        return replace(kernel, schedule=replace(kernel.schedule, column_tile=min(before, steps * step)))
    if isinstance(kernel, LoopKernel) and not kernel.schedule.transposed:
        rows = LOOP_TILE // max(kernel.schedule.column_tile, 1)
        return replace(
            kernel, schedule=replace(kernel.schedule, row_tile=_rows(rows, kernel.schedule.row_tile, line, block))
        )
    if isinstance(kernel, RowKernel) and not kernel.schedule.along_rows:
        rows = ROW_TILE // max(prod(kernel.expression.columns), 1)
        return replace(
            kernel, schedule=replace(kernel.schedule, row_tile=_rows(rows, kernel.schedule.row_tile, line, block))
        )
    if isinstance(kernel, AttentionKernel):
        return replace(kernel, schedule=replace(kernel.schedule, row_block=min(block, kernel.schedule.row_block)))
    return _finer_product(kernel, line, block) if isinstance(kernel, GemmKernel) else kernel


def _rows(wanted: int, before: int, line: int, block: int = 0) -> int:
    """So many rows for a tile, or a few less, so that lines, and blocks of products, are whole tiles."""
    most = max(1, min(wanted, before))
    return next(rows for rows in range(most, 0, -1) if not (line % rows or block % rows))


def _finer_product(kernel: GemmKernel, line: int, block: int) -> GemmKernel:
    if line and not kernel.batch and kernel.rows > line and not kernel.rows % line:
        kernel = replace(
            kernel,
            batch=(kernel.rows // line,),
            rows=line,
            left=replace(kernel.left, batch=(line * kernel.left.row,)),
            right=replace(kernel.right, batch=(0,)),
            out=replace(kernel.out, batch=(line * kernel.out.row,)),
            epilogue=_in_lines(kernel.epilogue, line),
        )
    schedule, panels = kernel.schedule, kernel.walk.panels.count
    if kernel.inner * kernel.columns * DTYPE_BYTES[kernel.element] > FAR_BYTES:
        down = min(schedule.tile_row_blocks, -(-FAR_ROWS // schedule.block_rows))
        return replace(kernel, schedule=replace(schedule, tile_row_blocks=down))
    across = cut(panels, max(1, min(panels, schedule.tile_panels * schedule.tile_row_blocks))).size
    rows = min(block, schedule.block_rows)
    return replace(kernel, schedule=replace(schedule, block_rows=rows, tile_row_blocks=1, tile_panels=across))


def _in_lines(epilogue: Epilogue, line: int) -> Epilogue:
    def lined(operand: EpilogueOperand) -> EpilogueOperand:
        return replace(operand, batch=(line * operand.row,))

    bias = None if epilogue.bias is None else lined(epilogue.bias)
    return replace(epilogue, bias=bias, operands=tuple(map(lined, epilogue.operands)))
