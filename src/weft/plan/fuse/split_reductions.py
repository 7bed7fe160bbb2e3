"""Split reductions of few long rows into chunks that lanes share, with the elementwise code of their results.

The gradient of a batch norm is the example: sums over all pixels of a few channels, and then a number for each pixel.
As one kernel it has a tile for some channels, so a lane or two do it all. Here the sums are cut into chunks, and what
follows is a loop of its own. That too depends on sizes alone: the bits are the same on any number of lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from weft.plan.kernels.expression import Instruction, View, value_dtypes
from weft.plan.kernels.loop import LoopExpression, LoopKernel, plan_loop
from weft.plan.kernels.reduce import (
    PLACES,
    Finish,
    Reduction,
    RowExpression,
    RowKernel,
    RowPass,
    Stage,
    Store,
    plan_rows,
    used_values,
)
from weft.target import Target

# Kernels reduce chunks of rows into scratch, and one joins the chunks. How the rows are cut depends on their sizes
# alone, so the bits of the result are the same on any number of lanes.

# Vectors that run along rows step through memory from column to column: a chunk of few columns stays in the cache.
CHUNK_ELEMENTS, ACROSS_ELEMENTS = 64 * 1024, 16 * 1024
# From so many tiles on, a kernel keeps every core busy without being cut.
ENOUGH_TILES = 16
# So many rows lanes can share where a sum that ends at a size is better not cut.
ENOUGH_ROWS = 32


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that lives while the kernels of one reduction run."""

    dtype: str
    elements: int


@dataclass(frozen=True, slots=True)
class RowCall:
    """A kernel and its buffers, by number: the reduction's outputs, then its inputs, then the scratch."""

    kernel: RowKernel | LoopKernel
    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReductionPlan:
    """Kernels to run one after the other; each may be shared out over lanes."""

    calls: tuple[RowCall, ...]
    scratch: tuple[Scratch, ...] = ()


@dataclass(frozen=True, slots=True)
class Cut:
    """A dimension of the columns, and how many chunks of what size it is cut into; the rest is a chunk of its own."""

    dimension: int
    chunk: int
    count: int
    rest: int


def plan_reduction(expression: RowExpression, target: Target) -> ReductionPlan:
    """Plan a row expression: as one kernel, or cut where its rows are too few and too long for that."""
    kernel = plan_rows(expression, target)
    buffers = tuple(range(len(expression.outputs) + len(expression.inputs)))
    cut = choose_cut(kernel)
    if cut is None:
        return ReductionPlan((RowCall(kernel, buffers),))
    return split(expression=kernel.expression, cut=cut, target=target)


def choose_cut(kernel: RowKernel) -> Cut | None:
    """Choose how to cut the columns, or None where the kernel need not or cannot be cut."""
    expression = kernel.expression
    if not is_large(kernel) or not _can_be_cut(expression):
        return None
    total = prod(expression.rows) * prod(expression.columns)
    counted, columns = _counted(expression), expression.columns
    free = [number for number, size in enumerate(columns) if size > 1 and number not in counted]
    if not free and counted and prod(expression.rows) >= ENOUGH_ROWS:
        return None
    dimension = max(free or range(len(columns)), key=columns.__getitem__)
    size = columns[dimension]
    chunk = max(1, _chunk_elements(kernel) * size // total)
    return Cut(dimension, chunk, size // chunk, size % chunk) if size // chunk > 1 else None


def _counted(expression: RowExpression) -> set[int]:
    """The dimensions of the columns along which positions are compared: a sum that ends at a size is not cut there."""
    first, kept = expression.stages[0], len(expression.rows)
    assert isinstance(first, RowPass)
    compared = {number for line in first.body if line.op == "lt" for number in line.operands}
    views = [view for number, view in enumerate(expression.inputs) if number in compared]
    moving = {axis - kept for view in views if view.dtype[0] == "i" for axis, step in enumerate(view.strides) if step}
    return {axis for axis in moving if axis >= 0}


def is_large(kernel: RowKernel) -> bool:
    """Tell whether a kernel has much to do, and too few tiles to share it out."""
    total = prod(kernel.expression.rows) * prod(kernel.expression.columns)
    return total >= 2 * _chunk_elements(kernel) and kernel.tile_count < ENOUGH_TILES


def _chunk_elements(kernel: RowKernel) -> int:
    return ACROSS_ELEMENTS if kernel.schedule.along_rows else CHUNK_ELEMENTS


def split(expression: RowExpression, cut: Cut, target: Target) -> ReductionPlan:
    """Cut an expression: chunks, the rest, and what joins their results and finishes."""
    first = expression.stages[0]
    assert isinstance(first, RowPass)  # as choose_cut has found
    rows, chunks = prod(expression.rows), cut.count + bool(cut.rest)
    base = len(expression.inputs) + len(expression.outputs)
    dtypes = value_dtypes([view.dtype for view in (*expression.inputs, *expression.outputs)], first.body)
    scratch = tuple(Scratch(dtypes[line.value], rows * chunks) for line in first.reductions)
    numbers = range(base, base + len(scratch))
    sources = tuple(range(len(expression.outputs), base))
    calls = [RowCall(plan_rows(_chunks(expression, cut, scratch), target), (*numbers, *sources))]
    if cut.rest:
        calls.append(RowCall(plan_rows(_rest(expression, cut, scratch), target), (*numbers, *sources)))
    joined = plan_rows(_joined(expression, chunks, scratch), target)
    calls.append(RowCall(joined, (*range(len(expression.outputs)), *sources, *numbers)))
    return ReductionPlan(tuple(calls), scratch)


def _can_be_cut(expression: RowExpression) -> bool:
    first, *later = expression.stages
    inputs, outputs = len(expression.inputs), len(expression.outputs)
    return (
        isinstance(first, RowPass)
        and not first.stores
        and not any(line.kind in PLACES for line in first.reductions)
        and all(isinstance(stage, Finish) for stage in later)
        and not any(inputs <= number < inputs + outputs for stage in expression.stages for number in _operands(stage))
    )


def _operands(stage: Stage) -> set[int]:
    return {number for line in stage.body for number in line.operands}


def _row_strides(expression: RowExpression) -> tuple[int, ...]:
    return tuple(prod(expression.rows[number + 1 :]) for number in range(len(expression.rows)))


def _partial_stages(expression: RowExpression, count: int) -> tuple[Stage, ...]:
    first = expression.stages[0]
    assert isinstance(first, RowPass)
    inputs = len(expression.inputs)
    moved = count - len(expression.outputs)

    def renumbered(number: int) -> int:
        return number if number < inputs else number + moved

    body = tuple(replace(line, operands=tuple(map(renumbered, line.operands))) for line in first.body)
    reductions = tuple(Reduction(line.kind, renumbered(line.value)) for line in first.reductions)
    stores = tuple(Store(number, inputs + count + number) for number in range(count))
    return (RowPass(body, reductions), Finish((), (), stores))


def _chunks(expression: RowExpression, cut: Cut, scratch: tuple[Scratch, ...]) -> RowExpression:
    kept, rows = len(expression.rows), prod(expression.rows)
    place = kept + cut.dimension

    def viewed(view: View) -> View:
        return replace(view, strides=(view.strides[place] * cut.chunk, *view.strides))

    def moved(line: Instruction) -> Instruction:
        if line.op != "iota":
            return line
        return replace(line, attributes=(line.attributes[place] * cut.chunk, *line.attributes))

    none = (0,) * len(expression.columns)
    stages = _partial_stages(expression, len(scratch))
    return RowExpression(
        f"{expression.name}.chunks",
        (cut.count, *expression.rows),
        _with_size(expression.columns, cut.dimension, cut.chunk),
        tuple(View(part.dtype, (rows, *_row_strides(expression), *none)) for part in scratch),
        tuple(map(viewed, expression.inputs)),
        tuple(replace(stage, body=tuple(map(moved, stage.body))) for stage in stages),
    )


def _rest(expression: RowExpression, cut: Cut, scratch: tuple[Scratch, ...]) -> RowExpression:
    kept, rows = len(expression.rows), prod(expression.rows)
    place, skipped = kept + cut.dimension, cut.count * cut.chunk

    def viewed(view: View) -> View:
        return replace(view, offset=view.offset + view.strides[place] * skipped)

    def moved(line: Instruction) -> Instruction:
        if line.op != "iota":
            return line
        *strides, start = line.attributes
        return replace(line, attributes=(*strides, start + strides[place] * skipped))

    none = (0,) * len(expression.columns)
    stages = _partial_stages(expression, len(scratch))
    return RowExpression(
        f"{expression.name}.rest",
        expression.rows,
        _with_size(expression.columns, cut.dimension, cut.rest),
        tuple(View(part.dtype, (*_row_strides(expression), *none), cut.count * rows) for part in scratch),
        tuple(map(viewed, expression.inputs)),
        tuple(replace(stage, body=tuple(map(moved, stage.body))) for stage in stages),
    )


def _joined(expression: RowExpression, chunks: int, scratch: tuple[Scratch, ...]) -> RowExpression:
    first, *later = expression.stages
    assert isinstance(first, RowPass)
    kept, inputs = len(expression.rows), len(expression.inputs)
    partials = tuple(View(part.dtype, (*_row_strides(expression), prod(expression.rows))) for part in scratch)

    def viewed(view: View) -> View:
        return replace(view, strides=(*view.strides[:kept], 0))

    def renumbered(number: int) -> int:
        return number if number < inputs else number + len(scratch)

    def finished(stage: Stage) -> Stage:
        assert isinstance(stage, Finish)
        body = tuple(replace(line, operands=tuple(map(renumbered, line.operands))) for line in stage.body)
        stores = tuple(Store(store.output, renumbered(store.value)) for store in stage.stores)
        return Finish(tuple(map(_at_first_column, body)), tuple(map(renumbered, stage.results)), stores)

    def _at_first_column(line: Instruction) -> Instruction:
        if line.op != "iota":
            return line
        return replace(line, attributes=(*line.attributes[:kept], 0, line.attributes[-1]))

    again = RowPass((), tuple(Reduction(line.kind, inputs + number) for number, line in enumerate(first.reductions)))
    return RowExpression(
        f"{expression.name}.joined",
        expression.rows,
        (chunks,),
        tuple(map(viewed, expression.outputs)),
        (*map(viewed, expression.inputs), *partials),
        (again, *map(finished, later)),
    )


def _with_size(sizes: tuple[int, ...], dimension: int, size: int) -> tuple[int, ...]:
    return (*sizes[:dimension], size, *sizes[dimension + 1 :])


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
    loops = [stage for stage in later if isinstance(stage, RowPass)]
    if not loops or not isinstance(first, RowPass) or first.stores or any(stage.reductions for stage in loops):
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
        given = [line.value for line in stage.reductions] if isinstance(stage, RowPass) else stage.results
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

    def loop(self, stage: RowPass, target: Target) -> RowCall:
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
        return sum(len(one.reductions) if isinstance(one, RowPass) else len(one.results) for one in earlier)

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
    if isinstance(stage, RowPass):
        return RowPass(body, tuple(Reduction(line.kind, renumbered(line.value)) for line in stage.reductions))
    stores = tuple(Store(kept.index(store.output), renumbered(store.value)) for store in stage.stores)
    return Finish(body, tuple(map(renumbered, stage.results)), stores)


def outputs_of(kernel: RowKernel | LoopKernel) -> int:
    """Count the buffers that a kernel of a reduction's plan writes."""
    return len(kernel.outputs if isinstance(kernel, LoopKernel) else kernel.expression.outputs)
