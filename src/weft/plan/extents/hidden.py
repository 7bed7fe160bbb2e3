"""Find what kernels hide: inputs that a `select` leaves unused at positions beyond a size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

import numpy as np

from weft.ir.extents import Polynomial
from weft.plan.extents.axes import Axes, axes_of
from weft.plan.extents.parts import Part
from weft.plan.form.plan import KernelCall, Location
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.expression import DTYPE_BYTES, Instruction, View, strides_of
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.reduce import RowKernel, RowPass
from weft.plan.kernels.scatter import ScatterKernel


def _lowest(dtype: str) -> float:
    if dtype[0] in "fb" and dtype != "bool":
        return -inf
    return -(1 << (8 * DTYPE_BYTES[dtype] - 1)) if dtype[0] == "i" else 0


def _highest(dtype: str) -> float:
    if dtype[0] in "fb" and dtype != "bool":
        return inf
    if dtype == "bool":
        return 1
    return (1 << (8 * DTYPE_BYTES[dtype] - (dtype[0] == "i"))) - 1


NEUTRAL: Mapping[str, Callable[[str], float]] = {
    "sum": lambda _: 0,
    "prod": lambda _: 1,
    "any": lambda _: 0,
    "all": lambda _: 1,
    "max": _lowest,
    "argmax": _lowest,
    "min": _highest,
    "argmin": _highest,
}
"""What each kind of reduction is not changed by, of a dtype; 0 is -0 too."""


Ramps = Mapping[int, tuple[int, int]]
"""Buffers that hold 0, 1, 2 and so on: how often each number comes in a row, and how many there are; then again 0."""


@dataclass(frozen=True, slots=True)
class SharedScores:
    """The axes and sizes beyond which the scores of an attention's gradient are -inf, and which input is subtracted."""

    hidden: set[tuple[int, Polynomial]]
    logarithm: int


class Hidden:
    """Finds what `select` hides of a kernel's inputs, at positions beyond a size."""

    def __init__(self, call: KernelCall, sizes: Mapping[int, Polynomial], ramps: Ramps) -> None:
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
        elif isinstance(kernel, ScatterKernel):
            scatter = kernel.expression
            hidden = self._of_body(scatter.inputs, scatter.body, len(scatter.inputs), (scatter.place, scatter.value))
        else:
            return {}
        return {number: self._parts(number, some, axes) for number, some in hidden.items() if some}

    def reduced(self) -> set[tuple[int, Polynomial]] | None:
        """The axes and sizes beyond which all reductions of rows are given what changes nothing; None without any."""
        kernel = self.call.kernel
        assert isinstance(kernel, RowKernel)
        expression, found = kernel.expression, None
        numbers = len(expression.inputs) + len(expression.outputs)
        for stage in expression.stages:
            reductions = stage.reductions if isinstance(stage, RowPass) else ()
            for one in reductions:
                some = self._filled(expression.inputs, stage.body, numbers, (one.value, NEUTRAL[one.kind]))
                found = some if found is None else found & some
            numbers += len(reductions) if isinstance(stage, RowPass) else len(stage.results)
        return found

    def hidden_scores(self) -> set[tuple[int, Polynomial]]:
        """The axes and sizes beyond which scores of an attention are -inf."""
        kernel = self.call.kernel
        assert isinstance(kernel, AttentionKernel)
        inputs = (View(kernel.sizes.element, ()), *kernel.inputs)
        if not kernel.body:
            return set()
        first = len(inputs)
        return self._added(inputs, kernel.body, first, first + len(kernel.body) - 1)

    def _added(
        self, inputs: Sequence[View], body: Sequence[Instruction], first: int, value: int
    ) -> set[tuple[int, Polynomial]]:
        """The axes and sizes beyond which a value is -inf, also where that is added."""
        if value >= first and body[value - first].op == "add":
            one, other = (self._added(inputs, body, first, operand) for operand in body[value - first].operands)
            return one | other
        return self._filled(inputs, body, first, (value, NEUTRAL["max"]))

    def shared_scores(self) -> SharedScores | None:
        """What is known of the scores of an attention's gradient, of which a share is exp(score - logarithm)."""
        kernel = self.call.kernel
        assert isinstance(kernel, AttentionGradientKernel)
        inputs = (*[View(kernel.sizes.element, ())] * 2, *kernel.inputs)  # of the score and the pull, then its own
        first, body = len(inputs), kernel.body
        share = body[kernel.share - first]
        less = share.operands[0] - first if share.op == "exp" else -1
        if less < 0 or body[less].op != "sub" or not 1 < body[less].operands[1] < first:
            return None
        score, logarithm = body[less].operands
        return SharedScores(self._added(inputs, body, first, score), logarithm)

    def filled(self, output: int, kind: str) -> set[tuple[int, Polynomial]]:
        """The axes and sizes beyond which a result of a loop is what a kind of reduction is not changed by."""
        kernel = self.call.kernel
        assert isinstance(kernel, LoopKernel)
        return self._filled(kernel.inputs, kernel.body, len(kernel.inputs), (kernel.results[output], NEUTRAL[kind]))

    def scattered(self, kind: str) -> set[tuple[int, Polynomial]]:
        """The same of what a kernel scatters."""
        kernel = self.call.kernel
        assert isinstance(kernel, ScatterKernel)
        scatter = kernel.expression
        return self._filled(scatter.inputs, scatter.body, len(scatter.inputs), (scatter.value, NEUTRAL[kind]))

    def _filled(
        self,
        inputs: Sequence[View],
        body: Sequence[Instruction],
        first: int,
        wanted: tuple[int, Callable[[str], float]],
    ) -> set[tuple[int, Polynomial]]:
        """The axes and sizes beyond which a value is a number."""
        value, number = wanted
        if value < first:
            return set()
        line = body[value - first]
        if line.op == "cast" and number("f32") == number("i8"):  # the same in every dtype
            return self._filled(inputs, body, first, (line.operands[0], number))
        if line.op != "select":
            return set()
        condition, kept, other = line.operands

        def is_filling(value: int) -> bool:
            filling = body[value - first] if value >= first else None
            return filling is not None and filling.op == "constant" and filling.attributes[0] == number(filling.dtype)

        if is_filling(kept):  # in the place of others, as the scores of keys that come later
            return self._filled(inputs, body, first, (other, number))
        if not is_filling(other):
            return set()
        return self._within(inputs, body, first, condition) | self._filled(inputs, body, first, (kept, number))

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
                # What hides an element does not hide its place: memory is read there, and must be some.
                for operand in line.operands:
                    use(operand, set() if line.op == "take" else own)
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
        size = self.size_of(inputs, line.operands[1])
        return set() if axis is None or size is None else {(axis, size)}

    def _ramp(self, inputs: Sequence[View], body: Sequence[Instruction], first: int, value: int) -> int | None:
        """The axis along which a value is the position."""
        times, period = 1, None
        if value < len(inputs):
            place = self._place(value)
            is_ramp = place.buffer in self.ramps and place.offset == 0 and inputs[value].offset == 0
            strides: Sequence[int] | None = inputs[value].strides if is_ramp else None
            if is_ramp:
                times, period = self.ramps[place.buffer]
        elif value >= first and body[value - first].op == "iota" and body[value - first].attributes[-1] == 0:
            strides = strides_of(body[value - first])
        else:
            strides = None
        axes = axes_of(self.call.kernel)
        counts = axes[0] if axes is not None else ()
        moving = {axis: step for axis, step in enumerate(strides or ()) if step and counts[axis] > 1}
        return _counting(moving, counts, times, period)

    def size_of(self, inputs: Sequence[View], value: int) -> Polynomial | None:
        """The size that an input of a kernel holds."""
        if value >= len(inputs) or any(inputs[value].strides):
            return None
        return self.sizes.get(self._place(value).buffer)

    def _place(self, number: int) -> Location:
        if isinstance(self.call.kernel, AttentionKernel):
            return self.call.reads[number + 2]  # the score, which is no argument, is before the body's inputs
        if isinstance(self.call.kernel, AttentionGradientKernel):
            return self.call.reads[number + 3]  # as are the score and the pull
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


def _counting(moving: Mapping[int, int], counts: Sequence[int], times: int, period: int | None) -> int | None:
    """The axis along which a ramp that steps so far along axes counts positions, whatever those along others are."""
    for axis, step in moving.items():
        others = [(more, counts[other]) for other, more in moving.items() if other != axis]
        inner = sum(more * (count - 1) for more, count in others if 0 < more < times)
        outer = [more for more, _ in others if not 0 < more < times]  # by which it starts again
        starts_again = not outer or (
            period is not None and all(more > 0 and not more % (times * period) for more in outer)
        )
        if step == times and inner < times and starts_again and (period is None or counts[axis] <= period):
            return axis
    return None


def lines_of_ramps(call: KernelCall, ramps: Ramps) -> list[tuple[int, int]]:
    """The dimensions of a kernel along which a ramp that it reads starts again, or stays, each with how long."""
    axes = axes_of(call.kernel)
    found = set()
    for view, place in zip(_inputs_of(call.kernel), call.reads, strict=False) if axes is not None else ():
        if place.buffer in ramps and place.offset == 0 and view.offset == 0:
            times, period = ramps[place.buffer]
            for (axis, step), line in product(enumerate(view.strides), (times, times * period)):
                count = axes[0][axis] if axes is not None else 0
                if step > 0 and line % step == 0 and 1 < line // step < count and count % (line // step) == 0:
                    found.add((axis, line // step))
    return sorted(found)


def unused(kernel: Kernel) -> frozenset[int]:
    """The reads that a kernel has in its list alone: what joins chunks of a sum has the inputs of the chunks there."""
    if not isinstance(kernel, RowKernel):
        return frozenset()
    used: set[int] = set()
    for stage in kernel.expression.stages:
        used |= {number for line in stage.body for number in line.operands} | {store.value for store in stage.stores}
        used |= {line.value for line in stage.reductions} if isinstance(stage, RowPass) else set(stage.results)
    return frozenset(range(len(kernel.expression.inputs))) - used


def _inputs_of(kernel: Kernel) -> tuple[View, ...]:
    if isinstance(kernel, RowKernel):
        return kernel.expression.inputs
    if isinstance(kernel, ScatterKernel):
        return kernel.expression.inputs
    return kernel.inputs if isinstance(kernel, LoopKernel) else ()
