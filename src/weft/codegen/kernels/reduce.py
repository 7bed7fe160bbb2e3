"""Row kernels -> one LLVM function each, with a loop over tiles, rows, and each stage's columns.

Contract of the emitted function: void name(out0.., in0.., begin, end) computes the tiles [begin, end). Buffers do not
overlap except as the kernel's in-place pairs say; sizes are constants and may be 0. A row is done within one tile, so
how the tiles are shared out over calls changes no bit of the results.
"""

from weft.codegen.kernels.reduce_row import RowPlace, RowWriter
from weft.codegen.kernels.spans import Span, mask_up_to, row_coordinates
from weft.codegen.llvm.module import FunctionWriter, Module
from weft.codegen.llvm.register import Register
from weft.plan.kernels.reduce import RowKernel


def emit_reduce(module: Module, kernel: RowKernel) -> None:
    """Write the function of a row kernel."""
    expression = kernel.expression
    # SAFETY: noalias holds because the plan gives every buffer of a kernel bytes of its own, except for the in-place
    # pairs, whose inputs the plan promises not to read after the stage that writes over them.
    shared = {pair for output, number in expression.in_place for pair in (output, len(expression.outputs) + number)}
    count = len(expression.outputs) + len(expression.inputs)
    buffers = ["ptr" if number in shared else "ptr noalias" for number in range(count)]
    f = module.function(kernel.name, [*buffers, "i64", "i64"])
    if kernel.tile_count:
        _TileWriter(f, kernel).write()


class _TileWriter:
    """Writes the loops over the tiles and rows of one kernel."""

    def __init__(self, f: FunctionWriter, kernel: RowKernel) -> None:
        self.f = f
        self.kernel = kernel
        self.schedule = kernel.schedule
        self.rows = RowWriter(f, kernel)
        self.begin, self.end = f.parameters[-2:]

    def write(self) -> None:
        """Write the loop over tiles."""
        f, kernel, schedule = self.f, self.kernel, self.schedule
        count = 1
        for size in kernel.outer_rows:
            count *= size
        with f.loop(self.begin, self.end) as tiles:
            outer, lane = f.divide(tiles.index, kernel.lane_tiles)
            first = f.multiply(outer, schedule.row_tile)
            last = f.minimum(f.add(first, schedule.row_tile), f.integer(count))
            with f.loop(first, last) as rows:
                coordinates = row_coordinates(f, rows.index, kernel.outer_rows)
                if schedule.along_rows:
                    self._neighbours(coordinates, f.multiply(lane, schedule.lane_tile))
                else:
                    self.rows.write(RowPlace(coordinates, (Span(f, f.integer(0), 1),)))

    def _neighbours(self, coordinates: tuple[Register, ...], first: Register) -> None:
        """Write the neighbouring rows of a tile: as many vectors at once as it is wide, at the edge one by one."""
        f, schedule, total = self.f, self.schedule, self.kernel.lane_rows
        last = f.minimum(f.add(first, schedule.lane_tile), f.integer(total))
        whole = f.compare("icmp eq", f.binary("sub", last, first), f.integer(schedule.lane_tile))
        if total >= schedule.lane_tile:
            with f.only_if(whole):
                starts = [f.add(first, number * schedule.lanes) for number in range(schedule.unroll)]
                self.rows.write(RowPlace(coordinates, tuple(Span(f, start, schedule.lanes) for start in starts)))
        if total % schedule.lane_tile:
            with f.only_if(f.binary("xor", whole, Register("i1", "true"))):
                step = schedule.lanes if schedule.masked else 1
                with f.loop(first, last, step) as rest:
                    mask = mask_up_to(f, rest.index, last, step) if step > 1 else None
                    self.rows.write(RowPlace(coordinates, (Span(f, rest.index, step, mask),)))
