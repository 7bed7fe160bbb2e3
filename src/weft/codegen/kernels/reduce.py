"""Emit row kernels: reductions of rows, with what feeds and follows them, in stages (softmax, norms, sums).

Contract of the emitted function: void name(out0.., in0.., begin, end) computes the tiles [begin, end). Buffers do not
overlap except as the kernel's in-place pairs say; sizes are constants and may be 0. A row is done within one tile, so
how the tiles are shared out over calls changes no bit of the results.

A stage is a pass over a row's columns that reduces, or a finish that computes with the row's numbers. Vectors run along
the columns, in several chains that are joined at the end, or along neighbouring rows. Sums start anew after every
`group` rounds, so that the longest chain of additions is short whatever the length of a row:

    ((x0 + .. + xg) + (xg+1 + .. + x2g)) + ..        groups of groups where there are more than `group` of them

A partial result is one register, or for argmax and argmin two: the extreme and its place. All rules work on vectors,
lane by lane, and give the same bits in whatever number of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod

from weft.codegen.kernels.elementwise import BodyContext, Typed, emit_body, emit_op
from weft.codegen.kernels.ends import Parameters, all_below, parameter_kinds
from weft.codegen.kernels.vectors import ColumnSpan, linear, mask_up_to, row_coordinates
from weft.codegen.llvm.dtypes import HELD, dtype_constant
from weft.codegen.llvm.module import FunctionWriter, Module, Register, bits_of, constant, lanes_of, vector
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.reduce import Finish, RowKernel, RowPass, Stage, used_values

Partial = tuple[Register, ...]
LAST_PLACE = 2**62


@dataclass(frozen=True, slots=True)
class Reducer:
    """One kind: the number it starts from, the op that joins two partial results, and whether long chains lose bits."""

    start: Callable[[str], float]
    op: str
    cascades: bool = False
    places: bool = False

    def identity(self, dtype: str, lanes: int) -> Partial:
        """Give the partial result of nothing."""
        like = vector("i64", lanes)
        value = dtype_constant(dtype, self.start(dtype), like)
        return (value, constant(like, LAST_PLACE)) if self.places else (value,)

    def join(self, f: FunctionWriter, dtype: str, x: Partial, y: Partial) -> Partial:
        """Make one partial result of two."""
        if not self.places:
            return (emit_op(f, self.op, [Typed(x[0], dtype), Typed(y[0], dtype)], dtype),)
        better = self._is_better(f, dtype, y, x)
        return tuple(f.select(better, new, old) for new, old in zip(y, x, strict=True))

    def gather_lanes(self, f: FunctionWriter, dtype: str, partial: Partial) -> Partial:
        """Make one scalar partial result of the lanes of a vector, by halves."""
        lanes = lanes_of(partial[0].kind)
        while lanes > 1:
            lanes //= 2
            halves = [
                [f.shuffle(x, x, [lane + first for lane in range(lanes)]) for x in partial] for first in (0, lanes)
            ]
            partial = self.join(f, dtype, tuple(halves[0]), tuple(halves[1]))
        return partial

    def _is_better(self, f: FunctionWriter, dtype: str, x: Partial, y: Partial) -> Register:
        operands = [Typed(x[0], dtype), Typed(y[0], dtype)]
        better = emit_op(f, self.op, operands, "bool")
        equal = emit_op(f, "eq", operands, "bool")
        if HELD[dtype].kind == "float":
            no_number = [f.compare("fcmp uno", value, value) for value in (x[0], y[0])]
            known = f.binary("xor", no_number[1], constant(no_number[1].kind, 1))
            better = f.binary("or", better, f.binary("and", no_number[0], known))
            equal = f.binary("or", equal, f.binary("and", *no_number))
        earlier = f.compare("icmp slt", x[1], y[1])
        return f.binary("or", better, f.binary("and", equal, earlier))


def lowest(dtype: str) -> float:
    """Give what is below every number of a dtype."""
    return _limit(dtype, highest=False)


def highest(dtype: str) -> float:
    """Give what is above every number of a dtype."""
    return _limit(dtype, highest=True)


def _limit(dtype: str, *, highest: bool) -> float:
    held = HELD[dtype]
    if held.kind == "float":
        return float("inf") if highest else -float("inf")
    bits = bits_of(held.element)
    if held.kind == "signed":
        return (1 << (bits - 1)) - 1 if highest else -(1 << (bits - 1))
    return (1 << bits) - 1 if highest else 0


REDUCERS = {
    "sum": Reducer(lambda _: 0, "add", cascades=True),
    "prod": Reducer(lambda _: 1, "mul"),
    "max": Reducer(lowest, "maximum"),
    "min": Reducer(highest, "minimum"),
    "any": Reducer(lambda _: 0, "logical_or"),
    "all": Reducer(lambda _: 1, "logical_and"),
    "argmax": Reducer(lowest, "gt", places=True),
    "argmin": Reducer(highest, "lt", places=True),
}


def masked_partial(f: FunctionWriter, mask: Register | None, partial: Partial, identity: Partial) -> Partial:
    """Replace the lanes that do not exist by the partial result of nothing."""
    if mask is None:
        return partial
    return tuple(f.select(mask, x, nothing) for x, nothing in zip(partial, identity, strict=True))


def joined(f: FunctionWriter, reducer: Reducer, dtype: str, partials: Sequence[Partial]) -> Partial:
    """Make one partial result of several, by pairs."""
    found = list(partials)
    while len(found) > 1:
        pairs = [reducer.join(f, dtype, *found[i : i + 2]) for i in range(0, len(found) - 1, 2)]
        found = pairs + found[len(found) & ~1 :]
    return found[0]


State = tuple[Partial, ...]
Step = Callable[[Register, State], State]
UNUSED = Typed(Register("void", ""), "")


def emit_reduce(module: Module, kernel: RowKernel) -> None:
    """Write the function of a row kernel."""
    expression = kernel.expression
    # SAFETY: noalias holds because the plan gives every buffer of a kernel bytes of its own, except for the in-place
    # pairs, whose inputs the plan promises not to read after the stage that writes over them.
    shared = {pair for output, number in expression.in_place for pair in (output, len(expression.outputs) + number)}
    count = len(expression.outputs) + len(expression.inputs)
    buffers = ["ptr" if number in shared else "ptr noalias" for number in range(count)]
    f = module.function(kernel.name, parameter_kinds(kernel, buffers))
    if kernel.tile_count:
        _TileWriter(f, kernel).write()


class _TileWriter:
    """Writes the loops over the tiles and rows of one kernel."""

    def __init__(self, f: FunctionWriter, kernel: RowKernel) -> None:
        self.f = f
        self.kernel = kernel
        self.schedule = kernel.schedule
        given = Parameters.of(f, kernel)
        self.rows = RowWriter(f, kernel, given)
        self.begin, self.end, self.ends = given.begin, given.end, given.ends

    def write(self) -> None:
        """Write the loop over tiles."""
        f, kernel, schedule = self.f, self.kernel, self.schedule
        count = 1
        for size in kernel.outer_rows:
            count *= size
        cut = self.ends.get(0) if len(kernel.outer_rows) == 1 else None
        with f.loop(self.begin, self._last_tile(cut)) as tiles:
            outer, lane = f.divide(tiles.index, kernel.lane_tiles)
            first = f.multiply(outer, schedule.row_tile)
            last = f.minimum(f.add(first, schedule.row_tile), cut or f.integer(count))
            with f.loop(first, last) as rows:
                coordinates = row_coordinates(f, rows.index, kernel.outer_rows)
                others = enumerate(coordinates if cut is None else ())
                inside = all_below(f, ((place, self.ends[at]) for at, place in others if at in self.ends))
                with f.only_if(inside) if inside else nullcontext():
                    if schedule.along_rows:
                        self._neighbours(coordinates, f.multiply(lane, schedule.lane_tile))
                    else:
                        self.rows.write(RowPosition(coordinates, (ColumnSpan(f, f.integer(0), 1),)))

    def _last_tile(self, cut: Register | None) -> Register:
        """Give where tiles end, at the latest behind the last row."""
        f, row_tile = self.f, self.schedule.row_tile
        if cut is None:
            return self.end
        tiles, _ = f.divide(f.add(cut, row_tile - 1), row_tile)
        return f.minimum(self.end, f.multiply(tiles, self.kernel.lane_tiles))

    def _neighbours(self, coordinates: tuple[Register, ...], first: Register) -> None:
        """Write the neighbouring rows of a tile: as many vectors at once as it is wide, at the edge one by one."""
        f, schedule, total = self.f, self.schedule, self.kernel.lane_rows
        given = self.ends.get(len(self.kernel.expression.rows) - 1)
        last = f.minimum(f.add(first, schedule.lane_tile), given or f.integer(total))
        whole = f.compare("icmp eq", f.binary("sub", last, first), f.integer(schedule.lane_tile))
        if total >= schedule.lane_tile:
            with f.only_if(whole):
                starts = [f.add(first, number * schedule.lanes) for number in range(schedule.unroll)]
                self.rows.write(
                    RowPosition(coordinates, tuple(ColumnSpan(f, start, schedule.lanes) for start in starts))
                )
        if total % schedule.lane_tile or given:
            with f.only_if(f.binary("xor", whole, Register("i1", "true"))):
                step = schedule.lanes if schedule.masked else 1
                with f.loop(first, last, step) as rest:
                    mask = mask_up_to(f, rest.index, last, step) if step > 1 else None
                    self.rows.write(RowPosition(coordinates, (ColumnSpan(f, rest.index, step, mask),)))


@dataclass(frozen=True, slots=True)
class RowPosition:
    """The row that is written: coordinates of the kept dimensions stepped one by one, and the spans of rows.

    Where vectors run along columns there is one span, of one row; its lanes are made anew for each pass.
    """

    coordinates: tuple[Register, ...]
    spans: tuple[ColumnSpan, ...]


class RowWriter:
    """Writes all stages of a kernel for one place at a time."""

    def __init__(self, f: FunctionWriter, kernel: RowKernel, given: Parameters) -> None:
        self.f = f
        self.expression = kernel.expression
        self.schedule = kernel.schedule
        self.kept = len(self.expression.rows)
        # Values of a body are numbered inputs first, parameters of the function outputs first.
        self.views = (*self.expression.inputs, *self.expression.outputs)
        outputs = len(self.expression.outputs)
        self.pointers = (*given.pointers[outputs:], *given.pointers[:outputs])
        self.ends = {at - self.kept: end for at, end in given.ends.items() if at >= self.kept}  # of columns
        self.used = {number for stage in self.expression.stages for number in used_values(stage)}
        self.along = self.kept - 1 if self.schedule.along_rows else self.kept + len(self.expression.columns) - 1

    def write(self, place: RowPosition) -> None:
        """Write the stages in order; each gives the numbers of the row that later ones use."""
        f = self.f
        outer = len(place.coordinates)
        bases = tuple(
            f.offset(pointer, HELD[view.dtype].stored, linear(f, place.coordinates, view.strides[:outer], view.offset))
            for pointer, view in zip(self.pointers, self.views, strict=True)
        )
        # What does not change along the columns is loaded once; it exists even if there are no columns.
        row_values = [
            {
                number: Typed(span.load(view, bases[number], self._step(view)), view.dtype)
                for number, view in enumerate(self.expression.inputs)
                if number in self.used and not any(view.strides[self.kept :])
            }
            for span in place.spans
        ]
        numbers = len(self.views)
        for stage in self.expression.stages:
            writer = _StageWriter(self, place, bases, row_values)
            for results in writer.write(stage):
                for facts, result in zip(row_values, results, strict=True):
                    facts[numbers] = result
                numbers += 1

    def _step(self, view: View) -> int:
        return view.strides[self.along] if self.schedule.along_rows else 0


@dataclass(frozen=True, slots=True)
class Element:
    """Where a body is written: a span, each view's address at the span's column 0, and its place in the row."""

    span: ColumnSpan
    bases: tuple[Register, ...]
    row_values: dict[int, Typed]
    position: Callable[[Instruction], Register]


class _StageWriter:
    """Writes one stage at one place."""

    def __init__(
        self, rows: RowWriter, place: RowPosition, bases: tuple[Register, ...], row_values: list[dict[int, Typed]]
    ) -> None:
        self.rows = rows
        self.f = rows.f
        self.place = place
        self.bases = bases
        self.row_values = row_values
        self.schedule = rows.schedule
        self.columns = rows.expression.columns
        # How many columns there are along the last dimension, and steps of all others.
        self.count = rows.ends.get(len(self.columns) - 1, self.f.integer(self.columns[-1]))
        lanes = self.schedule.lanes
        self.wide = row_values
        if not self.schedule.along_rows:
            self.wide = [{n: Typed(self.f.splat(x.register, lanes), x.dtype) for n, x in row_values[0].items()}]

    def write(self, stage: Stage) -> list[list[Typed]]:
        """Write the stage; gives its numbers of the row, each with a register per span."""
        if isinstance(stage, Finish):
            return self._finish(stage)
        return self._pass_along_rows(stage) if self.schedule.along_rows else self._pass_along_columns(stage)

    def _finish(self, stage: Finish) -> list[list[Typed]]:
        found = []
        for span, row_values in zip(self.place.spans, self.row_values, strict=True):
            element = Element(span, self.bases, row_values, self._position(span, ()))
            values = self._evaluate(stage, element)
            found.append([values[number] for number in stage.results])
        return [list(results) for results in zip(*found, strict=True)]

    def _pass_along_rows(self, stage: RowPass) -> list[list[Typed]]:
        spans = self.place.spans
        slots = self._slots(stage, spans[0].lanes)
        carrier = Carrier(self.f, tuple(slots) * len(spans), self.schedule.group)

        def at_column(outer: Register, before: Register, state: State, bases: tuple[Register, ...]) -> State:
            moved = self._moved(bases, (before,), len(self.columns) - 1)
            coordinates = (*row_coordinates(self.f, outer, self.columns[:-1]), before)
            after: list[Partial] = []
            for number, (span, row_values) in enumerate(zip(spans, self.row_values, strict=True)):
                element = Element(span, moved, row_values, self._position(span, coordinates))
                values = self._evaluate(stage, element)
                spot = self.f.add(self.f.multiply(outer, self.columns[-1]), before)
                place = self.f.splat(spot, span.lanes)
                mine = state[number * len(slots) : (number + 1) * len(slots)]
                after.extend(self._updated(stage, slots, values, (mine, place, None)))
            return tuple(after)

        def at_outer(outer: Register, state: State) -> State:
            bases = self._moved(self.bases, row_coordinates(self.f, outer, self.columns[:-1]), 0)
            most = self.columns[-1]
            return carrier.repeat(self.count, most, state, lambda c, now: at_column(outer, c, now, bases))

        state = self._over_outer(carrier, at_outer)
        return [
            [Typed(state[number * len(slots) + which][-1], self._dtype(slot)) for number in range(len(spans))]
            for which, slot in enumerate(slots)
        ]

    def _pass_along_columns(self, stage: RowPass) -> list[list[Typed]]:
        f, schedule = self.f, self.schedule
        slots = self._slots(stage, schedule.lanes)
        single = self._slots(stage, 1)
        chains = schedule.unroll
        carrier = Carrier(f, (*tuple(slots) * chains, *single), schedule.group)
        size, step = self.columns[-1], schedule.lanes * chains

        def at_outer(outer: Register, state: State) -> State:
            coordinates = row_coordinates(f, outer, self.columns[:-1])
            bases = self._moved(self.bases, coordinates, 0)
            start = f.multiply(outer, size)

            def at_span(span: ColumnSpan, state: State, chain: int) -> State:
                wide = span.lanes == schedule.lanes and chain < chains
                element = Element(
                    span, bases, (self.wide if wide else self.row_values)[0], self._position(span, coordinates)
                )
                values = self._evaluate(stage, element)
                place = span.position("i64", start, 1) if any(slot.reducer.places for slot in slots) else start
                begin, mine = chain * len(slots), slots if chain < chains else single
                spot = (state[begin : begin + len(slots)], place, span.mask)
                return (*state[:begin], *self._updated(stage, mine, values, spot), *state[begin + len(slots) :])

            def whole(number: Register, state: State) -> State:
                first = f.multiply(number, step)
                for chain in range(chains):
                    state = at_span(ColumnSpan(f, f.add(first, chain * schedule.lanes), schedule.lanes), state, chain)
                return state

            if size >= step:
                rounds, _ = f.divide(self.count, step)
                state = carrier.repeat(rounds, size // step, state, whole)
            return self._rest(carrier, state, at_span)

        state = self._over_outer(carrier, at_outer)
        found: list[list[Typed]] = []
        for which, slot in enumerate(slots):
            chained = [state[chain * len(slots) + which] for chain in range(chains)]
            partial = slot.reducer.gather_lanes(f, slot.dtype, joined(f, slot.reducer, slot.dtype, chained))
            partial = slot.reducer.join(f, slot.dtype, partial, state[chains * len(slots) + which])
            found.append([Typed(partial[-1], self._dtype(slot))])
        return found

    def _rest(self, carrier: Carrier, state: State, at_span: Callable[[ColumnSpan, State, int], State]) -> State:
        """Write what is left of the columns after the rounds of all chains."""
        f, lanes, size = self.f, self.schedule.lanes, self.columns[-1]
        if len(self.columns) - 1 in self.rows.ends:
            return self._any_rest(carrier, state, at_span)
        first = size - size % (lanes * self.schedule.unroll)
        if self.schedule.masked:
            if first == size:
                return state

            def masked(column: Register, state: State) -> State:
                mask = mask_up_to(f, column, f.integer(size), lanes) if size % lanes else None
                return at_span(ColumnSpan(f, column, lanes, mask), state, 0)

            return carrier.run(first, size, lanes, state, masked)
        if size - first >= lanes:
            last = size - size % lanes
            state = carrier.run(first, last, lanes, state, lambda c, now: at_span(ColumnSpan(f, c, lanes), now, 0))
            first = last
        if first < size:
            chains = self.schedule.unroll
            state = carrier.run(first, size, 1, state, lambda c, now: at_span(ColumnSpan(f, c, 1), now, chains))
        return state

    def _any_rest(self, carrier: Carrier, state: State, at_span: Callable[[ColumnSpan, State, int], State]) -> State:
        """The same where a call says how many columns there are."""
        f, lanes, chains, last = self.f, self.schedule.lanes, self.schedule.unroll, self.count
        rounds, _ = f.divide(last, lanes * chains)
        first = f.multiply(rounds, lanes * chains)
        if self.schedule.masked:

            def masked(column: Register, state: State) -> State:
                return at_span(ColumnSpan(f, column, lanes, mask_up_to(f, column, last, lanes)), state, 0)

            return carrier.between(first, last, lanes, state, masked)
        whole = f.multiply(f.divide(last, lanes)[0], lanes)
        state = carrier.between(first, whole, lanes, state, lambda c, now: at_span(ColumnSpan(f, c, lanes), now, 0))
        return carrier.between(whole, last, 1, state, lambda c, now: at_span(ColumnSpan(f, c, 1), now, chains))

    def _over_outer(self, carrier: Carrier, at_outer: Callable[[Register, State], State]) -> State:
        count = prod(self.columns[:-1])
        if count == 1:
            return at_outer(self.f.integer(0), carrier.start())
        steps = self.f.integer(count)
        if 0 in self.rows.ends:
            steps = self.f.multiply(self.rows.ends[0], prod(self.columns[1:-1]))
        return carrier.repeat(
            steps, count, carrier.start(), lambda o, now: carrier.anew(now, lambda fresh: at_outer(o, fresh))
        )

    def _slots(self, stage: RowPass, lanes: int) -> list[AccumulatorType]:
        dtypes = self._dtypes(stage)
        return [AccumulatorType(REDUCERS[line.kind], dtypes[line.value], lanes) for line in stage.reductions]

    def _dtypes(self, stage: Stage) -> list[str]:
        numbers = [self.row_values[0][n].dtype for n in sorted(self.row_values[0]) if n >= len(self.rows.views)]
        return [*(view.dtype for view in self.rows.views), *numbers, *(line.dtype for line in stage.body)]

    @staticmethod
    def _dtype(slot: AccumulatorType) -> str:
        return "i64" if slot.reducer.places else slot.dtype

    def _updated(
        self,
        stage: RowPass,
        slots: list[AccumulatorType],
        values: list[Typed],
        spot: tuple[State, Register, Register | None],
    ) -> list[Partial]:
        """Join what an element gives to the partial results of its chain."""
        state, place, mask = spot
        after = []
        for slot, line, before in zip(slots, stage.reductions, state, strict=True):
            value = values[line.value].register
            partial: Partial = (value, place) if slot.reducer.places else (value,)
            partial = masked_partial(self.f, mask, partial, slot.identity)
            after.append(slot.reducer.join(self.f, slot.dtype, before, partial))
        return after

    def _evaluate(self, stage: Stage, element: Element) -> list[Typed]:
        """Write a body at an element and its stores; gives all values."""
        rows, span = self.rows, element.span
        count = len(rows.views)
        total = count + sum(number >= count for number in self.row_values[0])
        used = used_values(stage)
        inputs = []
        for number in range(total):
            if number in element.row_values:
                inputs.append(element.row_values[number])
            elif number in used:
                view = rows.views[number]
                step = view.strides[rows.along]
                inputs.append(Typed(span.load(view, element.bases[number], step), view.dtype))
            else:
                inputs.append(UNUSED)
        values = emit_body(self.f, stage.body, inputs, BodyContext(span.lanes, element.position))
        for store in stage.stores:
            number = len(rows.expression.inputs) + store.output
            view = rows.views[number]
            span.store(view, element.bases[number], view.strides[rows.along], values[store.value].register)
        return values

    def _moved(
        self, bases: tuple[Register, ...], coordinates: tuple[Register, ...], first: int
    ) -> tuple[Register, ...]:
        """Move each view's address along columns' dimensions, from the first of the coordinates on."""
        begin = self.rows.kept + first
        return tuple(
            self.f.offset(
                base,
                HELD[view.dtype].stored,
                linear(self.f, coordinates, view.strides[begin : begin + len(coordinates)], 0),
            )
            for base, view in zip(bases, self.rows.views, strict=True)
        )

    def _position(self, span: ColumnSpan, columns: tuple[Register, ...]) -> Callable[[Instruction], Register]:
        """Make what writes an `iota` at a span, given the coordinates of columns outside the span."""

        def position(line: Instruction) -> Register:
            *strides, start = (int(value) for value in line.attributes)
            kept = self.place.coordinates
            begin = self.rows.kept
            first = linear(self.f, kept, strides[: len(kept)], start)
            first = self.f.add(first, linear(self.f, columns, strides[begin : begin + len(columns)], 0))
            return span.position(line.dtype, first, strides[self.rows.along])

        return position


@dataclass(frozen=True, slots=True)
class AccumulatorType:
    """What accumulates in one partial result of a state: the reduction, the dtype, the lanes."""

    reducer: Reducer
    dtype: str
    lanes: int

    @property
    def identity(self) -> Partial:
        """Give the partial result of nothing."""
        return self.reducer.identity(self.dtype, self.lanes)


@dataclass(frozen=True, slots=True)
class Carrier:
    """Runs loops that carry a state with these slots; sums start anew after every `group` rounds."""

    f: FunctionWriter
    slots: tuple[AccumulatorType, ...]
    group: int

    def start(self) -> State:
        """Give the state of nothing."""
        return tuple(slot.identity for slot in self.slots)

    def repeat(self, count: Register, most: int, state: State, step: Step) -> State:
        """Run a step for every number below a count, which is at most so many."""
        if most <= self.group or not any(slot.reducer.cascades for slot in self.slots):
            return self._loop(self.f.integer(0), count, state, step)
        groups, _ = self.f.divide(self.f.add(count, self.group - 1), self.group)

        def one_group(number: Register, before: State) -> State:
            first = self.f.multiply(number, self.group)
            last = self.f.minimum(self.f.add(first, self.group), count)
            return self._merge(before, self._loop(first, last, self._fresh(before), step))

        return self.repeat(groups, -(-most // self.group), state, one_group)

    def run(self, start: int, end: int, stride: int, state: State, step: Step) -> State:
        """Run a step for a few numbers, without groups."""
        return self._loop(self.f.integer(start), self.f.integer(end), state, step, stride)

    def between(self, first: Register, last: Register, stride: int, state: State, step: Step) -> State:
        """The same where a call says how many."""
        return self._loop(first, last, state, step, stride)

    def anew(self, state: State, piece: Callable[[State], State]) -> State:
        """Run code whose sums start from nothing, and add what they come to."""
        return self._merge(state, piece(self._fresh(state)))

    def _loop(self, first: Register, last: Register, state: State, step: Step, stride: int = 1) -> State:
        with self.f.loop(first, last, stride, carried=[x for partial in state for x in partial]) as loop:
            loop.carry(*(x for partial in step(loop.index, self._shaped(loop.carried)) for x in partial))
        return self._shaped(loop.carried)

    def _shaped(self, registers: Sequence[Register]) -> State:
        left = iter(registers)
        return tuple(tuple(next(left) for _ in range(1 + slot.reducer.places)) for slot in self.slots)

    def _fresh(self, state: State) -> State:
        return tuple(
            slot.identity if slot.reducer.cascades else partial for slot, partial in zip(self.slots, state, strict=True)
        )

    def _merge(self, before: State, after: State) -> State:
        return tuple(
            slot.reducer.join(self.f, slot.dtype, x, y) if slot.reducer.cascades else y
            for slot, x, y in zip(self.slots, before, after, strict=True)
        )
