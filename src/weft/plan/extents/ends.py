"""Find where loops of kernels end, by what is needed of what they write and by what is nothing beyond a size.

A dimension of which the first positions are needed ends there. So does a dimension that is summed up, where all that
is beyond a size adds nothing: a `select` puts what changes nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from weft.ir.extents import Polynomial
from weft.plan.extents.axes import axes_of, boxes_of
from weft.plan.extents.hidden import Hidden
from weft.plan.extents.parts import NEVER, Part, PartKey, Parts, needed_by_both
from weft.plan.form.plan import KernelCall, LoopEnd
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.conv_weight import DepthwiseWeightKernel, WeightGradientKernel
from weft.plan.kernels.expression import DTYPE_BYTES, Instruction, strides_of
from weft.plan.kernels.gemm import GemmKernel, PackedMatrix
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.pool import PoolKernel
from weft.plan.kernels.recurrent import RecurrentKernel
from weft.plan.kernels.reduce import RowKernel
from weft.plan.kernels.scatter import ScatterKernel
from weft.plan.kernels.winograd import WinogradKernel

ENDED = (
    LoopKernel,
    RowKernel,
    GemmKernel,
    PackKernel,
    AttentionKernel,
    AttentionGradientKernel,
    ScatterKernel,
    ConvKernel,
    PoolKernel,
    WinogradKernel,
    WeightGradientKernel,
    DepthwiseWeightKernel,
    RecurrentKernel,
)


@dataclass(frozen=True, slots=True)
class End:
    """A dimension of which (size + more) * times places are needed, the sum rounded up to a multiple of `whole`.

    With `row` it is a later part of a dimension of so many positions.
    """

    size: Polynomial
    times: int
    more: int
    row: int = 0
    whole: int = 1

    @property
    def is_exact(self) -> bool:
        """Whether it is a size, or a multiple of it."""
        return self.more == 0 and self.whole == 1

    def of(self, holders: Mapping[Polynomial, int], most: int) -> LoopEnd:
        """The same as a plan has it."""
        return LoopEnd(holders[self.size], self.more, self.times, most, self.whole)

    def part(self, step: int, count: int) -> Part:
        """What is needed of an argument that steps by so many bytes along a dimension of so many places."""
        places = np.arange(-(-count // self.times), dtype=np.int32)
        return Part(step * self.times, self.size, np.maximum(places // self.whole * self.whole - self.more, 0))


STEEP = (1, 2, 3, 4, 8, 16, 32)  # strides of windows, and of one behind the other
WHOLE = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # positions of tiles
Ends = dict[int, End]
Nothing = set[PartKey]
"""Of a buffer: along which dimensions it is 0 beyond a size, or another number that changes nothing."""
JOINED = {"add": "sum", "mul": "prod", "minimum": "min", "maximum": "max"}  # reductions, by how elements are joined
NOWHERE: Mapping[int, Nothing] = MappingProxyType({})
NO_BYTES: Mapping[int, int] = MappingProxyType({})


class CallEnds:
    """Finds where loops of one call end."""

    def __init__(
        self,
        call: KernelCall,
        hidden: Hidden,
        nothing: Mapping[int, Nothing],
        infinite: Mapping[int, Nothing] = NOWHERE,
        sizes: Mapping[int, int] = NO_BYTES,
    ) -> None:
        """`nothing` tells beyond which sizes buffers are 0, `infinite` beyond which they are infinite.

        `sizes` are the bytes of arguments that are tables, by their numbers.
        """
        self._bytes = sizes
        self.call = call
        self.hidden = hidden
        self.nothing = nothing
        self.infinite = infinite
        self.axes = axes_of(call.kernel)
        whole = boxes_of(call.kernel, 0, call.kernel.tile_count) if call.kernel.tile_count else ()
        self._begins = [
            None if found is None else found.low + place.offset
            for found, place in zip(whole, call.arguments, strict=False)
        ]

    def found(self, written: Mapping[int, Parts], read: Mapping[int, Ends]) -> Ends:
        """The ends of a call by what is needed of what it writes; `read` are those of readers of packed operands."""
        kernel = self.call.kernel
        if not isinstance(kernel, ENDED) or self.axes is None or not self._begins:
            return {}
        found: Ends = {}
        for axis in range(len(self.axes[0])):
            choices = self._of_packing(kernel, axis, read) if isinstance(kernel, PackKernel) else None
            if choices is None:
                choices = self._choices(kernel, axis, written)
            choices = [end for end in choices if end.more * end.times < self.axes[0][axis]]  # others never end
            if choices:
                # That of an outer dimension leaves out more, and so does what is nearer to its size.
                found[axis] = min(choices, key=lambda end: (end.times, end.more, end.whole, str(end.size)))
        return {axis: end for axis, end in found.items() if _can_end(kernel, axis)}

    def _of_packing(self, kernel: PackKernel, axis: int, read: Mapping[int, Ends]) -> list[End] | None:
        batch = len(kernel.batch)
        if axis < batch:
            return None
        end = read.get(self.call.writes[0].buffer, {}).get(axis - batch)
        return [] if end is None else [end]

    def _choices(self, kernel: Kernel, axis: int, written: Mapping[int, Parts]) -> list[End]:
        assert self.axes is not None
        _, steps = self.axes
        found: dict[tuple[Polynomial, int], NDArray[np.int32]] | None = None
        if all((own := steps[number]) is None or own[axis] == 0 for number in range(len(self.call.writes))):
            if isinstance(kernel, WeightGradientKernel | DepthwiseWeightKernel):
                return self._of_images(len(self.call.writes) + 1, axis)
            return [End(size, times, 0) for size, times in self._summed(kernel, axis)]
        for number, parts in written.items():
            own = steps[number]
            if own is None:
                return []
            if own[axis] == 0:
                continue  # a number of a row, of what reductions give
            here = self._written(number, axis, parts)
            if found is not None:
                here = {key: np.minimum(least, found[key]) for key, least in here.items() if key in found}
            found = here
        chosen = [_closest(size, times, least) for (size, times), least in (found or {}).items()]
        if isinstance(kernel, AttentionGradientKernel) and axis >= len(kernel.sizes.batch):
            added = self._summed(kernel, axis)  # to the gradients of others
            return [one for one in chosen if one.is_exact and (one.size, one.times) in added]
        if not isinstance(kernel, RowKernel) or axis < len(kernel.expression.rows):
            return chosen
        sums = self.hidden.reduced()
        return [
            one for one in chosen if one.is_exact and (sums is None or ((axis, one.size) in sums and one.times == 1))
        ]

    def _written(self, number: int, axis: int, parts: Parts) -> dict[tuple[Polynomial, int], NDArray[np.int32]]:
        """From which size on what is needed of one result, by the size and how many places each position is."""
        counts, steps = self.axes or ((), ())
        own, begin = steps[number], self._begins[number]
        found: dict[tuple[Polynomial, int], NDArray[np.int32]] = {}
        if own is None or begin is None or own[axis] <= 0:
            return found
        for (stride, count, size), part in parts.items():
            times, rest = divmod(stride, own[axis])
            if rest or not 0 < times < counts[axis] <= times * count:
                continue
            first = (
                0 if follows(counts, own, axis, begin, stride) else _inside(counts, own, axis, begin, (count, times))
            )
            if first is None or first + -(-counts[axis] // times) > count:
                continue
            found[size, times] = part.least[first : first + -(-counts[axis] // times)]
        return found

    def _summed(self, kernel: Kernel, axis: int) -> list[tuple[Polynomial, int]]:
        """The sizes, and how often each counts, beyond which nothing is added along a dimension that is summed up."""
        if isinstance(kernel, RowKernel):
            sums = self.hidden.reduced()
            return [(size, 1) for place, size in sums or () if place == axis]
        if isinstance(kernel, AttentionKernel) and axis == len(kernel.sizes.batch) + 1:
            scores = {size for place, size in self.hidden.hidden_scores() if place == axis}
            values = self._nothing_read(len(self.call.writes) + 2, axis)
            return [(size, times) for size, times in values if times == 1 and size in scores]
        if isinstance(kernel, AttentionGradientKernel):
            return [(size, times) for size, times in self._without_share(kernel, axis) if times == 1]
        if isinstance(kernel, ScatterKernel):
            return sorted(self._scattered(kernel, axis), key=lambda one: one[1])
        if not isinstance(kernel, GemmKernel) or axis != len(kernel.batch) + 2:
            return []
        first, second = (self._nothing_read(len(self.call.writes) + number, axis) for number in (0, 1))
        return sorted(first & second, key=lambda one: one[1])

    def _without_share(self, kernel: AttentionGradientKernel, axis: int) -> set[tuple[Polynomial, int]]:
        """The sizes beyond which queries have a share in nothing, or nobody has one in keys."""
        writes, scores = len(self.call.writes), self.hidden.shared_scores()
        if scores is None:
            return set()
        if axis == len(kernel.sizes.batch):
            infinite = self._nothing_read(writes + 3 + scores.logarithm, axis, self.infinite)
            return self._nothing_read(writes, axis) & self._nothing_read(writes + 2, axis) & infinite
        hidden = {(size, 1) for place, size in scores.hidden if place == axis}
        return self._nothing_read(writes + 4, axis) & hidden

    def _scattered(self, kernel: ScatterKernel, axis: int) -> set[tuple[Polynomial, int]]:
        """The sizes beyond which what is scattered changes nothing."""
        scatter = kernel.expression
        if axis == len(scatter.sizes) - 1 or scatter.join not in JOINED:
            return set()
        found = {(size, 1) for place, size in self.hidden.scattered(JOINED[scatter.join]) if place == axis}
        if scatter.join == "add" and scatter.value < len(scatter.inputs):
            found |= self._nothing_read(len(self.call.writes) + scatter.value, axis)
        return found

    def _nothing_read(
        self, number: int, axis: int, known: Mapping[int, Nothing] | None = None
    ) -> set[tuple[Polynomial, int]]:
        """The sizes beyond which an argument is 0 along a dimension, and how many places each position of them is."""
        counts, steps = self.axes or ((), ())
        own, begin = steps[number], self._begins[number]
        those = (self.nothing if known is None else known).get(self.call.arguments[number].buffer, set())
        if own is None or (self._may_be_packed(number) and not own[axis]):
            # Packed: known by the dimension of the sum, whose places are steps.
            return {(size, times) for times, count, size in those if counts[axis] <= times * count}
        found = set()
        for stride, count, size in those:
            times, rest = divmod(stride, own[axis]) if own[axis] > 0 else (0, 0)
            fits = not rest and 0 < times < counts[axis] <= times * count
            if fits and begin is not None and follows(counts, own, axis, begin, stride):
                found.add((size, times))
        return found

    def _may_be_packed(self, number: int) -> bool:
        kernel, right = self.call.kernel, len(self.call.writes) + 1
        return isinstance(kernel, AttentionKernel) or (
            isinstance(kernel, GemmKernel) and isinstance(kernel.right, PackedMatrix) and number == right
        )

    def _of_images(self, number: int, axis: int) -> list[End]:
        """Where a sum over images, or some of them, ends: where an output's gradient does."""
        counts, steps = self.axes or ((), ())
        own, begin = steps[number], self._begins[number]
        found = []
        for stride, count, size in self.nothing.get(self.call.arguments[number].buffer, ()):
            if own is not None and begin is not None and stride == own[axis]:
                first = _inside(counts, own, axis, begin, (count, 1))
                if first is not None and first + counts[axis] <= count:
                    found.append(End(size, 1, -first, count))
        return found

    def copied(self, number: int) -> set[tuple[int, int, int, Polynomial]]:
        """Along which dimensions an argument is 0: places of each position, positions in a row, and of which size."""
        counts, steps = self.axes or ((), ())
        own, begin = steps[number], self._begins[number]
        found = {
            (axis, times, -(-counts[axis] // times), size)
            for axis in range(len(counts))
            for size, times in self._nothing_read(number, axis)
        }
        if own is None or begin is None:
            return found
        for (stride, count, size), axis in product(
            self.nothing.get(self.call.arguments[number].buffer, ()), range(len(counts))
        ):
            times, rest = divmod(stride, own[axis]) if own[axis] > 0 else (0, 1)
            is_line = not rest and 1 < times * count < counts[axis] and not counts[axis] % (times * count)
            if is_line and not begin // stride % count and follows(counts, own, axis, begin, stride):
                found.add((axis, times, count, size))  # several rows of positions, one behind the other
        return found

    def parts(self, number: int, ends: Ends) -> Parts:
        """What is touched of an argument, by where loops end."""
        counts, steps = self.axes or ((), ())
        own, begin = steps[number] if steps else None, self._begins[number] if self._begins else None
        found: Parts = {}
        if isinstance(self.call.kernel, LoopKernel) and number >= len(self.call.arguments) - len(
            self.call.kernel.tables
        ):
            return self._taken(self.call.kernel, number, ends)
        if own is None or begin is None:
            return found
        for axis, end in ends.items():
            if end.row:
                first = _inside(counts, own, axis, begin, (end.row, 1)) if own[axis] > 0 else None
                if first == -end.more:
                    least = np.full(end.row, NEVER, np.int32)
                    least[first : first + counts[axis]] = np.arange(first, first + counts[axis])
                    part = Part(own[axis], end.size, least)
                    found[part.key] = part
            elif own[axis] > 0 and follows(counts, own, axis, begin, own[axis] * end.times):
                part = end.part(own[axis], counts[axis])
                found[part.key] = part
        return found

    def _taken(self, kernel: LoopKernel, number: int, ends: Ends) -> Parts:
        """What is taken of a table at places that are whole slices of what goes along with a loop that ends."""
        table = number - len(self.call.arguments) + len(kernel.tables)
        item, begin = DTYPE_BYTES[kernel.tables[table]], self.call.arguments[number].offset
        first, found = len(kernel.inputs), None
        for line in (line for line in kernel.body if line.op == "take" and line.attributes[0] == table):
            steps = [step * item for step in strides_of(line) or ()]
            apart = _factor(kernel.body, first, line.operands[0]) * item
            here: Parts = {}
            for axis, end in ends.items():
                start, step = begin + int(line.attributes[-1]) * item, steps[axis]
                if end.row or step <= 0 or not follows(kernel.sizes, steps, axis, start, step * end.times):
                    continue
                part = end.part(step, kernel.sizes[axis])
                if apart % (part.stride * len(part.least)) == 0:
                    here[part.key] = part
            below = self._part_below(kernel, line, (begin, steps, apart), self._bytes.get(number, 0))
            here |= {} if below is None else {below.key: below}
            found = needed_by_both(found, here)
        return found or {}

    def _part_below(
        self, kernel: LoopKernel, line: Instruction, where: tuple[int, list[int], int], most: int
    ) -> Part | None:
        """What is taken of a table of so many bytes, along the dimension of places that are below a size."""
        (begin, steps, apart), below = where, self._below(kernel, line.operands[0])
        if below is None or apart <= 0:
            return None
        count = min((step for step in steps if step >= apart), default=most) // apart
        start = begin + int(line.attributes[-1]) * DTYPE_BYTES[line.dtype]
        if count < 2 or not follows((*kernel.sizes, count), (*steps, apart), len(steps), start, apart):
            return None
        return Part(apart, below, np.arange(count, dtype=np.int32))

    def _below(self, kernel: LoopKernel, value: int) -> Polynomial | None:
        """The size below which places are, before they are counted in elements; None of what is not known."""
        first = len(kernel.inputs)

        def line_of(operand: int) -> Instruction | None:
            return kernel.body[operand - first] if operand >= first else None

        line = line_of(value)
        if line is not None and line.op == "mul":
            others = [one for operand in line.operands if (one := line_of(operand)) is None or one.op != "constant"]
            line = others[0] if len(others) == 1 else None
        if line is not None and line.op == "select":  # the first place, in the place of what is beyond
            other = line_of(line.operands[2])
            is_first = other is not None and other.op == "constant" and other.attributes[0] == 0
            line = line_of(line.operands[1]) if is_first else None
        if line is None or line.op != "minimum":
            return None
        lasts = [self.hidden.size_of(kernel.inputs, operand) for operand in line.operands]
        return next((last.plus(Polynomial.constant(1)) for last in lasts if last is not None), None)

    def packed(self, ends: Ends) -> dict[int, Ends]:
        """Where the panels of packed operands are read to, by buffer: of the sum (0) and of the columns (1)."""
        kernel = self.call.kernel
        if isinstance(kernel, AttentionGradientKernel):
            keys, operands = ends.get(len(kernel.sizes.batch) + 1), kernel.operands
            across = ((1, operands.keys_across), (3, operands.values_across))
            places = [(self.call.reads[at].buffer, 1) for at, one in across if isinstance(one, PackedMatrix)]
            return {buffer: {} if keys is None else {side: keys} for buffer, side in places}
        if isinstance(kernel, AttentionKernel):
            keys = ends.get(len(kernel.sizes.batch) + 1)
            rows = ((1, 1, kernel.key), (2, 0, kernel.value))
            places = [(self.call.reads[at].buffer, side) for at, side, one in rows if isinstance(one, PackedMatrix)]
            return {buffer: {} if keys is None else {side: keys} for buffer, side in places}
        if not isinstance(kernel, GemmKernel) or not isinstance(kernel.right, PackedMatrix):
            return {}
        inner = ends.get(len(kernel.batch) + 2)
        return {self.call.reads[1].buffer: {} if inner is None else {0: inner}}


def _factor(body: Sequence[Instruction], first: int, value: int) -> int:
    """A number that a value of a loop is a multiple of; `first` is the number of the first instruction's."""
    if value < first or body[value - first].op != "mul":
        return 1
    lines = (body[operand - first] for operand in body[value - first].operands if operand >= first)
    return prod(int(line.attributes[0]) for line in lines if line.op == "constant")


def _can_end(kernel: Kernel, axis: int) -> bool:
    """Whether there is code for a loop that ends along a dimension."""
    if isinstance(kernel, RowKernel):
        kept, last = len(kernel.expression.rows), len(kernel.expression.columns) - 1
        return axis < kept or axis - kept in (0, last)
    if isinstance(kernel, GemmKernel):
        batch, schedule = len(kernel.batch), kernel.schedule
        plain = schedule.group == 1 and not schedule.along_sum
        return axis <= batch or (axis == batch + 2 and plain)
    if isinstance(kernel, (LoopKernel, AttentionKernel, AttentionGradientKernel)):
        return True
    if isinstance(kernel, ScatterKernel):
        return axis < len(kernel.expression.sizes) - 1
    if isinstance(kernel, PackKernel):
        plain = kernel.group == 1 and not kernel.outer and kernel.scale_batch is None
        return axis < len(kernel.batch) or plain
    if isinstance(kernel, ConvKernel):
        return kernel.way != "dot" or kernel.schedule.pixels_of == "row"
    if isinstance(kernel, RecurrentKernel):
        return axis == 0  # the number of steps is one that it is given: the last state is that of the last one
    return isinstance(kernel, PoolKernel | WinogradKernel | WeightGradientKernel | DepthwiseWeightKernel)


def _closest(size: Polynomial, times: int, least: NDArray[np.int32]) -> End:
    """The end of a dimension whose positions, of so many places each, are needed from some sizes on.

    Of an image that a convolution with a stride reads, several rows are needed for each row that it makes. What whole
    tiles read, of which all is needed or nothing, is needed in steps.
    """
    places, count = np.arange(len(least)), len(least)
    if np.array_equal(places, least):
        return End(size, times, 0)
    finite = np.minimum(least.astype(np.int64), count)
    needed = np.zeros(count + 2, np.int64)  # by size
    np.maximum.at(needed, finite + 1, places + 1)
    needed, sizes = np.maximum.accumulate(needed)[1:-1], np.arange(1, count + 1)
    found = []
    for each, whole in product(STEEP, WHOLE):
        if each * whole < count:
            more = int((places // each // whole * whole - finite).max(initial=0))
            ends = np.minimum(-(-(sizes + more) // whole) * whole * each, count)
            found.append((int((ends - needed).sum()), each, whole, more))
    _, each, whole, more = min(found, default=(0, 1, 1, int((places - finite).max(initial=0))))
    return End(size, times * each, more, whole=whole)


def follows(counts: Sequence[int], steps: Sequence[int], axis: int, begin: int, stride: int) -> bool:
    """Whether places along a dimension are positions, from 0 on, of rows that are so many bytes apart.

    The other dimensions must stay inside a position, or go on by whole rows of positions: of an odd count of places,
    two of which are a position, these are no whole rows.
    """
    step = steps[axis]
    if step <= 0 or stride % step:
        return False
    positions = max(-(-step * counts[axis] // stride), 1)
    period = stride * positions
    if begin // stride % positions:
        return False
    inner, others = begin % stride, ((steps[place], counts[place]) for place in range(len(counts)) if place != axis)
    for other, count in others:
        if other < 0:
            return False
        if 0 < other < step:
            inner += other * (count - 1)
        elif other and count > 1 and other % period:
            return False
    return inner < step


def _inside(
    counts: Sequence[int], steps: Sequence[int], axis: int, begin: int, positions: tuple[int, int]
) -> int | None:
    """The first of some positions, in a border, that places along a dimension are; None if they are not.

    It is said how many there are, and how many places each is.
    """
    count, each = positions
    step = steps[axis] * each
    inner, others = begin % step, [(steps[place], counts[place]) for place in range(len(counts)) if place != axis]
    if any(other < 0 or (step <= other and times > 1 and other % (step * count)) for other, times in others):
        return None
    inner += sum(other * (times - 1) for other, times in others if other < step) + step - steps[axis]
    return begin // step % count if inner < step else None


def nothing_beyond(
    call: KernelCall, hidden: Hidden, nothing: Mapping[int, Nothing], kind: str = "sum"
) -> dict[int, Nothing]:
    """Find of what a call writes beyond which sizes it is 0: of packed operands along the sum, in steps of it.

    Of another `kind` of reduction than a sum, beyond which it is what that is not changed by.
    """
    kernel, axes = call.kernel, axes_of(call.kernel)
    found: dict[int, Nothing] = {}
    if axes is None or not kernel.tile_count:
        return found
    ends = CallEnds(call, hidden, nothing)
    if isinstance(kernel, PackKernel):
        inner = len(kernel.batch)
        if not (kernel.outer or kernel.group > 1 or kernel.scale_batch is not None):
            known = ends._nothing_read(1, inner)
            found[call.writes[0].buffer] = {(times, -(-kernel.inner // times), size) for size, times in known}
        return found
    if not isinstance(kernel, LoopKernel):
        return found
    counts, steps = axes
    for number, place in enumerate(call.writes):
        own, begin = steps[number], ends._begins[number]
        if own is None or begin is None:
            continue
        zeros = {(axis, 1, counts[axis], size) for axis, size in hidden.filled(number, kind)}
        source = kernel.results[number]
        if source < len(kernel.inputs):  # a copy
            zeros |= ends.copied(len(call.writes) + source)
        found[place.buffer] = {
            (own[axis] * times, count, size)
            for axis, times, count, size in zeros
            if follows(counts, own, axis, begin, own[axis] * times)
        }
    return found
