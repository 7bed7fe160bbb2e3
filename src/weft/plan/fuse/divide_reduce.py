"""A reduction of few long rows, and what is made of its numbers for every element -> kernels that lanes can share.

The gradient of a batch norm is the example: sums over all pixels of a few channels, and then a number for each pixel.
As one kernel it has a tile for some channels, so a lane or two do it all. Here the sums are cut into chunks, and what
follows is a loop of its own. That too depends on sizes alone: the bits are the same on any number of lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from weft.plan.fuse.split_reduce import ReductionPlan, RowCall, Scratch, is_large, plan_reduction
from weft.plan.kernels.expression import Instruction, View, value_dtypes
from weft.plan.kernels.loop import LoopExpression, LoopKernel, plan_loop
from weft.plan.kernels.reduce import (
    Finish,
    Pass,
    Reduction,
    RowExpression,
    RowKernel,
    Stage,
    Store,
    plan_rows,
    used_values,
)
from weft.target import Target


@dataclass(frozen=True, slots=True)
class Number:
    """A number of each row, as stages count values, and its dtype."""

    value: int
    dtype: str


def plan_stages(expression: RowExpression, target: Target) -> ReductionPlan:
    """Plan a row expression: divided where that gives lanes something to share, else as it is."""
    kernel = plan_rows(expression, target)
    divided = _divided(kernel.expression, target) if is_large(kernel) else None
    return divided or plan_reduction(expression, target)


def _divided(expression: RowExpression, target: Target) -> ReductionPlan | None:
    """The reduction alone and then loops, or None where one needs the other or the reduction cannot be cut."""
    first, *later = expression.stages
    loops = [stage for stage in later if isinstance(stage, Pass)]
    if not loops or not isinstance(first, Pass) or first.stores or any(stage.reductions for stage in loops):
        return None
    inputs, outputs = len(expression.inputs), len(expression.outputs)
    small = [stage for stage in expression.stages if stage not in loops]
    if any(inputs <= number < inputs + outputs for stage in small for number in used_values(stage)):
        return None
    read = set[int]().union(*map(used_values, loops))
    handed = [number for number in _numbers(expression) if number.value in read]
    parts = _Parts(expression, small, handed)
    reduction = plan_reduction(parts.reduction(), target)
    if len(reduction.calls) == 1:
        return None
    calls = [RowCall(call.kernel, tuple(map(parts.place, call.buffers))) for call in reduction.calls]
    calls += [parts.loop(stage, target) for stage in loops]
    rows = prod(expression.rows)
    return ReductionPlan(tuple(calls), (*(Scratch(number.dtype, rows) for number in handed), *reduction.scratch))


def _numbers(expression: RowExpression) -> list[Number]:
    """The numbers of each row that stages give, in order."""
    dtypes = [view.dtype for view in (*expression.inputs, *expression.outputs)]
    found: list[Number] = []
    for stage in expression.stages:
        known = value_dtypes([*dtypes, *(number.dtype for number in found)], stage.body)
        given = [line.value for line in stage.reductions] if isinstance(stage, Pass) else stage.results
        found += [Number(len(dtypes) + len(found) + place, known[value]) for place, value in enumerate(given)]
    return found


class _Parts:
    """The kernels that an expression is divided into, and which buffers of the whole are theirs.

    Buffers of the whole are counted as a ReductionPlan does; its scratch begins with the numbers that are handed on.
    """

    def __init__(self, expression: RowExpression, small: list[Stage], handed: list[Number]) -> None:
        self.expression, self.small, self.handed = expression, small, handed
        self.inputs, self.outputs = len(expression.inputs), len(expression.outputs)
        read = set[int]().union(*map(used_values, small))
        self.read = [number for number in range(self.inputs) if number in read]
        self.kept = sorted({store.output for stage in small for store in stage.stores})

    def reduction(self) -> RowExpression:
        """Give the stages that reduce and finish; they also store the numbers that are handed on."""
        expression, outputs = self.expression, len(self.kept) + len(self.handed)
        moved = len(self.read) + outputs - self.inputs - self.outputs

        def renumbered(value: int) -> int:
            return self.read.index(value) if value < self.inputs else value + moved

        places = enumerate(self.handed, len(self.kept))
        last = Finish((), (), tuple(Store(place, renumbered(number.value)) for place, number in places))
        return replace(
            expression,
            outputs=(*(expression.outputs[number] for number in self.kept), *map(self._row_view, self.handed)),
            inputs=tuple(expression.inputs[number] for number in self.read),
            stages=(*(_renumbered(stage, renumbered, self.kept) for stage in self.small), last),
        )

    def place(self, buffer: int) -> int:
        """Give the buffer of the whole that a buffer of the reduction is."""
        own = [*self.kept, *(self._scratch(place) for place in range(len(self.handed)))]
        own += [self.outputs + number for number in self.read]
        return own[buffer] if buffer < len(own) else self._scratch(len(self.handed) + buffer - len(own))

    def loop(self, stage: Pass, target: Target) -> RowCall:
        """Give the loop that a pass is which only stores."""
        expression = self.expression
        before = self.inputs + self.outputs + self._known_before(stage)
        used = sorted(number for number in used_values(stage) if number < before)

        def renumbered(value: int) -> int:
            return used.index(value) if value < before else value - before + len(used)

        kernel = plan_loop(
            LoopExpression(
                f"{expression.name}.loop{expression.stages.index(stage)}",
                (*expression.rows, *expression.columns),
                tuple(expression.outputs[store.output] for store in stage.stores),
                tuple(self._view(number) for number in used),
                _body(stage, renumbered),
                tuple(renumbered(store.value) for store in stage.stores),
            ),
            target,
        )
        return RowCall(kernel, (*(store.output for store in stage.stores), *map(self._buffer, used)))

    def _known_before(self, stage: Stage) -> int:
        """Count the numbers of a row that are known when a stage begins."""
        earlier = self.expression.stages[: self.expression.stages.index(stage)]
        return sum(len(one.reductions) if isinstance(one, Pass) else len(one.results) for one in earlier)

    def _row_view(self, number: Number) -> View:
        rows = self.expression.rows
        steps = (prod(rows[place + 1 :]) for place in range(len(rows)))
        return View(number.dtype, (*steps, *(0 for _ in self.expression.columns)))

    def _view(self, value: int) -> View:
        views = (*self.expression.inputs, *self.expression.outputs)
        return views[value] if value < len(views) else self._row_view(self.handed[self._handed(value)])

    def _buffer(self, value: int) -> int:
        if value < self.inputs:
            return self.outputs + value
        return value - self.inputs if value < self.inputs + self.outputs else self._scratch(self._handed(value))

    def _handed(self, value: int) -> int:
        return next(place for place, number in enumerate(self.handed) if number.value == value)

    def _scratch(self, place: int) -> int:
        return self.outputs + self.inputs + place


def _body(stage: Stage, renumbered: Callable[[int], int]) -> tuple[Instruction, ...]:
    return tuple(replace(line, operands=tuple(map(renumbered, line.operands))) for line in stage.body)


def _renumbered(stage: Stage, renumbered: Callable[[int], int], kept: list[int]) -> Stage:
    body = _body(stage, renumbered)
    if isinstance(stage, Pass):
        return Pass(body, tuple(Reduction(line.kind, renumbered(line.value)) for line in stage.reductions))
    stores = tuple(Store(kept.index(store.output), renumbered(store.value)) for store in stage.stores)
    return Finish(body, tuple(map(renumbered, stage.results)), stores)


def outputs_of(kernel: RowKernel | LoopKernel) -> int:
    """Count the buffers that a kernel of a reduction's plan writes."""
    return len(kernel.outputs if isinstance(kernel, LoopKernel) else kernel.expression.outputs)
