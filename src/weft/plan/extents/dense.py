"""Give buffers that tensors lie in without gaps at any sizes strides that are made of these, in kernels that take them.

A plan is made for the largest sizes, and so are the strides that its kernels have as constants: a tensor of smaller
sizes would have to be copied into larger memory. Where elements of a tensor follow one another in some order of its
dimensions, strides are products of sizes. A stride that a kernel has for the largest sizes tells which dimension it
goes along, and how many positions:

    dimensions   8 x [256] x [264]      strides at the largest sizes      67584, 264, 1
    a kernel's   264 = one row                                            at h x w: w
                 135168 = two channels                                    at h x w: 2 * h * w

A buffer is dense where all kernels that touch it can do so: what they write must end where the tensor does, and so must
what they read, unless they are told how much there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from weft.ir.extents import Polynomial
from weft.passes.within import Within, size_of
from weft.plan.extents.ends import End
from weft.plan.form.plan import KernelCall, LoopEnd, Pitch, Plan
from weft.plan.kernels.expression import DTYPE_BYTES
from weft.plan.kernels.images import Images
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pool import INDEX_BYTES, PoolKernel

ONE = Polynomial.constant(1)
FLOATS = ("f16", "bf16", "f32", "f64")
DenseKernel = LoopKernel | PoolKernel


@dataclass(frozen=True, slots=True)
class Digit:
    """Some dimensions of a tensor, of which at most the outermost varies: how far elements are apart, and how many.

    `stride` is in bytes and, as `largest` is, at the largest sizes. There are `whole` * `size` positions; `inside` are
    those of each digit within this one, and `item` bytes are as far apart as the innermost elements.
    """

    stride: int
    largest: int
    whole: int
    size: Polynomial | None
    inside: tuple[tuple[int, Polynomial | None], ...]
    item: int

    @property
    def varies(self) -> bool:
        """Whether its stride does."""
        return any(size is not None for _, size in self.inside)

    def pitch(self, times: int, item: int, holders: Mapping[Polynomial, int]) -> Pitch | None:
        """So many times its stride, in elements of `item` bytes; None where nothing holds a size that it is made of."""
        number, sizes = times * self.item, []
        for whole, size in self.inside:
            number *= whole
            if size is not None:
                if size not in holders:
                    return None
                sizes.append(holders[size])
        return None if number % item else Pitch(number // item, tuple(sizes))


Digits = tuple[Digit, ...]  # the outermost first


def digits_of(strides: Sequence[int], own: Sequence[Polynomial], within: Within, item: int) -> Digits | None:
    """See a tensor as digits; None where it has gaps, at its own sizes or the largest.

    `strides` are of the largest sizes, and in bytes; `own` are in elements.
    """
    order = sorted(range(len(strides)), key=lambda place: (strides[place], len(within[place])))
    found: list[Digit] = []
    stride, size, inside = item, ONE, tuple[tuple[int, Polynomial | None], ...]()
    for place in order:
        if not within[place]:
            continue  # one position: it goes nowhere
        if strides[place] != stride or own[place] != size:
            return None
        for factor in reversed(within[place]):
            last = found[-1] if found else None
            if last is None or last.size is not None:
                if last is not None:
                    inside = (*inside, (last.whole, last.size))
                found.append(Digit(stride, factor.largest, 1, factor.size, inside, item))
            else:
                found[-1] = replace(last, largest=last.largest * factor.largest, whole=last.largest, size=factor.size)
            if factor.size is None:
                found[-1] = replace(found[-1], whole=found[-1].largest)
            stride *= factor.largest
        size = size.times(size_of(within[place]))
    return tuple(reversed(found))


@dataclass(frozen=True, slots=True)
class AxisStrides:
    """How a kernel goes through an argument: bytes and positions of each of its dimensions, from an offset on."""

    offset: int
    steps: tuple[tuple[int, int], ...]
    item: int


def strides_along(kernel: DenseKernel, number: int) -> AxisStrides | None:
    """How a kernel goes through an argument; None of one that may be read anywhere."""
    if isinstance(kernel, LoopKernel):
        views = (*kernel.outputs, *kernel.inputs)
        if number >= len(views):
            return None
        view = views[number]
        item = DTYPE_BYTES[view.dtype]
        steps = tuple((step * item, count) for step, count in zip(view.strides, kernel.sizes, strict=True))
        return AxisStrides(view.offset * item, steps, item)
    last = 2 if kernel.indices else 1
    if number > last:
        return None

    def images(of: Images, size: tuple[int, int], item: int) -> AxisStrides:
        pairs = ((of.image, kernel.images), (of.row, size[0]), (of.column, size[1]), (of.channel, kernel.channels))
        return AxisStrides(of.offset * item, tuple((step * item, count) for step, count in pairs), item)

    element = DTYPE_BYTES[kernel.element]
    if number == last:
        return images(kernel.input, kernel.in_size, element)
    return images(kernel.output, kernel.out_size, INDEX_BYTES if number else element)


def read_digits(number: int, digits: Digits) -> list[int] | None:
    """How many positions of each digit so many bytes are; None where they are no whole ones."""
    if number < 0:
        return None
    found = []
    for digit in digits:
        count, number = divmod(number, digit.stride)
        found.append(count)
    return None if number else found


def with_dense(plan: Plan, sizes: Mapping[int, Polynomial], forms: Mapping[int, Digits]) -> Plan:
    """Make those of some buffers dense that all kernels can touch so; `sizes` hold a size."""
    written = {place.buffer for call in plan.calls for place in call.writes}
    found = {
        buffer: digits
        for buffer, digits in forms.items()
        if any(digit.varies for digit in digits) and not (plan.buffers[buffer].kind == "input" and buffer in written)
    }
    for call in (*plan.checks, *plan.packing):
        for place in call.arguments:
            found.pop(place.buffer, None)
    before = 0
    while found and before != len(found):
        before = len(found)
        for call in plan.calls:
            _DenseCall(call, sizes, found).call()
    calls = [_DenseCall(call, sizes, found).call() for call in plan.calls]
    touched = {place.buffer for call in calls for place in call.arguments}
    dense = tuple(sorted(found.keys() & touched))
    return replace(plan, calls=tuple(calls), dense=dense, tight=tuple(sorted({*plan.tight, *dense})))


class _DenseCall:
    """Finds what one call asks for, to touch some buffers as they lie; those that it cannot are taken out."""

    def __init__(self, call: KernelCall, sizes: Mapping[int, Polynomial], forms: dict[int, Digits]) -> None:
        self._call = call
        self._sizes = sizes
        self._forms = forms
        self._holders = {size: buffer for buffer, size in sizes.items()}
        dimensions: tuple[int, ...] = getattr(call.kernel, "ends", ())
        self._ends = {
            axis: End(sizes[end.size], end.times, end.more, whole=end.whole)
            for axis, end in zip(dimensions, call.ends, strict=True)
        }
        self._pitches: dict[tuple[int, int], Pitch] = {}
        self._bounds: dict[tuple[int, int], LoopEnd] = {}

    def call(self) -> KernelCall:
        """Give the call that does."""
        kernel = self._call.kernel
        for number, place in enumerate(self._call.arguments):
            digits = self._forms.get(place.buffer)
            if digits is not None and not (
                isinstance(kernel, LoopKernel | PoolKernel) and self._can_touch(kernel, number, place.offset, digits)
            ):
                del self._forms[place.buffer]
        if not self._pitches and not self._bounds:
            return self._call
        assert isinstance(kernel, LoopKernel | PoolKernel)
        kernel = replace(kernel, pitches=tuple(self._pitches))
        if isinstance(kernel, LoopKernel):
            kernel = replace(kernel, bounds=tuple(self._bounds))
        pitches, bounds = tuple(self._pitches.values()), tuple(self._bounds.values())
        return replace(self._call, kernel=kernel, pitches=pitches, bounds=bounds)

    def _can_touch(self, kernel: DenseKernel, number: int, offset: int, digits: Digits) -> bool:
        strides = strides_along(kernel, number)
        if strides is None:
            return False
        start = read_digits(offset + strides.offset, digits)
        if start is None or any(first and digit.varies for first, digit in zip(start, digits, strict=True)):
            return False
        reached, along = list(start), dict[int, list[int]]()
        for axis, (step, count) in enumerate(strides.steps):
            places = read_digits(step, digits) if step and count > 1 else [0] * len(digits)
            moved = [at for at, place in enumerate(places or ()) if place]
            if places is None or len(moved) > 1:
                return False
            for at in moved:
                reached[at] += places[at] * (count - 1)
                along.setdefault(at, []).append(axis)
                pitch = digits[at].pitch(places[at], strides.item, self._holders) if digits[at].varies else None
                if pitch is not None:
                    self._pitches[number, axis] = pitch
                elif digits[at].varies:
                    return False
        if any(place >= digit.largest for place, digit in zip(reached, digits, strict=True)):
            return False
        rows = len(strides.steps) - 2
        if isinstance(kernel, LoopKernel) and kernel.schedule.interleaved and (number, rows) in self._pitches:
            return False
        varying = [at for at, digit in enumerate(digits) if digit.size is not None]
        return all(
            self._ends_with(kernel, number, digits[at], (start[at], along.get(at, []), strides)) for at in varying
        )

    def _ends_with(
        self, kernel: DenseKernel, number: int, digit: Digit, where: tuple[int, list[int], AxisStrides]
    ) -> bool:
        """Whether an argument is touched no farther along a digit that varies than it goes."""
        found = _along(digit, *where)
        if found is None:
            return False
        if isinstance(kernel, PoolKernel) and number == len(self._call.writes) and found.axis in (1, 2):
            return self._windows_end(kernel, found)
        end = self._ends.get(found.axis)
        if not found.first and end is not None and _is_within(end, found):
            return True
        return isinstance(kernel, LoopKernel) and self._is_bounded(kernel, number, found)

    def _windows_end(self, kernel: PoolKernel, along: Along) -> bool:
        """Whether windows of a pooling see no more than there is of rows or columns: these are limited."""
        if not kernel.limited[along.axis - 1] or kernel.adaptive or along.times != 1 or along.first:
            return False
        limits = self._call.reads[len(self._call.reads) - sum(kernel.limited) :]
        return self._sizes.get(limits[sum(kernel.limited[: along.axis - 1])].buffer) == along.size

    def _is_bounded(self, kernel: LoopKernel, number: int, along: Along) -> bool:
        """Let a loop be told how many positions there are of what it would read farther; false if it cannot."""
        read, holder = number - len(kernel.outputs), self._holders.get(along.size)
        if read < 0 or holder is None or along.first % along.times:
            return False
        if read in kernel.schedule.transposed and kernel.inputs[read].dtype not in FLOATS:
            return False  # what is beyond is anything there, and a place to read at must be 0
        if kernel.schedule.interleaved and along.axis == len(kernel.sizes) - 1:
            return False
        most = kernel.sizes[along.axis]
        self._bounds[number, along.axis] = LoopEnd(holder, -(along.first // along.times), along.times, most)
        return True


@dataclass(frozen=True, slots=True)
class Along:
    """The dimension of a kernel that goes along a digit that varies, from a first position on.

    There are size * times of its positions.
    """

    axis: int
    first: int
    times: int
    size: Polynomial


def _along(digit: Digit, start: int, axes: Sequence[int], strides: AxisStrides) -> Along | None:
    """Find it; None where there is none, or several. Other dimensions stay inside of one of its positions."""
    if not axes or digit.size is None:
        return None
    axis = max(axes, key=lambda one: strides.steps[one][0])
    step = strides.steps[axis][0] // digit.stride
    others = (strides.steps[one] for one in axes if one != axis)
    inside = start % step + sum(other // digit.stride * (count - 1) for other, count in others)
    if digit.whole % step or inside >= step:
        return None
    return Along(axis, start // step, digit.whole // step, digit.size)


def _is_within(end: End, along: Along) -> bool:
    """Whether a loop ends where a tensor does, or before."""
    return end.size == along.size and end.times == along.times and end.more <= 0 and end.whole == 1
