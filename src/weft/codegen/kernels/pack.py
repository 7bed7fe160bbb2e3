"""Pack a right operand, which lies anywhere in memory, into panels that a register block reads from beginning to end.

Contract of the emitted function: void name(packed*, source*, [scale*,] begin, end), one tile per panel of each matrix.

    source, by rows:        packed, panels of 2 vectors of 2 lanes:
      a0 a1 a2 a3 a4          a0 a1 a2 a3  b0 b1 b2 b3  c0 c1 c2 c3
      b0 b1 b2 b3 b4          a4 0  b4 0   c4 0
      c0 c1 c2 c3 c4
"""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from math import prod

from weft.codegen.kernels.ends import Parameters, all_below, parameter_kinds
from weft.codegen.kernels.tiles import PanelKind, choose, first_of, matrix_pointers, panel_kinds
from weft.codegen.kernels.vectors import Vectors, row_coordinates, transpose_square
from weft.codegen.llvm.dtypes import cast
from weft.codegen.llvm.module import FunctionWriter, Module, Register, bits_of, constant, with_element
from weft.plan.kernels.pack import PackKernel

TOGETHER = 4  # numbers that are copied in one round of a loop


def emit_pack(module: Module, kernel: PackKernel) -> None:
    """Emit the function that packs a kernel's right operand."""
    # SAFETY: nothing is claimed of the pointers; the plan gives each buffer bytes of its own.
    pointers = ["ptr"] * (2 if kernel.scale_batch is None else 3)
    writer = module.function(kernel.name, parameter_kinds(kernel, pointers))
    if kernel.tile_count:
        PackEmitter(writer, kernel).emit()


class PackEmitter:
    """Emits the packing of one panel at a time."""

    def __init__(self, writer: FunctionWriter, kernel: PackKernel) -> None:
        self.writer = writer
        self.kernel = kernel
        self.vectors = Vectors(writer, kernel.element, kernel.lanes)
        self.read = self.vectors.of(kernel.read)
        self.square = ""
        self.panels: dict[tuple[int, int], str] = {}
        self.given = Parameters.of(writer, kernel)
        rows = len(kernel.batch)
        self.inner = self.given.ends.get(rows, writer.integer(kernel.inner))
        self.columns = self.given.ends.get(rows + 1)

    def emit(self) -> None:
        """Emit the loop over panels."""
        writer, kernel, vectors = self.writer, self.kernel, self.vectors
        packed, source, *scales = self.given.pointers
        source = self.read.address(source, kernel.offset)
        kinds = panel_kinds(kernel.panels, kernel.columns, kernel.lanes)
        stops = [kind.stop for kind in kinds]
        with writer.loop(self.given.begin, self.given.end) as loop:
            index, panel = writer.divide(loop.index, kernel.panels.count)
            column = writer.multiply(first_of(writer, kernel.panels, panel), kernel.lanes)
            operands = [(packed, kernel.packed_batch, vectors), (source, kernel.source.batch, self.read)]
            operands += [(scale, kernel.scale_batch or (), vectors) for scale in scales]
            needed = self._is_needed(index, column)
            with writer.only_if(needed) if needed else nullcontext():
                to, of, *by = matrix_pointers(writer, index, kernel.batch, operands)
                to = vectors.moved(to, (column, kernel.depth))
                of = self.read.moved(of, (column, kernel.source.column))
                choose(writer, panel, stops, lambda i: self._outer(to, of, kinds[i], kernel.outer))
                if by:
                    scale = vectors.moved(by[0], (column, 1))
                    choose(writer, panel, stops, lambda i: self._multiply(to, scale, kinds[i]))

    def _is_needed(self, matrix: Register, column: Register) -> Register | None:
        """Tell whether a panel is within; None where all are."""
        batch, ends = self.kernel.batch, self.given.ends
        at = row_coordinates(self.writer, matrix, batch) if any(place < len(batch) for place in ends) else ()
        pairs = [(place, ends[number]) for number, place in enumerate(at) if number in ends]
        if self.columns is not None:
            pairs.append((column, self.columns))
        return all_below(self.writer, pairs)

    def _outer(self, packed: Register, source: Register, kind: PanelKind, dims: tuple[tuple[int, int], ...]) -> None:
        """Pack a panel by its parts along the outer dimensions of the sum."""
        if not dims:
            self._panel(packed, source, kind.vectors, kind.tail)
            return
        (size, stride), *inside = dims
        steps = prod(size for size, _ in inside) * self.kernel.inner
        with self.writer.loop(0, size) as loop:
            to = self.vectors.moved(packed, (loop.index, steps * kind.vectors * self.kernel.lanes))
            self._outer(to, self.read.moved(source, (loop.index, stride)), kind, tuple(inside))

    def _panel(self, packed: Register, source: Register, vectors: int, tail: int) -> None:
        """Pack one panel of so many vectors, the last of which has `tail` columns."""
        kernel, writer, moved, seen = self.kernel, self.writer, self.vectors.moved, self.read.moved
        lanes, row, column = kernel.lanes, kernel.source.row, kernel.source.column
        if kernel.group > 1:
            self._groups(packed, source, vectors, tail)
            return
        if column == 1 or row != 1:
            with writer.loop(0, self.inner) as loop:
                self._row(moved(packed, (loop.index, vectors * lanes)), seen(source, (loop.index, row)), vectors, tail)
            return
        panel = self._turned_panel(vectors, tail)
        writer.emit_void(f"call void @{panel}({packed}, {source}, {self.inner}, i64 {column})")

    def _groups(self, packed: Register, source: Register, vectors: int, tail: int) -> None:
        """Pack one panel in groups: numbers along the sum, side by side, as one word of each column."""
        kernel, writer = self.kernel, self.writer
        whole, rest = divmod(kernel.inner, kernel.group)
        width = vectors * kernel.lanes * kernel.group
        with writer.loop(0, whole) as loop:
            to = self.vectors.moved(packed, (loop.index, width))
            of = self.read.moved(source, (loop.index, kernel.group * kernel.source.row))
            self._words(to, of, (vectors, tail), kernel.group)
        if rest:
            to = self.vectors.address(packed, whole * width)
            of = self.read.address(source, whole * kernel.group * kernel.source.row)
            self._words(to, of, (vectors, tail), rest)

    def _words(self, packed: Register, source: Register, size: tuple[int, int], numbers: int) -> None:
        """Pack one row of a panel of so many vectors and columns in its last: so many numbers of each group exist."""
        kernel, writer, (vectors, tail) = self.kernel, self.writer, size
        bits = bits_of(self.vectors.element)
        kind = with_element(self.vectors.kind, f"i{bits * kernel.group}")
        for place in range(vectors):
            count = tail if place == vectors - 1 else kernel.lanes
            word = constant(kind, 0)
            for number in range(numbers):
                at = number * kernel.source.row + place * kernel.lanes * kernel.source.column
                loaded = self.read.load_apart(self.read.address(source, at), kernel.source.column, count)
                wide = writer.convert("zext", self._converted(loaded), f"i{bits * kernel.group}")
                word = writer.binary("or", word, writer.binary("shl", wide, constant(kind, number * bits)))
            writer.store(word, self.vectors.address(packed, place * kernel.lanes * kernel.group))

    def _row(self, packed: Register, source: Register, vectors: int, tail: int) -> None:
        """Copy one row of a panel, its columns side by side or apart."""
        lanes, stride = self.kernel.lanes, self.kernel.source.column
        if stride > 1:
            self._row_apart(packed, source, (vectors - 1) * lanes + tail, vectors * lanes)
            return
        for vector in range(vectors):
            count = tail if vector == vectors - 1 else lanes
            value = self.read.load_apart(self.read.address(source, vector * lanes * stride), stride, count)
            self.vectors.store(self._converted(value), self.vectors.address(packed, vector * lanes))

    def _row_apart(self, packed: Register, source: Register, columns: int, width: int) -> None:
        """Copy numbers that lie apart one by one, and zeros up to the width.

        Gathered into vectors they are no sooner there, as each is a load of its own, and LLVM thinks about such
        vectors twenty times as long as about the loop.
        """
        writer, element = self.writer, self.vectors.element
        whole = columns // TOGETHER * TOGETHER
        with writer.loop(0, whole // TOGETHER) as loop:
            of = self.read.moved(source, (loop.index, TOGETHER * self.kernel.source.column))
            to = self.vectors.moved(packed, (loop.index, TOGETHER))
            for number in range(TOGETHER):
                of_number = self.read.address(of, number * self.kernel.source.column)
                writer.store(self._number(of_number), self.vectors.address(to, number))
        for column in range(whole, width):
            value = constant(element, 0.0)
            if column < columns:
                value = self._number(self.read.address(source, column * self.kernel.source.column))
            writer.store(value, self.vectors.address(packed, column))

    def _multiply(self, packed: Register, scale: Register, kind: PanelKind) -> None:
        """Multiply the columns of a packed panel."""
        writer, vectors, lanes = self.writer, self.vectors, self.kernel.lanes
        counts = [kind.tail if vector == kind.vectors - 1 else lanes for vector in range(kind.vectors)]
        scales = [vectors.load(vectors.address(scale, vector * lanes), count) for vector, count in enumerate(counts)]
        with writer.loop(0, self.kernel.depth) as row:
            at = vectors.moved(packed, (row.index, kind.vectors * lanes))
            for vector, by in enumerate(scales):
                place = vectors.address(at, vector * lanes)
                vectors.store(writer.binary("fmul", vectors.load(place), by), place)

    def _turned_panel(self, vectors: int, tail: int) -> str:
        """Name the function that packs one panel of so many vectors, whose columns lie side by side."""
        panel = (vectors, tail)
        if panel not in self.panels:
            self.panels[panel] = TurnedPanel(self.writer.module, self.kernel, panel).emit(self._square())
        return self.panels[panel]

    def _square(self) -> str:
        """Name the function that transposes one whole square into a panel of a width, from columns so far apart."""
        if not self.square:
            self.square = f"{self.kernel.name}.square"
            writer = self.writer.module.inner_function(self.square, ["ptr", "ptr", "i64", "i64"])
            read = Vectors(writer, self.kernel.read, self.kernel.lanes)
            to, of, width, apart = writer.parameters
            if not self.kernel.casts:
                transpose_square(read, (of, apart), (to, width))
                return self.square
            lanes = self.kernel.lanes
            memory = writer.scratch(read.element, lanes * lanes)
            transpose_square(read, (of, apart), (memory, writer.integer(lanes)))
            with writer.loop(0, lanes) as row:
                value = converted(writer, read.load(read.moved(memory, (row.index, lanes))), self.kernel.casts)
                place = writer.offset(to, self.vectors.element, writer.binary("mul", row.index, width))
                writer.store(value, place)
        return self.square

    def _number(self, address: Register) -> Register:
        """Load one number, as it is packed."""
        return self._converted(self.writer.load(self.read.element, address))

    def _converted(self, numbers: Register) -> Register:
        return converted(self.writer, numbers, self.kernel.casts)


class TurnedPanel:
    """Emits the function of one panel whose columns lie side by side: void panel(packed*, source*, rows, apart).

    Of all packings, what differs is an argument: then a module has the function once, and compiles it once.
    """

    def __init__(self, module: Module, kernel: PackKernel, panel: tuple[int, int]) -> None:
        self.kernel = kernel
        self.vectors_in_panel, self.tail = panel
        self.name = f"{kernel.name}.panel{self.vectors_in_panel}.{self.tail}"
        self.writer = module.inner_function(self.name, ["ptr", "ptr", "i64", "i64"])
        self.vectors = Vectors(self.writer, kernel.element, kernel.lanes)
        self.read = self.vectors.of(kernel.read)
        self.packed, self.source, self.rows, self.apart = self.writer.parameters
        self.width = self.vectors_in_panel * kernel.lanes

    def emit(self, square: str) -> str:
        """Emit whole squares, then what is left over at the edges; give the function's name."""
        writer, lanes, moved = self.writer, self.kernel.lanes, self.vectors.moved
        whole, _ = writer.divide(self.rows, lanes)
        full = self.vectors_in_panel - (self.tail < lanes)
        with writer.loop(0, full) as vector, writer.loop(0, whole) as each:
            to = moved(self.packed, (vector.index, lanes), (each.index, self.width * lanes))
            of = self._seen(writer.multiply(each.index, lanes), writer.multiply(vector.index, lanes))
            writer.emit_void(f"call void @{square}({to}, {of}, i64 {self.width}, {self.apart})")
        done = full * lanes
        self._numbers((writer.multiply(whole, lanes), self.rows), (0, done))
        if done < self.width:
            self._numbers((writer.integer(0), self.rows), (done, done + self.tail))
            self._zeros(done + self.tail)
        return self.name

    def _seen(self, row: Register, column: Register) -> Register:
        """Give the address of a number in the source."""
        return self.read.moved(self.source, (self.writer.binary("mul", column, self.apart), 1), (row, 1))

    def _numbers(self, rows: tuple[Register, Register], columns: tuple[int, int]) -> None:
        """Copy some rows of some columns one by one."""
        with self.writer.loop(*rows) as row, self.writer.loop(*columns) as column:
            to = self.vectors.moved(self.packed, (row.index, self.width), (column.index, 1))
            number = self.writer.load(self.read.element, self._seen(row.index, column.index))
            self.writer.store(converted(self.writer, number, self.kernel.casts), to)

    def _zeros(self, first: int) -> None:
        """Fill the columns up to the width of the panel."""
        with self.writer.loop(0, self.rows) as row, self.writer.loop(first, self.width) as column:
            to = self.vectors.moved(self.packed, (row.index, self.width), (column.index, 1))
            self.writer.store(constant(self.vectors.element, 0.0), to)


def converted(writer: FunctionWriter, numbers: Register, casts: Sequence[str]) -> Register:
    """Convert numbers of the first of some dtypes to the others in turn."""
    for before, after in pairwise(casts):
        numbers = cast(writer, numbers, before, after)
    return numbers
