"""Emit checks of indices: mark a word of the frame where one is out of range.

Contract of the emitted function: void name(mark, in0.., begin, end) makes the word at `mark` 1 if an index of the tiles
[begin, end) names no place, and else leaves it as it is.
"""

from weft.codegen.kernels.elementwise import emit_body
from weft.codegen.kernels.vectors import ColumnSpan, load_inputs, mask_up_to, row_context, row_coordinates
from weft.codegen.llvm.module import FunctionWriter, Module, Register, constant, vector
from weft.plan.kernels.check import CheckKernel


def emit_check(module: Module, kernel: CheckKernel) -> None:
    """Write the function of a check kernel."""
    # SAFETY: noalias holds because the mark is a word of the frame that nothing else has.
    f = module.function(kernel.name, [*["ptr noalias"] * (1 + len(kernel.inputs)), "i64", "i64"])
    if kernel.tile_count:
        _CheckWriter(f, kernel).write()


class _CheckWriter:
    """Writes the loops of one kernel. All tiles are one, so any range of them is the whole."""

    def __init__(self, f: FunctionWriter, kernel: CheckKernel) -> None:
        self.f = f
        self.kernel = kernel
        self.mark, *self.pointers, _, _ = f.parameters
        # What was found so far, per lane; LLVM keeps it in a register.
        self.found = f.scratch("i64", kernel.lanes)

    def write(self) -> None:
        """Write the loops over rows and vectors, then mark what they found."""
        f, kernel = self.f, self.kernel
        every = vector("i64", kernel.lanes)
        f.store(constant(every, 0), self.found)
        with f.loop(0, kernel.rows) as rows:
            self._row(row_coordinates(f, rows.index, kernel.sizes[:-1]))
        found = f.any_lane(f.compare("icmp ne", f.load(every, self.found), constant(every, 0)))
        with f.only_if(found):
            f.store(f.integer(1), self.mark)

    def _row(self, coordinates: tuple[Register, ...]) -> None:
        f, kernel = self.f, self.kernel
        lanes, last = kernel.lanes, f.integer(kernel.columns)
        end = kernel.columns if kernel.masked else kernel.columns - lanes + 1
        with f.loop(0, end, lanes) as vectors:
            partial = kernel.masked and kernel.columns % lanes
            mask = mask_up_to(f, vectors.index, last, lanes) if partial else None
            self._span(coordinates, ColumnSpan(f, vectors.index, lanes, mask))
        if not kernel.masked and kernel.columns % lanes:
            with f.loop(kernel.columns // lanes * lanes, kernel.columns) as rest:
                self._span(coordinates, ColumnSpan(f, rest.index, 1))

    def _span(self, coordinates: tuple[Register, ...], span: ColumnSpan) -> None:
        f, kernel = self.f, self.kernel
        inputs = load_inputs(span, self.pointers, kernel.inputs, coordinates)
        index = emit_body(f, kernel.body, inputs, row_context(span, coordinates))[kernel.index].register
        # As a number without a sign, a negative one is larger than any extent.
        outside = f.compare("icmp uge", index, constant(index.kind, kernel.extent))
        if span.mask is not None:
            outside = f.binary("and", outside, span.mask)
        kind = vector("i64", span.lanes)
        f.store(f.binary("or", f.load(kind, self.found), f.convert("zext", outside, "i64")), self.found)
