"""Emit scatters: store or join values at places that are computed, with a loop over rows and vectors.

Contract of the emitted function: void name(out, in0.., table0.., begin, end, ends...) does the tiles [begin, end). The
output overlaps nothing else; sizes are constants and may be 0. Rows are done in order within a tile, and tiles share no
element: several rows may go to one place.
"""

from weft.codegen.kernels.elementwise import Typed, emit_body, emit_op
from weft.codegen.kernels.ends import Parameters, all_below, parameter_kinds
from weft.codegen.kernels.vectors import ColumnSpan, load_inputs, mask_up_to, row_context, row_coordinates
from weft.codegen.llvm.dtypes import HELD, cast
from weft.codegen.llvm.module import FunctionWriter, Module, Register
from weft.plan.kernels.expression import SHORT_FLOATS, View
from weft.plan.kernels.loop import steady_values
from weft.plan.kernels.scatter import ScatterKernel


def emit_scatter(module: Module, kernel: ScatterKernel) -> None:
    """Write the function of a scatter kernel."""
    # SAFETY: noalias holds because the plan gives every buffer of a kernel bytes of its own.
    buffers = 1 + len(kernel.expression.inputs) + len(kernel.expression.tables)
    f = module.function(kernel.name, parameter_kinds(kernel, ["ptr noalias"] * buffers))
    if kernel.tile_count:
        _ScatterWriter(f, kernel).write()


class _ScatterWriter:
    """Writes the loops of one kernel."""

    def __init__(self, f: FunctionWriter, kernel: ScatterKernel) -> None:
        self.f = f
        self.kernel = kernel
        self.expression = kernel.expression
        given = Parameters.of(f, kernel)
        self.begin, self.end, self.ends = given.begin, given.end, given.ends
        self.output, *pointers = given.pointers
        count = len(self.expression.inputs)
        self.pointers, self.tables = pointers[:count], pointers[count:]
        self.steady = steady_values(self.expression.inputs, self.expression.body)

    def write(self) -> None:
        """Write the loops over rows and vectors: tiles that one call does are side by side, so they are one."""
        f, kernel = self.f, self.kernel
        first = f.multiply(self.begin, kernel.column_tile)
        last = f.minimum(f.multiply(self.end, kernel.column_tile), f.integer(kernel.columns))
        with f.loop(0, kernel.rows) as rows:
            at = row_coordinates(f, rows.index, self.expression.sizes[:-1])
            inside = all_below(f, ((x, self.ends[place]) for place, x in enumerate(at) if place in self.ends))
            if inside is None:
                self._row(at, first, last)
            else:
                with f.only_if(inside):
                    self._row(at, first, last)

    def _row(self, coordinates: tuple[Register, ...], first: Register, last: Register) -> None:
        f, lanes, masked = self.f, self.kernel.lanes, self.kernel.masked
        end = last if masked or lanes == 1 else f.add(last, 1 - lanes)
        with f.loop(first, end, lanes) as vectors:
            mask = mask_up_to(f, vectors.index, last, lanes) if masked and self.kernel.columns % lanes else None
            self._span(coordinates, ColumnSpan(f, vectors.index, lanes, mask))
        if not masked and self.kernel.columns % lanes:
            with f.loop(vectors.index, last) as rest:
                self._span(coordinates, ColumnSpan(f, rest.index, 1))

    def _span(self, coordinates: tuple[Register, ...], span: ColumnSpan) -> None:
        f, expression = self.f, self.expression
        inputs = load_inputs(span, self.pointers, expression.inputs, coordinates)
        values = emit_body(f, expression.body, inputs, row_context(span, coordinates, self.tables, self.steady))
        output = View(expression.dtype, (expression.column_stride,))
        place = f.extract(values[expression.place].register, 0)
        # SAFETY: the place is inside: a call whose indices are out of range is marked by its checks and not run.
        base = f.offset(self.output, HELD[output.dtype].stored, place)
        value = values[expression.value]
        if expression.join != "store":
            before = span.load(output, base, expression.column_stride)
            value = Typed(self._joined(before, value.register), output.dtype)
        span.store(output, base, expression.column_stride, value.register)

    def _joined(self, before: Register, value: Register) -> Register:
        """Join an element with what is there, by way of f32 for short floats."""
        dtype = self.expression.dtype
        wide = "f32" if dtype in SHORT_FLOATS else dtype
        operands = [Typed(cast(self.f, x, dtype, wide), wide) for x in (before, value)]
        return cast(self.f, emit_op(self.f, self.expression.join, operands, wide), wide, dtype)
