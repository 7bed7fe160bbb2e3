"""Emit loops over elements: tiles, rows and vectors, with a body of elementwise instructions.

Contract of the emitted function: void name(out0.., in0.., table0.., begin, end) computes the tiles [begin, end).
Buffers do not overlap except as the kernel's in-place pairs say; sizes are constants and may be 0. How the tiles are
shared out over calls changes no bit of the results, since every element is computed by itself.

An input that runs across the output (its columns are not side by side) is transposed tile by tile into scratch memory.
Where rows have two to four columns, as the pixels of an image, a vector of rows is computed for each column, and these
are interleaved in registers.

Of a dense argument some strides are parameters, as are counts of positions: beyond them its memory may end, or have
other elements, so that it is not read there. What a loop writes ends with the tensor that it is written to.
"""

from contextlib import nullcontext
from dataclasses import dataclass

from weft.codegen.kernels.elementwise import Typed, emit_body
from weft.codegen.kernels.ends import Parameters, all_below, parameter_kinds
from weft.codegen.kernels.vectors import (
    ColumnSpan,
    Patch,
    Stride,
    TransposedPatch,
    interleaved,
    linear,
    mask_up_to,
    row_context,
    row_coordinates,
    times,
)
from weft.codegen.llvm.dtypes import HELD, to_memory
from weft.codegen.llvm.module import FunctionWriter, Module, Register
from weft.plan.kernels.loop import LoopKernel, steady_values


def emit_loop(module: Module, kernel: LoopKernel) -> None:
    """Write the function of a loop kernel."""
    # SAFETY: noalias holds because the plan gives every buffer of a kernel bytes of its own, except for the in-place
    # pairs, whose equal views make each element read before it is written; those carry no claim.
    shared = {pair for output, number in kernel.in_place for pair in (output, len(kernel.outputs) + number)}
    count = len(kernel.outputs) + len(kernel.inputs) + len(kernel.tables)
    buffers = ["ptr" if number in shared else "ptr noalias" for number in range(count)]
    f = module.function(kernel.name, parameter_kinds(kernel, buffers))
    if kernel.tile_count:
        _LoopWriter(f, kernel).write()


@dataclass(frozen=True, slots=True)
class LoopRow:
    """One row while it is written: its coordinates and, for every view, the address of its first element.

    Of `bounded` views it has so many elements.
    """

    coordinates: tuple[Register, ...]
    bases: tuple[Register, ...]
    splats: dict[int, Register]
    bounded: dict[int, Register]


class _LoopWriter:
    """Writes the loops of one kernel."""

    def __init__(self, f: FunctionWriter, kernel: LoopKernel) -> None:
        self.f = f
        self.kernel = kernel
        self.schedule = kernel.schedule
        self.views = (*kernel.outputs, *kernel.inputs)
        given = Parameters.of(f, kernel)
        self.begin, self.end, self.ends, self.bounds = given.begin, given.end, given.ends, given.bounds
        self.strides: list[tuple[Stride, ...]] = [
            tuple(given.pitches.get((number, axis), stride) for axis, stride in enumerate(view.strides))
            for number, view in enumerate(self.views)
        ]
        self.pointers, self.tables = given.pointers[: len(self.views)], given.pointers[len(self.views) :]
        self.steady = steady_values(kernel.inputs, kernel.body)
        size = (self.schedule.row_tile, self.schedule.column_tile)
        self.transposed = {
            number: TransposedPatch.make(f, self.views[number], size, self.schedule.block)
            for number in (len(kernel.outputs) + number for number in self.schedule.transposed)
        }

    def write(self) -> None:
        """Write the loop over tiles and rows."""
        f, kernel, schedule = self.f, self.kernel, self.schedule
        row = len(kernel.sizes) - 2  # the dimension whose places rows of a line are, where they are of no other
        is_line = row >= 0 and kernel.line == kernel.sizes[row]
        cut = self.ends.get(row) if is_line else None
        with f.loop(self.begin, self._last_tile(cut)) as tiles:
            row_tile, column_tile = f.divide(tiles.index, kernel.column_tiles)
            line, part = f.divide(row_tile, kernel.row_tiles)
            start, first_row = f.multiply(line, kernel.line), f.multiply(part, schedule.row_tile)
            last_row = f.minimum(f.add(first_row, schedule.row_tile), cut or f.integer(kernel.line))
            first, last = f.integer(0), self.ends.get(row + 1, f.integer(kernel.columns))
            if kernel.column_tiles > 1:
                first = f.multiply(column_tile, schedule.column_tile)
                last = f.minimum(f.add(first, schedule.column_tile), last)
            whole = (kernel.line if cut is None else cut, self.ends.get(row + 1, kernel.columns))
            patch = Patch((first_row, last_row), (first, last), whole)
            inside = self._is_inside(start, before=row) if is_line else None
            with f.only_if(inside) if inside else nullcontext():
                if self.transposed:
                    self._transpose(row_coordinates(f, start, kernel.sizes[:-1]), patch)
                self._rows(start, patch, is_line=is_line)

    def _is_inside(self, line: Register, before: int) -> Register | None:
        """Tell whether a line is, along the dimensions before one; None where none of these ends."""
        ends = [(place, end) for place, end in self.ends.items() if place < before]
        if not ends:
            return None
        at = row_coordinates(self.f, line, self.kernel.sizes[:-1])
        return all_below(self.f, ((at[place], end) for place, end in ends))

    def _rows(self, start: Register, patch: Patch, *, is_line: bool) -> None:
        """Write the loop over the rows of a tile, which are all of one line, that is inside, or of any."""
        f, row = self.f, len(self.kernel.sizes) - 2
        (first, last), many = patch.rows, self.schedule.interleaved
        if many and row + 1 not in self.ends:
            with f.loop(first, f.add(last, 1 - many), many) as whole:
                self._interleaved(row_coordinates(f, f.binary("add", start, whole.index), self.kernel.sizes[:-1]))
            first = whole.index
        with f.loop(first, last) as rows:
            number = f.binary("add", start, rows.index)
            inside = None if is_line else self._is_inside(number, before=row + 1)
            with f.only_if(inside) if inside else nullcontext():
                at = row_coordinates(f, number, self.kernel.sizes[:-1])
                self._row(self._at_row(at, rows.index, patch), *patch.columns)

    def _last_tile(self, cut: Register | None) -> Register:
        """Give where tiles end, at the latest behind the last row of the first line."""
        f, kernel = self.f, self.kernel
        if cut is None or kernel.line != kernel.rows:
            return self.end
        tiles, _ = f.divide(f.add(cut, self.schedule.row_tile - 1), self.schedule.row_tile)
        return f.minimum(self.end, f.multiply(tiles, kernel.column_tiles))

    def _transpose(self, at_line: tuple[Register, ...], patch: Patch) -> None:
        """Transpose a tile's part of the inputs that run across the output."""
        bases = self._bases(at_line)
        for number, patched in self.transposed.items():
            there = self._part(number, at_line, patch)
            patched.fill(self.f, bases[number], self.strides[number][-1], there, self.schedule.block)

    def _part(self, number: int, at_line: tuple[Register, ...], patch: Patch) -> Patch:
        """Give the part of a patch that an input has; what is beyond is anything."""
        f, last = self.f, len(self.kernel.sizes) - 1
        inside = self._is_bounded(number, at_line[: last - 1])
        sides = []
        for axis, (first, stop), whole in zip((last - 1, last), (patch.rows, patch.columns), patch.whole, strict=True):
            bound = self.bounds.get((number, axis))
            if bound is not None:
                whole = f.minimum(bound, whole if isinstance(whole, Register) else f.integer(whole))
                stop = f.minimum(stop, bound)
            if inside is not None:
                stop = f.select(inside, stop, first)
            sides.append(((first, stop), whole))
        (rows, row_side), (columns, column_side) = sides
        return Patch(rows, columns, (row_side, column_side))

    def _is_bounded(self, number: int, coordinates: tuple[Register, ...]) -> Register | None:
        """Tell whether some coordinates are inside of what there is of an input; None where they always are."""
        pairs = (
            (at, self.bounds[number, axis]) for axis, at in enumerate(coordinates) if (number, axis) in self.bounds
        )
        return all_below(self.f, pairs)

    def _count(self, number: int, coordinates: tuple[Register, ...], axis: int) -> Register | None:
        """Give how many positions an input has along a dimension, those before being at coordinates; None for all."""
        f, inside, count = self.f, self._is_bounded(number, coordinates[:axis]), self.bounds.get((number, axis))
        if inside is None:
            return count
        return f.select(inside, f.integer(self.kernel.sizes[axis]) if count is None else count, f.integer(0))

    def _bases(self, coordinates: tuple[Register, ...]) -> list[Register]:
        f = self.f
        return [
            f.offset(pointer, HELD[view.dtype].stored, linear(f, coordinates, strides[:-1], view.offset))
            for pointer, view, strides in zip(self.pointers, self.views, self.strides, strict=True)
        ]

    def _at_row(self, coordinates: tuple[Register, ...], number: Register, patch: Patch) -> LoopRow:
        f = self.f
        bases = self._bases(coordinates)
        for place, patched in self.transposed.items():
            bases[place] = patched.row(f, patch, number)
        # What does not change along the row is loaded once; a row is never empty where this runs.
        last, inputs = len(coordinates), range(len(self.kernel.outputs), len(self.views))
        counts = {at: self._count(at, coordinates, last) for at in inputs if at not in self.transposed}
        bounded = {at: count for at, count in counts.items() if count is not None}
        first = ColumnSpan(f, f.integer(0), 1)
        splats = {
            at: f.splat(first.within(counts[at]).load(self.views[at], bases[at], 0), self.schedule.lanes)
            for at in inputs
            if self.views[at].strides[-1] == 0
        }
        return LoopRow(coordinates, tuple(bases), splats, bounded)

    def _row(self, row: LoopRow, first: Register, last: Register) -> None:
        f, lanes, columns = self.f, self.schedule.lanes, self.kernel.columns
        ends = len(self.kernel.sizes) - 1 in self.ends  # so that any number of columns may be left
        step = lanes * self.schedule.unroll
        if columns >= step:
            with f.loop(first, f.add(last, 1 - step), step) as whole:
                for number in range(self.schedule.unroll):
                    self._span(row, ColumnSpan(f, f.add(whole.index, number * lanes), lanes))
            first = whole.index
        if columns % step == 0 and not ends:
            return
        if self.schedule.masked:
            with f.loop(first, last, lanes) as rest:
                mask = mask_up_to(f, rest.index, last, lanes) if columns % lanes or ends else None
                self._span(row, ColumnSpan(f, rest.index, lanes, mask))
            return
        if columns >= lanes and self.schedule.unroll > 1:
            with f.loop(first, f.add(last, 1 - lanes), lanes) as single:
                self._span(row, ColumnSpan(f, single.index, lanes))
            first = single.index
        if columns % lanes or ends:
            with f.loop(first, last) as one:
                self._span(row, ColumnSpan(f, one.index, 1))

    def _interleaved(self, coordinates: tuple[Register, ...]) -> None:
        """Write as many rows as a vector has lanes, which lie side by side in the outputs: column by column."""
        f, kernel, lanes = self.f, self.kernel, self.schedule.interleaved
        bases, count = self._bases(coordinates), len(kernel.outputs)
        span = ColumnSpan(f, f.integer(0), lanes)
        counts = {number: self._rows_left(number, coordinates) for number in range(count, len(self.views))}
        columns: list[list[Register]] = [[] for _ in kernel.outputs]
        for column in range(kernel.columns):
            inputs = []
            for number, (view, base) in enumerate(zip(kernel.inputs, bases[count:], strict=True), count):
                address = f.offset(base, HELD[view.dtype].stored, times(f, self.strides[number][-1], column))
                along = view.strides[-2]
                there = (span if along else ColumnSpan(f, f.integer(0), 1)).within(counts[number])
                loaded = there.load(view, address, along)
                inputs.append(Typed(loaded if along else f.splat(loaded, lanes), view.dtype))
            values = emit_body(f, kernel.body, inputs, row_context(span, coordinates))
            for found, result in zip(columns, kernel.results, strict=True):
                found.append(values[result].register)
        for view, base, found in zip(kernel.outputs, bases[:count], columns, strict=True):
            stored = [to_memory(f, value, view.dtype) for value in found]
            for number, value in enumerate(interleaved(f, stored)):
                f.store(value, f.offset(base, HELD[view.dtype].stored, number * lanes))

    def _rows_left(self, number: int, coordinates: tuple[Register, ...]) -> Register | None:
        """Give how many rows of a line an input has from some coordinates on; None for enough."""
        count = self._count(number, coordinates, len(coordinates) - 1)
        return None if count is None else self.f.binary("sub", count, coordinates[-1])

    def _span(self, row: LoopRow, span: ColumnSpan) -> None:
        f, kernel = self.f, self.kernel
        inputs = []
        for number, view in enumerate(kernel.inputs, len(kernel.outputs)):
            if number in row.splats:
                splat = row.splats[number]
                register = splat if span.lanes > 1 else f.extract(splat, 0)
            else:
                stride = 1 if number in self.transposed else self.strides[number][-1]
                register = span.within(row.bounded.get(number)).load(view, row.bases[number], stride)
            inputs.append(Typed(register, view.dtype))
        values = emit_body(f, kernel.body, inputs, row_context(span, row.coordinates, self.tables, self.steady))
        for number, (view, result) in enumerate(zip(kernel.outputs, kernel.results, strict=True)):
            span.store(view, row.bases[number], self.strides[number][-1], values[result].register)
