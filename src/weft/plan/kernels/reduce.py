"""Define row kernels: reductions with what feeds and follows them, in stages over each row of a space.

A row kernel's space has kept dimensions (rows) and reduced ones (columns). For every row it runs its stages in order.
A `RowPass` goes over the columns: it computes a body for each element, stores some values, and reduces others to one
number a row. A `Finish` computes with a row's numbers, once. Softmax is RowPass(max), RowPass(exp, sum, store) and
RowPass(store).

Values in a stage are numbered: the kernel's inputs, its outputs (what an earlier stage stored), the rows' numbers that
earlier stages gave, in order, then the stage's own instructions. A Finish reads inputs and outputs at the first column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from weft.ir.ops import SIMPLE
from weft.plan.kernels.expression import (
    DTYPE_BYTES,
    MEMORY_CYCLES,
    ROW_CYCLES,
    Instruction,
    View,
    body_cycles,
    strides_of,
    vectors_of,
    with_strides,
)
from weft.plan.kernels.kernel import Boxes, ByteBox, Kernel, Sizes, box, by, cut_range
from weft.plan.kernels.loop import vector_bits
from weft.plan.kernels.walk import whole_cut
from weft.target import Target

PLACES = ("argmax", "argmin")
TILE_ELEMENTS = 16 * 1024
ACCUMULATORS = 4
LONG_BODY = 8
WIDEST_MASKED_VECTOR = 64


@dataclass(frozen=True, slots=True)
class Reduction:
    """How a value of a pass becomes a number of the row; argmax and argmin give the first place, as i64."""

    kind: str
    value: int


@dataclass(frozen=True, slots=True)
class Store:
    """A value of a stage that goes to an output."""

    output: int
    value: int


@dataclass(frozen=True, slots=True)
class RowPass:
    """One way over the columns of a row; gives a number of the row for each reduction."""

    body: tuple[Instruction, ...]
    reductions: tuple[Reduction, ...] = ()
    stores: tuple[Store, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """Computation with a row's numbers; `results` are values that become numbers of the row too."""

    body: tuple[Instruction, ...]
    results: tuple[int, ...] = ()
    stores: tuple[Store, ...] = ()


Stage = RowPass | Finish


def used_values(stage: Stage) -> set[int]:
    """Give the numbers of all values that a stage reads, stores or reduces."""
    used = {number for line in stage.body for number in line.operands}
    used |= {store.value for store in stage.stores}
    return used | ({line.value for line in stage.reductions} if isinstance(stage, RowPass) else set(stage.results))


@dataclass(frozen=True, slots=True)
class ReduceSchedule:
    """How a row kernel runs: what vectors run along, elements a vector, vectors a round, tiles, how a rest is done.

    `along_rows`: vectors hold elements of neighbouring rows (the last kept dimension), else of one row's columns.
    `row_tile` counts rows, or, along rows, steps of the other kept dimensions; `lane_tile` counts the neighbouring
    rows of a tile. `masked` is as for loops. `group` is how many additions follow each other before a sum starts anew.
    """

    along_rows: bool
    lanes: int
    unroll: int
    row_tile: int
    lane_tile: int
    masked: bool
    group: int = 32


@dataclass(frozen=True, slots=True)
class RowExpression:
    """What a row kernel computes; views have strides for the rows' dimensions, then for the columns'."""

    name: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    outputs: tuple[View, ...]
    inputs: tuple[View, ...]
    stages: tuple[Stage, ...]
    in_place: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RowKernel(Kernel):
    """A row expression with a schedule.

    `in_place` lists (output, input) pairs that may be one buffer with equal views: the input must not be read after
    the stage that stores the output.
    """

    expression: RowExpression
    schedule: ReduceSchedule
    ends: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name the native function."""
        return self.expression.name

    @property
    def lane_rows(self) -> int:
        """Count the neighbouring rows that vectors run along; 1 where they run along columns."""
        return self.expression.rows[-1] if self.schedule.along_rows else 1

    @property
    def outer_rows(self) -> tuple[int, ...]:
        """Give the sizes of the kept dimensions that are stepped through one by one."""
        return self.expression.rows[:-1] if self.schedule.along_rows else self.expression.rows

    @property
    def lane_tiles(self) -> int:
        """Count the tiles that share the neighbouring rows."""
        return ceil(self.lane_rows / self.schedule.lane_tile)

    @property
    def tile_count(self) -> int:
        """Count the tiles; a space without rows has none."""
        return ceil(prod(self.outer_rows) / self.schedule.row_tile) * self.lane_tiles

    @property
    def tile_sizes(self) -> tuple[Sizes, Sizes]:
        """Give the rows of tiles above each other and the neighbouring rows of those side by side."""
        down = whole_cut(prod(self.outer_rows), self.schedule.row_tile)
        return down, whole_cut(self.lane_rows, self.schedule.lane_tile)

    @property
    def cycles(self) -> float:
        """Estimate the cycles of its stages, of their vectors and rows."""
        expression, schedule = self.expression, self.schedule
        rows, columns = prod(expression.rows), prod(expression.columns)
        per_vector = per_row = 0.0
        for stage in expression.stages:
            if isinstance(stage, RowPass):
                reads = sum(number < len(expression.inputs) for line in stage.body for number in line.operands)
                work = body_cycles(stage.body) + SIMPLE * len(stage.reductions)
                per_vector += work + MEMORY_CYCLES * (max(reads, 1) + len(stage.stores))
                per_row += ROW_CYCLES
            else:
                per_row += body_cycles(stage.body) + ROW_CYCLES
        if schedule.along_rows:
            groups = rows // max(self.lane_rows, 1) * vectors_of(self.lane_rows, schedule.lanes, masked=False)
            return groups * (columns * per_vector + per_row)
        return rows * (vectors_of(columns, schedule.lanes, masked=schedule.masked) * per_vector + per_row)

    @property
    def summary(self) -> str:
        """Say how many rows there are of what length."""
        return f"{by(*self.expression.rows)} rows of {by(*self.expression.columns)}"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give what views see of the tiles' rows, all columns of them."""
        expression, schedule, across = self.expression, self.schedule, self.lane_tiles
        kept, outer = len(expression.rows), self.outer_rows
        first, last = begin // across, (end - 1) // across
        lanes = (0, self.lane_rows)
        if first == last:
            width = schedule.lane_tile
            lanes = (begin % across * width, min(((end - 1) % across + 1) * width, self.lane_rows))
        top, bottom = first * schedule.row_tile, min((last + 1) * schedule.row_tile, prod(outer))

        def seen(view: View) -> ByteBox | None:
            offset, steps = cut_range(outer, view.strides[: len(outer)], top, bottom)
            if schedule.along_rows:
                stride = view.strides[kept - 1]
                offset, steps = offset + lanes[0] * stride, [*steps, (stride, lanes[1] - lanes[0])]
            steps += zip(view.strides[kept:], expression.columns, strict=True)
            return box(offset + view.offset, steps, DTYPE_BYTES[view.dtype])

        return (*map(seen, expression.outputs), *map(seen, expression.inputs))

    def renamed(self, name: str) -> RowKernel:
        """Give the same kernel under another name, which its expression has."""
        return replace(self, expression=replace(self.expression, name=name))

    def written_over(self, output: int, read: int, target: Target) -> None:
        """Never: a later stage may read the input again; pairs that may share a buffer are in the expression."""


def plan_rows(expression: RowExpression, target: Target) -> RowKernel:
    """Choose how a row expression runs."""
    simple = simplified_rows(expression)
    return RowKernel(simple, choose_reduce_schedule(simple, target))


def simplified_rows(expression: RowExpression) -> RowExpression:
    """Sort dimensions as the widest view lies in memory, drop those of size 1, merge what all views step through alike.

    Rows and columns stay apart; columns keep their order where a place among them is asked for.
    """
    kept = len(expression.rows)
    sizes = (*expression.rows, *expression.columns)
    strides = _all_strides(expression)
    widest = max(strides, key=lambda line: sum(step != 0 for step in line), default=(0,) * len(sizes))
    ordered = _has_places(expression)
    numbers = sorted(range(kept), key=lambda number: -abs(widest[number]))
    numbers += sorted(range(kept, len(sizes)), key=lambda number: 0 if ordered else -abs(widest[number]))
    groups: list[list[int]] = []
    for number in numbers:
        size = sizes[number]
        if size == 1:
            continue
        joins = groups and (groups[-1][-1] < kept) == (number < kept)
        if joins and all(line[groups[-1][-1]] == line[number] * size for line in strides):
            groups[-1].append(number)
        else:
            groups.append([number])
    rows = [group for group in groups if group[0] < kept]
    columns = [group for group in groups if group[0] >= kept]

    def picked(line: Sequence[int]) -> tuple[int, ...]:
        return (
            *(tuple(line[group[-1]] for group in rows) or (0,)),
            *(tuple(line[group[-1]] for group in columns) or (0,)),
        )

    return replace(
        expression,
        rows=tuple(prod(sizes[number] for number in group) for group in rows) or (1,),
        columns=tuple(prod(sizes[number] for number in group) for group in columns) or (1,),
        outputs=tuple(replace(view, strides=picked(view.strides)) for view in expression.outputs),
        inputs=tuple(replace(view, strides=picked(view.strides)) for view in expression.inputs),
        stages=tuple(
            replace(stage, body=tuple(with_strides(line, picked) for line in stage.body)) for stage in expression.stages
        ),
    )


def choose_reduce_schedule(expression: RowExpression, target: Target) -> ReduceSchedule:
    """Choose vectors and tiles of a simplified row expression."""
    kept = len(expression.rows)
    views = (*expression.inputs, *expression.outputs)
    whole = [view for view in views if any(view.strides[kept:])]
    # What has one number for each column, as the means that a norm's gradient reads, is small beside what has all; so
    # is a table of positions.
    sizes = (*expression.rows, *expression.columns)
    volumes = [prod(size for size, step in zip(sizes, view.strides, strict=True) if step) for view in whole]
    whole = [view for view, volume in zip(whole, volumes, strict=True) if volume == max(volumes)]
    along_columns = sum(view.strides[-1] == 1 for view in whole)
    along_rows = sum(view.strides[kept - 1] == 1 for view in whole)
    vertical = along_rows > along_columns
    lanes = target.lanes(vector_bits(_dtypes(expression)))
    masked = target.vector_bytes >= WIDEST_MASKED_VECTOR
    columns = max(prod(expression.columns), 1)
    length = expression.rows[-1] if vertical else expression.columns[-1]
    lanes = min(lanes, 1 << max(length - 1, 0).bit_length())
    heavy = _has_places(expression) or max(len(stage.body) for stage in expression.stages) > LONG_BODY
    unroll = max(1, min(2 if heavy else ACCUMULATORS, ceil(length / lanes)))
    if not vertical:
        return ReduceSchedule(False, lanes, unroll, max(1, TILE_ELEMENTS // columns), 1, masked)
    lane_tile = lanes * unroll
    return ReduceSchedule(True, lanes, unroll, max(1, TILE_ELEMENTS // (columns * lane_tile)), lane_tile, masked)


def _has_places(expression: RowExpression) -> bool:
    passes = [stage for stage in expression.stages if isinstance(stage, RowPass)]
    return any(reduction.kind in PLACES for stage in passes for reduction in stage.reductions)


def _dtypes(expression: RowExpression) -> list[str]:
    views = [view.dtype for view in (*expression.inputs, *expression.outputs)]
    return [*views, *(line.dtype for stage in expression.stages for line in stage.body)]


def _all_strides(expression: RowExpression) -> list[tuple[int, ...]]:
    views = [view.strides for view in (*expression.outputs, *expression.inputs)]
    lines = [line for stage in expression.stages for line in stage.body]
    return [*views, *(strides for line in lines if (strides := strides_of(line)) is not None)]
