"""A reduction of few long rows -> kernels that reduce chunks of them into scratch, and one that joins the chunks.

How the rows are cut depends on their sizes alone, so the bits of the result are the same on any number of lanes.
"""

from dataclasses import dataclass, replace
from math import prod

from weft.plan.kernels.expression import Instruction, View, value_dtypes
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.reduce import (
    PLACES,
    Finish,
    Pass,
    Reduction,
    RowExpression,
    RowKernel,
    Stage,
    Store,
    plan_rows,
)
from weft.target import Target

# Vectors that run along rows step through memory from column to column: a chunk of few columns stays in the cache.
CHUNK_ELEMENTS, ACROSS_ELEMENTS = 64 * 1024, 16 * 1024
# From so many tiles on, a kernel keeps every core busy without being cut.
ENOUGH_TILES = 16


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
    dimension = max(range(len(expression.columns)), key=lambda number: expression.columns[number])
    size = expression.columns[dimension]
    chunk = max(1, _chunk_elements(kernel) * size // total)
    return Cut(dimension, chunk, size // chunk, size % chunk) if size // chunk > 1 else None


def is_large(kernel: RowKernel) -> bool:
    """Tell whether a kernel has much to do, and too few tiles to share it out."""
    total = prod(kernel.expression.rows) * prod(kernel.expression.columns)
    return total >= 2 * _chunk_elements(kernel) and kernel.tile_count < ENOUGH_TILES


def _chunk_elements(kernel: RowKernel) -> int:
    return ACROSS_ELEMENTS if kernel.schedule.along_rows else CHUNK_ELEMENTS


def split(expression: RowExpression, cut: Cut, target: Target) -> ReductionPlan:
    """Cut an expression: chunks, the rest, and what joins their results and finishes."""
    first = expression.stages[0]
    assert isinstance(first, Pass)  # as choose_cut has found
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
        isinstance(first, Pass)
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
    assert isinstance(first, Pass)
    inputs = len(expression.inputs)
    moved = count - len(expression.outputs)

    def renumbered(number: int) -> int:
        return number if number < inputs else number + moved

    body = tuple(replace(line, operands=tuple(map(renumbered, line.operands))) for line in first.body)
    reductions = tuple(Reduction(line.kind, renumbered(line.value)) for line in first.reductions)
    stores = tuple(Store(number, inputs + count + number) for number in range(count))
    return (Pass(body, reductions), Finish((), (), stores))


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
    assert isinstance(first, Pass)
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

    again = Pass((), tuple(Reduction(line.kind, inputs + number) for number, line in enumerate(first.reductions)))
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
