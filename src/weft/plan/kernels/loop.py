"""Define loop kernels: elementwise expressions over views of buffers, in tiles, vectors and an order of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from weft.plan.kernels.expression import (
    DTYPE_BYTES,
    MEMORY_CYCLES,
    ROW_CYCLES,
    STRIDED,
    Instruction,
    View,
    body_cycles,
    strides_of,
    value_dtypes,
    vectors_of,
    with_strides,
)
from weft.plan.kernels.kernel import Boxes, ByteBox, Kernel, Sizes, box, by, cut_range
from weft.plan.kernels.walk import whole_cut
from weft.target import Target

# A tile is large enough that its start costs nothing, small enough that a processor's cores share any real work.
TILE_ELEMENTS = 16 * 1024
# Elements of a tile's side where an input runs across the output: a square of them stays in the first cache.
SQUARE_SIDE = 64
WIDEST_MASKED_VECTOR = 64
LONG_BODY = 24
SHUFFLE_CYCLES = 2.0  # of a vector that is interleaved with others
LARGEST_BLOCK = 16
MOST_INTERLEAVED = 4
LEAST_LINE = 16  # rows that are worth a tile of their own
# Turned parts lie on the stack: a square of 64 numbers of 8 bytes and its margin are 50 KB.
MOST_TURNED = 2


@dataclass(frozen=True, slots=True)
class LoopSchedule:
    """How a loop runs: elements a vector, vectors a round, rows and columns a tile, and how a rest is done.

    `masked`: the last elements of a row are one vector with a mask, else they are done one by one. `transposed` are the
    inputs that run across the output: each tile first transposes its part of them, in squares of `block` by `block`.
    `interleaved` is how many rows of two to four columns are done at once: a vector of each column, then shuffled.
    """

    lanes: int
    unroll: int
    row_tile: int
    column_tile: int
    masked: bool
    transposed: tuple[int, ...] = ()
    block: int = 1
    interleaved: int = 0


class Space:
    """Something with a point for each index of `sizes`, seen as rows along the last dimension."""

    __slots__ = ()
    sizes: tuple[int, ...]

    @property
    def columns(self) -> int:
        """Count the elements along the last dimension."""
        return self.sizes[-1]

    @property
    def rows(self) -> int:
        """Count the points of all dimensions but the last."""
        return prod(self.sizes[:-1])


@dataclass(frozen=True, slots=True)
class LoopKernel(Space, Kernel):
    """An elementwise expression for every point of a space; the last dimension is the one that vectors run along.

    `results` are the numbers of the values that the outputs store. `in_place` lists (output, input) pairs that may be
    one buffer: their views must be equal. Every output element is written once. `tables` are the dtypes of buffers that
    `take` reads anywhere; they are parameters after the inputs. `pitches` are dimensions of arguments that step as far
    as the caller says; of `bounds` the caller says how many positions there are: what is beyond is read as 0.
    """

    name: str
    sizes: tuple[int, ...]
    outputs: tuple[View, ...]
    inputs: tuple[View, ...]
    body: tuple[Instruction, ...]
    results: tuple[int, ...]
    schedule: LoopSchedule
    in_place: tuple[tuple[int, int], ...] = ()
    tables: tuple[str, ...] = ()
    ends: tuple[int, ...] = ()
    pitches: tuple[tuple[int, int], ...] = ()
    bounds: tuple[tuple[int, int], ...] = ()

    @property
    def column_tiles(self) -> int:
        """Count the tiles side by side in one row."""
        return ceil(self.columns / self.schedule.column_tile)

    @property
    def line(self) -> int:
        """Count the rows that tiles cut into: all of them, or those of the last but one dimension.

        So it is if inputs turn, or if that dimension ends: a tile that is wholly beyond is left out at once.
        """
        return self.sizes[-2] if self.schedule.transposed or self.schedule.interleaved or self._rows_end else self.rows

    @property
    def _rows_end(self) -> bool:
        row = len(self.sizes) - 2
        return row > 0 and row in self.ends and self.sizes[row] >= LEAST_LINE

    @property
    def row_tiles(self) -> int:
        """Count the tiles below each other in one line."""
        return ceil(self.line / self.schedule.row_tile)

    @property
    def tile_count(self) -> int:
        """Count the tiles; a space without points has none."""
        return self.rows // max(self.line, 1) * self.row_tiles * self.column_tiles

    @property
    def tile_sizes(self) -> tuple[Sizes, Sizes]:
        """Give the rows and columns of tiles, of one line."""
        return whole_cut(self.line, self.schedule.row_tile), whole_cut(self.columns, self.schedule.column_tile)

    @property
    def cycles(self) -> float:
        """Estimate the cycles of its vectors, loaded, computed and stored, and of its rows."""
        schedule = self.schedule
        views = (*self.outputs, *self.inputs)
        if schedule.interleaved:
            each = body_cycles(self.body) + len(views) * MEMORY_CYCLES + SHUFFLE_CYCLES
            return ceil(self.rows / schedule.interleaved) * self.columns * each
        memory = sum(
            0.0 if view.strides[-1] == 0 else 1.0 if view.strides[-1] == 1 or number in schedule.transposed else STRIDED
            for number, view in enumerate(views, -len(self.outputs))
        )
        vectors = vectors_of(self.columns, schedule.lanes, masked=schedule.masked)
        return self.rows * (vectors * (body_cycles(self.body) + memory * MEMORY_CYCLES) + ROW_CYCLES)

    @property
    def summary(self) -> str:
        """Say the sizes and how much is computed for each element."""
        return f"{by(*self.sizes)}, {len(self.body)} ops"

    def boxes(self, begin: int, end: int) -> Boxes:
        """Give what views see of the tiles' rows and columns; tables may be read anywhere."""
        across, down, schedule = self.column_tiles, self.row_tiles, self.schedule
        first, last = begin // across, (end - 1) // across
        columns = (0, self.columns)
        if first == last:
            width = schedule.column_tile
            columns = (begin % across * width, min(((end - 1) % across + 1) * width, self.columns))
        top = first // down * self.line + first % down * schedule.row_tile
        bottom = last // down * self.line + min((last % down + 1) * schedule.row_tile, self.line)

        def seen(view: View) -> ByteBox | None:
            offset, steps = cut_range(self.sizes[:-1], view.strides[:-1], top, bottom)
            offset += view.offset + columns[0] * view.strides[-1]
            return box(offset, [*steps, (view.strides[-1], columns[1] - columns[0])], DTYPE_BYTES[view.dtype])

        return (*map(seen, self.outputs), *map(seen, self.inputs), *(None for _ in self.tables))

    def renamed(self, name: str) -> LoopKernel:
        """Give the same kernel under another name."""
        return replace(self, name=name)

    def written_over(self, output: int, read: int, target: Target) -> Kernel | None:
        """Give the loop planned again for an input that is seen as the output is, neither of them paired with another.

        An input that is read across the output is read before it is written: such a pair is planned without.
        """
        taken = {entry for pair in self.in_place for entry in (("output", pair[0]), ("input", pair[1]))}
        if read >= len(self.inputs) or {("output", output), ("input", read)} & taken:
            return None
        if self.outputs[output] != self.inputs[read]:
            return None
        again = LoopExpression(
            self.name,
            self.sizes,
            self.outputs,
            self.inputs,
            self.body,
            self.results,
            (*self.in_place, (output, read)),
            self.tables,
        )
        return plan_loop(again, target)


@dataclass(frozen=True, slots=True)
class LoopExpression:
    """What a loop kernel computes, before it is decided how: see LoopKernel for the fields."""

    name: str
    sizes: tuple[int, ...]
    outputs: tuple[View, ...]
    inputs: tuple[View, ...]
    body: tuple[Instruction, ...]
    results: tuple[int, ...]
    in_place: tuple[tuple[int, int], ...] = ()
    tables: tuple[str, ...] = ()


def plan_loop(expression: LoopExpression, target: Target) -> LoopKernel:
    """Choose the order of dimensions, the tiles and the vectors of an elementwise expression."""
    simple = _side_by_side(simplified(expression), target)
    return LoopKernel(
        simple.name,
        simple.sizes,
        simple.outputs,
        simple.inputs,
        simple.body,
        simple.results,
        choose_loop_schedule(simple, target),
        simple.in_place,
        simple.tables,
    )


def simplified(expression: LoopExpression) -> LoopExpression:
    """Sort the dimensions as the first output lies in memory, and merge those that all views step through alike."""
    sizes = expression.sizes
    kept = [number for number, size in enumerate(sizes) if size != 1]
    kept.sort(key=lambda number: -abs(expression.outputs[0].strides[number]))
    groups: list[list[int]] = []
    for number in kept:
        if groups and all(_continues(strides, groups[-1][-1], number, sizes) for strides in _all_strides(expression)):
            groups[-1].append(number)
        else:
            groups.append([number])
    last = [group[-1] for group in groups]

    def picked(strides: Sequence[int]) -> tuple[int, ...]:
        return tuple(strides[number] for number in last) if last else (1,)

    def viewed(view: View) -> View:
        return replace(view, strides=picked(view.strides))

    return replace(
        expression,
        sizes=tuple(prod(sizes[number] for number in group) for group in groups) or (1,),
        outputs=tuple(map(viewed, expression.outputs)),
        inputs=tuple(map(viewed, expression.inputs)),
        body=tuple(with_strides(line, picked) for line in expression.body),
    )


def _side_by_side(expression: LoopExpression, target: Target) -> LoopExpression:
    """Move the dimension along which an input lies in memory beside the last one: both are transposed in squares.

    Where the two are apart, the input would be read an element a line of the cache, once for each place in between.
    """
    count = len(expression.sizes)
    along = {
        view.strides.index(1): DTYPE_BYTES[view.dtype]
        for view in expression.inputs
        if view.strides[-1] not in {0, 1} and 1 in view.strides[:-2]
    }
    if len(along) != 1 or choose_transposed(expression, target)[1]:
        return expression
    ((number, item),) = along.items()
    if min(expression.sizes[number], expression.sizes[-1]) < min(LARGEST_BLOCK, target.vector_bytes // item):
        return expression
    order = [*(other for other in range(count - 1) if other != number), number, count - 1]

    def moved(strides: Sequence[int]) -> tuple[int, ...]:
        return tuple(strides[other] for other in order)

    def viewed(view: View) -> View:
        return replace(view, strides=moved(view.strides))

    return replace(
        expression,
        sizes=moved(expression.sizes),
        outputs=tuple(map(viewed, expression.outputs)),
        inputs=tuple(map(viewed, expression.inputs)),
        body=tuple(with_strides(line, moved) for line in expression.body),
    )


def choose_loop_schedule(expression: LoopExpression, target: Target) -> LoopSchedule:
    """Choose the vectors and tiles of a simplified expression."""
    dtypes = value_dtypes([view.dtype for view in expression.inputs], expression.body)
    lanes = min(target.lanes(vector_bits(dtypes)), _power_above(expression.sizes[-1]))
    unroll = 1 if len(expression.body) > LONG_BODY else 2
    columns = max(expression.sizes[-1], 1)
    step = lanes * unroll
    masked = target.vector_bytes >= WIDEST_MASKED_VECTOR
    interleaved = choose_interleaved(expression, target.lanes(vector_bits(dtypes)))
    block, transposed = (1, ()) if interleaved else choose_transposed(expression, target)
    column_tile = min(columns, SQUARE_SIDE if transposed else TILE_ELEMENTS)
    column_tile = columns if columns - column_tile < step else ceil(column_tile / step) * step
    row_tile = SQUARE_SIDE if transposed else max(1, TILE_ELEMENTS // column_tile)
    return LoopSchedule(lanes, unroll, row_tile, column_tile, masked, transposed, block, interleaved)


def choose_interleaved(expression: LoopExpression, lanes: int) -> int:
    """Choose how many rows of few columns are done at once where inputs step by one along the rows, as planes do.

    The outputs' columns and rows lie side by side: pixels of few channels. 0 where it does not fit.
    """
    few = len(expression.sizes) > 1 and 1 < expression.sizes[-1] <= MOST_INTERLEAVED and expression.sizes[-2] >= lanes
    if not few or expression.in_place or any(strides_of(line) is not None for line in expression.body):
        return 0
    side_by_side = all(view.strides[-2:] == (expression.sizes[-1], 1) for view in expression.outputs)
    planes = any(view.strides[-2] == 1 for view in expression.inputs)
    along = all(view.strides[-2] in {0, 1} for view in expression.inputs)
    return lanes if side_by_side and planes and along else 0


def choose_transposed(expression: LoopExpression, target: Target) -> tuple[int, tuple[int, ...]]:
    """Choose the inputs to turn, and the side of the squares: those that step by one along the last but one dimension.

    An input that may be written in place is left as it is: its elements must be read where they are written.
    """
    if len(expression.sizes) < 2:
        return 1, ()
    in_place = {number for _, number in expression.in_place}
    crossing = tuple(
        number
        for number, view in enumerate(expression.inputs)
        if view.strides[-1] not in {0, 1} and view.strides[-2] == 1 and number not in in_place
    )[:MOST_TURNED]
    widest = max((DTYPE_BYTES[expression.inputs[number].dtype] for number in crossing), default=4)
    block = min(LARGEST_BLOCK, target.vector_bytes // widest)
    return (block, crossing) if crossing and min(expression.sizes[-2:]) >= block else (1, ())


def steady_values(inputs: Sequence[View], body: Sequence[Instruction]) -> set[int]:
    """Give the numbers of the values that are the same all along a row."""
    steady = {number for number, view in enumerate(inputs) if view.strides[-1] == 0}
    for number, line in enumerate(body, len(inputs)):
        strides = strides_of(line)
        if all(operand in steady for operand in line.operands) and (strides is None or strides[-1] == 0):
            steady.add(number)
    return steady


def vector_bits(dtypes: Sequence[str]) -> int:
    """Choose the bits that a vector's lanes are counted by: of the widest float, else of the widest number."""
    floats = [DTYPE_BYTES[dtype] for dtype in dtypes if dtype in ("f32", "f64")]
    others = [min(DTYPE_BYTES[dtype], 4) for dtype in dtypes]
    return 8 * max(floats or others or [4])


def _power_above(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _all_strides(expression: LoopExpression) -> list[tuple[int, ...]]:
    views = [view.strides for view in (*expression.outputs, *expression.inputs)]
    return [*views, *(strides for line in expression.body if (strides := strides_of(line)) is not None)]


def _continues(strides: tuple[int, ...], outer: int, inner: int, sizes: tuple[int, ...]) -> bool:
    return strides[outer] == strides[inner] * sizes[inner]
