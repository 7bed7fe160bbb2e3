"""Make kernels of matrix products, each of which waits for the elementwise code that follows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from weft.ir.graph import Value
from weft.plan.form.plan import Location
from weft.plan.fuse.fusion import BYTES, Fusion, Source, dtype_of, tensor_type
from weft.plan.fuse.prepare import fold, prepare
from weft.plan.kernels.expression import SHORT_FLOATS, explicit_rounding
from weft.plan.kernels.gemm import (
    FEW_ROWS,
    MOST_CONVERTED_ROWS,
    MOST_DOT_ROWS,
    Epilogue,
    EpilogueOperand,
    GemmKernel,
    GemmSchedule,
    Matrix,
    PackedMatrix,
    choose_dots,
    choose_groups,
    choose_schedule,
    copies_left,
    group_of,
    packed_size,
    packs_right,
    panels,
    reads_across,
)
from weft.plan.kernels.pack import PackKernel, in_words
from weft.plan.regions.lazy import (
    BodyWriter,
    Computed,
    Counted,
    Lazy,
    Leaf,
    LeafSource,
    Node,
    Window,
    plain,
    read_from_memory,
    same_layout,
    walk,
)

MOST_CACHED_BYTES = 24 * 1024 * 1024  # of a program's weights: more do not stay in caches, and are not kept wider
WHOLE_FLOATS = ("f32", "f64")  # the types of sums, of which others have theirs
Emit = Callable[[Leaf, Epilogue, tuple[Leaf, ...]], None]
Steps = Callable[[Window], EpilogueOperand | None]


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """What a product of matrices multiplies: the left operand, the right one as the kernel reads it, the schedule.

    The batch dimensions of both are `batch`; the kernel's sums are `inner` long. `panel` is the right operand's type.
    """

    batch: tuple[int, ...]
    left: Leaf
    right: Matrix | PackedMatrix
    right_place: Location
    schedule: GemmSchedule
    panel: str

    @property
    def inner(self) -> int:
        """The numbers of a row of the left operand."""
        return self.left.window.shape[-1]


@dataclass(slots=True, eq=False)
class PendingKernel:
    """A product or convolution that is not emitted yet: elementwise code behind it may become its epilogue.

    `home` is the layout it would have in memory of its own; leaves that read it are windows of that. `steps` gives an
    epilogue operand's strides from a window of the product's shape, or None where the kernel cannot read it so.
    Without `takes_code` the kernel has no room for code.
    `scaled` gives what emits the product with its columns multiplied by what a leaf reads, where its weights are packed
    so. `writes` tells whether the kernel can write a window, where that is not what it can read. Besides its own dtype
    its code may read and store `shorter` floats. `met` is the position of the product in its region.
    """

    fusion: Fusion
    home: Window
    dtype: str
    emit: Emit
    steps: Steps
    columns: int
    takes_code: bool = True
    scaled: Callable[[Leaf], Emit] | None = None
    writes: Callable[[Window], bool] | None = None
    shorter: tuple[str, ...] = ()
    memory: int = -1
    met: int = field(init=False)

    def __post_init__(self) -> None:
        self.met = self.fusion.position

    def computes(self, dtype: str) -> bool:
        """Whether the kernel's code may have numbers of a dtype, and store them."""
        return dtype == self.dtype or dtype in self.shorter

    def lazy(self) -> Lazy:
        """The product as an expression."""
        return Lazy(self.home.shape, Leaf(LeafSource(pending=self), self.home, self.dtype))

    def settle(self) -> None:
        """Emit the product without anything behind it."""
        if self.memory < 0:
            leaf = self.fusion.arena(self.home, self.dtype)
            self.memory = leaf.source.buffer
            self.emit(leaf, Epilogue(), ())

    def as_memory(self, leaf: Leaf) -> Leaf:
        """The leaf, read from memory."""
        self.settle()
        return Leaf(LeafSource(self.memory), leaf.window, leaf.dtype)

    def take(self, lazy: Lazy, out: Leaf) -> bool:
        """Compute an expression of the product while it is in registers, if that can be."""
        if self.memory >= 0 or not self.computes(out.dtype) or plain(lazy.shape).size != self.home.size:
            return False
        found = self._in_own_shape(self._others_in_memory(lazy), out)
        if found is None or not self._can_write(found[1].window):
            return False
        own, out = found
        own, scale, bias = self._folded(own)
        epilogue = self._epilogue(own, bias) if self.takes_code or isinstance(own.node, Leaf) else None
        if epilogue is None:
            return False
        emit = self.emit if scale is None or self.scaled is None else self.scaled(scale)
        emit(out, *epilogue)
        return True

    def _folded(self, lazy: Lazy) -> tuple[Lazy, Leaf | None, Leaf | None]:
        """An expression without what weights do to each column, and the scale and bias that stand for it."""
        own = [leaf for leaf in lazy.leaves() if leaf.source.pending is self]
        found = fold(self.fusion, lazy, own[0], self.steps) if self.scaled and len(own) == 1 else None
        if found is None:
            return lazy, None, None
        bias = None if found.shift is None else prepare(self.fusion, found.shift)
        return _with(lazy, found.last, own[0]), prepare(self.fusion, found.scale), bias

    def _can_write(self, window: Window) -> bool:
        """Whether the kernel can store so: columns side by side."""
        if self.writes is not None:
            return self.writes(window)
        steps = self.steps(window)
        return steps is not None and (steps.column == 1 or self.columns == 1)

    def _others_in_memory(self, lazy: Lazy) -> Lazy:
        others = [leaf for leaf in lazy.leaves() if leaf.source.pending not in (None, self)]
        return self.fusion.assembly.without_tables(read_from_memory(lazy, others))

    def _in_own_shape(self, lazy: Lazy, out: Leaf) -> tuple[Lazy, Leaf] | None:
        """An expression and where it goes, with the product's dimensions, however both see the product's memory."""
        own = [leaf.window for leaf in lazy.leaves() if leaf.source.pending is self]
        for change in (self._reshaped, partial(self._permuted, own[0].strides)):
            changed = [change(window) for window in own]
            if all(window is not None and same_layout(window, self.home) for window in changed):
                seen, target = lazy.viewed(change, self.home.shape), change(out.window)
                return None if seen is None or target is None else (seen, replace(out, window=target))
        return None

    def _reshaped(self, window: Window) -> Window | None:
        return window.reshaped(self.home.shape)

    def _permuted(self, strides: tuple[int, ...], window: Window) -> Window | None:
        """A window by way of the order of memory, where the dimensions of both are cuts of one row of numbers."""
        inner = sorted(range(len(self.home.shape)), key=lambda i: -self.home.strides[i])
        found = window.permuted(sorted(range(len(strides)), key=lambda i: -strides[i]))
        cut = found.reshaped([self.home.shape[i] for i in inner])
        return None if cut is None else cut.permuted([inner.index(i) for i in range(len(inner))])

    def _epilogue(self, lazy: Lazy, bias: Leaf | None) -> tuple[Epilogue, tuple[Leaf, ...]] | None:
        for node in walk(lazy.node):
            if isinstance(node, Counted) or not (
                isinstance(node, Leaf) or node.dtype == "bool" or self.computes(node.dtype)
            ):
                return None
        if bias is None:
            lazy, bias = self._bias(lazy)
        others = [leaf for leaf in lazy.leaves() if leaf.source.pending is None]
        steps = [self.steps(leaf.window) for leaf in others]
        if any(step is None for step in steps) or not all(self.computes(leaf.dtype) for leaf in others):
            return None
        writer = BodyWriter(lambda leaf: 0 if leaf.source.pending is self else 1 + others.index(leaf), 1 + len(others))
        result = writer.write(lazy.node)
        if writer.body and result != len(others) + len(writer.body):
            return None
        if not writer.body and not isinstance(lazy.node, Leaf):
            return None
        dtypes = [self.dtype, *(leaf.dtype for leaf in others)]
        body, _ = explicit_rounding(dtypes, writer.body, (result,))
        operands = (
            replace(step, dtype="" if leaf.dtype == self.dtype else leaf.dtype)
            for step, leaf in zip(steps, others, strict=True)
            if step is not None
        )
        epilogue = Epilogue(self.steps(bias.window) if bias else None, tuple(operands), body)
        return epilogue, (*((bias,) if bias else ()), *others)

    def _bias(self, lazy: Lazy) -> tuple[Lazy, Leaf | None]:
        """Find what is added to the bare product once and for all rows: the kernel starts its sums there."""
        for node in walk(lazy.node):
            if (
                isinstance(node, Computed)
                and node.op == "add"
                and all(isinstance(item, Leaf) for item in node.operands)
            ):
                mine = [item for item in node.operands if isinstance(item, Leaf) and item.source.pending is self]
                rest = [item for item in node.operands if isinstance(item, Leaf) and item.source.pending is None]
                if len(mine) == 1 and len(rest) == 1 and self._is_bias(rest[0]) and self._once(lazy, mine[0]):
                    return _with(lazy, node, mine[0]), rest[0]
        return lazy, None

    def _is_bias(self, leaf: Leaf) -> bool:
        steps = self.steps(leaf.window)
        return steps is not None and steps.row == 0 and not any(steps.batch) and leaf.dtype == self.dtype

    def _once(self, lazy: Lazy, leaf: Leaf) -> bool:
        readers = [node for node in walk(lazy.node) if isinstance(node, Computed) and leaf in node.operands]
        return len(readers) == 1 and [item for item in lazy.leaves() if item.source.pending is self] == [leaf]


def multiply(fusion: Fusion, value: Value) -> Lazy:
    """A batch of matrix products."""
    shape, dtype = tensor_type(value).shape, dtype_of(value)
    left, source, group = _operands(fusion, value, dtype)
    right = source.leaf
    *batch, rows, columns = shape
    inner = left.window.shape[-1]
    if batch and not any(right.window.strides[:-2]):
        stacked = (plain(shape[:-1]).size, inner)
        flat = left.window.reshaped(stacked)
        if flat is None and columns > 1:  # a copy of the left costs less than the right once for each of the batch
            left = _row_by_row(fusion, left)
            flat = left.window.reshaped(stacked)
        if flat is not None:
            left, right = replace(left, window=flat), replace(right, window=_last_two(right.window))
            batch, rows = [], flat.shape[0]
    matrices, source = tuple(batch), replace(source, leaf=right)
    once = fusion.uses[value.operands[1]] == 1
    sizes = rows, columns, inner
    if group > 1:
        factors = _grouped(fusion, (matrices, left, source), sizes, (dtype, group))
    else:
        factors = factors_of(fusion, (matrices, left, source), sizes, once=once)

    def emit(out: Leaf, epilogue: Epilogue, inputs: tuple[Leaf, ...]) -> None:
        window = out.window.reshaped((*matrices, rows, columns))
        assert window is not None
        kernel = GemmKernel(
            fusion.assembly.name("product"), dtype, matrices, rows, columns, inner,
            matrix_of(factors.left.window), factors.right, matrix_of(window), epilogue, factors.schedule,
            left_element=_shorter(factors.left.dtype, dtype), right_element=_shorter(factors.panel, dtype),
        )  # fmt: skip
        places = [fusion.assembly.location(leaf) for leaf in inputs]
        reads = (fusion.assembly.location(factors.left), factors.right_place, *places)
        fusion.assembly.call(kernel, (fusion.assembly.location(out),), reads)

    def steps(window: Window) -> EpilogueOperand | None:
        found = window.reshaped((*matrices, rows, columns))
        if found is None or (found.strides[-1] not in (0, 1) and columns > 1):
            return None
        return EpilogueOperand(found.strides[:-2], found.strides[-2], found.strides[-1])

    shorter = ("f32", *SHORT_FLOATS) if dtype == "i32" else SHORT_FLOATS if source.is_short or group > 1 else ()
    return PendingKernel(fusion, plain(shape), dtype, emit, steps, columns, shorter=shorter).lazy()


def _operands(fusion: Fusion, value: Value, dtype: str) -> tuple[Leaf, Source, int]:
    """Both operands in memory, and how many of their numbers a step multiplies: such ones are not converted before."""
    given = [fusion.operand(value, index) for index in (0, 1)]
    bare = [_uncast(lazy.node) for lazy in given]
    group = group_of(bare[0].dtype, bare[1].dtype, dtype, fusion.assembly.target)
    if group > 1:
        given = [Lazy(lazy.shape, node) for lazy, node in zip(given, bare, strict=True)]
    return fusion.assembly.in_memory(given[0]), fusion.source(given[1]), group


def factors_of(
    fusion: Fusion, matrices: tuple[tuple[int, ...], Leaf, Source], sizes: tuple[int, int, int], *, once: bool
) -> Factors:
    """Choose how products of a batch read both operands; `once`: nothing else reads the right one."""
    batch, left, source = matrices
    right, target = source.leaf, fusion.assembly.target
    if copies_left(sizes, matrix_of(left.window)):
        left = _row_by_row(fusion, left)
    if left.dtype == "i32":  # of integers that are in memory as such; the order of a sum does not matter
        schedule = choose_schedule(left.dtype, sizes, target, in_parts=False)
        return Factors(batch, left, *right_operand(fusion, source, sizes, schedule), schedule, left.dtype)
    most_rows = MOST_DOT_ROWS if once else 0
    if _is_packed_weight(fusion, right):
        most_rows = FEW_ROWS if _is_read_in_place(fusion, source) else 0
    if reads_across(sizes, matrix_of(left.window), matrix_of(right.window), most_rows):
        schedule = choose_dots(left.dtype, sizes, target, in_parts=not source.is_short)
        right = fusion.assembly.in_memory(source.lazy)
        return Factors(batch, left, matrix_of(right.window), fusion.assembly.location(right), schedule, left.dtype)
    schedule = choose_schedule(left.dtype, sizes, target, in_parts=not source.is_short)
    if _keeps_panel_short(fusion, source, sizes[0]):
        short = replace(source, casts=source.casts[:-1])
        return Factors(batch, left, *right_operand(fusion, short, sizes, schedule), schedule, source.casts[-2])
    return Factors(batch, left, *right_operand(fusion, source, sizes, schedule), schedule, left.dtype)


def _is_read_in_place(fusion: Fusion, source: Source) -> bool:
    """Whether a weight is read where it lies, column by column: panels would be kept beside it.

    Only where weights come from memory at each call, so that panels are read no sooner.
    """
    weight, far = source.leaf, fusion.weight_bytes > MOST_CACHED_BYTES
    if not far or not _is_packed_weight(fusion, weight) or weight.window.size < LEAST_LEFT_IN_PLACE:
        return False
    return weight.window.strides[0] == 1 and weight.dtype in WHOLE_FLOATS and len(source.casts) <= 1


def _keeps_panel_short(fusion: Fusion, source: Source, rows: int) -> bool:
    """Whether panels of a weight are best of its own short type: they are read sooner, and take less memory.

    Numbers are then converted each time that they are read. With many rows that takes a tenth of the time.
    """
    of_bytes = source.casts[1:] == ("f32",) and source.casts[0] in BYTES
    of_floats = source.is_short and source.casts[-2] in SHORT_FLOATS
    if not (of_bytes or of_floats) or not _is_packed_weight(fusion, source.leaf):
        return False
    return rows <= MOST_CONVERTED_ROWS or fusion.weight_bytes > MOST_CACHED_BYTES


def _grouped(
    fusion: Fusion,
    matrices: tuple[tuple[int, ...], Leaf, Source],
    sizes: tuple[int, int, int],
    kind: tuple[str, int],
) -> Factors:
    """Say how products whose steps multiply several numbers read both operands: side by side."""
    batch, left, source = matrices
    element, group = kind
    if left.window.strides[-1] != 1 and left.window.shape[-1] > 1:
        left = _row_by_row(fusion, left)
    left = replace(left, window=replace(left.window, strides=(*left.window.strides[:-1], 1)))
    schedule = choose_groups(element, sizes, group, fusion.assembly.target)
    return Factors(batch, left, *right_operand(fusion, source, sizes, schedule), schedule, source.lazy.dtype)


def _shorter(dtype: str, element: str) -> str:
    """A type, unless it is that of the sums."""
    return "" if dtype == element else dtype


def _uncast(node: Node) -> Node:
    return node.operands[0] if isinstance(node, Computed) and node.op == "cast" else node


def _row_by_row(fusion: Fusion, left: Leaf) -> Leaf:
    """The same matrices with rows whose numbers lie side by side; products of one operand share the copy."""
    key = left.source.buffer, left.window
    if key not in fusion.rows:
        out = fusion.plain_arena(left.window.shape, left.dtype)
        fusion.assembly.store_by_loop(Lazy(left.window.shape, left), out)
        fusion.rows[key] = out
    return fusion.rows[key]


def right_operand(
    fusion: Fusion, source: Source, sizes: tuple[int, int, int], schedule: GemmSchedule
) -> tuple[Matrix | PackedMatrix, Location]:
    """The right operand as the kernel reads it: packed once if it is a weight, per call if its columns lie apart.

    Panels of weights that no cache holds are not kept where so many rows read them that packing them takes no time.
    """
    rows, columns, inner = sizes
    right, dtype = source.leaf, source.lazy.dtype
    is_kept = rows <= FEW_ROWS or (fusion.varies and _has_few_rows(rows, columns))
    weight = _is_packed_weight(fusion, right) and (is_kept or not _is_read_in_place(fusion, source))
    if not weight and schedule.group == 1 and not packs_right(sizes, matrix_of(right.window), dtype):
        right = fusion.assembly.in_memory(source.lazy)
        return matrix_of(right.window), fusion.assembly.location(right)
    batch = right.window.shape[:-2]
    size = packed_size(columns, inner, schedule)
    steps = plain((*batch, size)).strides[:-1]
    elements = plain((*batch, size)).size
    kernel = PackKernel(
        fusion.assembly.name("pack"), dtype, batch, inner, columns, matrix_of(right.window), steps,
        schedule.lanes, panels(columns, schedule), casts=source.casts if len(source.casts) > 1 else (),
        group=schedule.group,
    )  # fmt: skip
    kernel = in_words(kernel, right.window.offset)
    place = fusion.assembly.location(right)
    if weight:
        return PackedMatrix(steps), fusion.assembly.pack(kernel, (place,), elements, dtype)
    # Products with one right operand, as those of the steps of a recurrent layer, share its panels.
    key = source.casts, right.source.buffer, right.window, kernel.panels, kernel.lanes
    if key not in fusion.panels:
        fusion.panels[key] = Location(fusion.assembly.buffer("arena", elements, dtype))
        fusion.assembly.call(kernel, (fusion.panels[key],), (place,))
    return PackedMatrix(steps), fusion.panels[key]


def _is_packed_weight(fusion: Fusion, right: Leaf) -> bool:
    return fusion.is_weight(right) and len(right.window.shape) == 2


def matrix_of(window: Window) -> Matrix:
    """The matrices that a window shows."""
    return Matrix(window.strides[:-2], window.strides[-2], window.strides[-1])


def _last_two(window: Window) -> Window:
    return Window(window.shape[-2:], window.strides[-2:], window.offset)


def _with(lazy: Lazy, node: Node, replacement: Leaf) -> Lazy:
    changed: dict[int, Node] = {}
    for item in walk(lazy.node):
        if item is node:
            changed[id(item)] = replacement
        elif isinstance(item, Computed):
            changed[id(item)] = Computed(item.op, tuple(changed[id(operand)] for operand in item.operands), item.dtype)
        else:
            changed[id(item)] = item
    return Lazy(lazy.shape, changed[id(lazy.node)])


# A product of few rows with a transposed matrix is computed as the product of the transposes, read in place. A linear
# layer multiplies rows with its transposed weights, the columns of which lie far apart: they would be packed at each
# call, or kept packed beside the weights. For few rows it costs less to pack these, and to leave the result with its
# rows side by side. Weights that no cache holds are read no sooner as panels: there, rows may be as many as columns.
# Where rows vary the product is as it is: of the transposes, columns would vary, which are computed in whole panels. So
# would be all that they are made of.
LEAST_MANY_ROWS = 512  # of which panels take much memory, and beside which it takes no time to pack the matrix
LEAST_LEFT_IN_PLACE = 32 * 1024  # numbers of a matrix that is worth it
SAVING = 2  # so many times more numbers would be moved to pack the matrix


def multiply_either_way(fusion: Fusion, value: Value) -> Lazy:
    """A product of matrices, or of their transposes where that spares more than it costs."""
    right = fusion.operand(value, 1).node
    if isinstance(right, Leaf) and _is_transposed(fusion, value, right):
        return _multiply_transposed(fusion, value, right)
    return multiply(fusion, value)


def _is_transposed(fusion: Fusion, value: Value, right: Leaf) -> bool:
    """Whether a right operand lies column by column, is read once, and is large beside the rows and the result."""
    rows, columns = tensor_type(value).shape[-2:]
    if right.source.pending is not None or len(tensor_type(value).shape) != 2 or len(right.window.shape) != 2:
        return False
    inner = right.window.shape[0]
    is_across = right.window.strides[0] == 1 and right.window.strides[1] >= inner
    if dtype_of(value) == "i32" or not is_across or rows <= FEW_ROWS or inner * columns < LEAST_LEFT_IN_PLACE:
        return False
    if fusion.is_weight(right):
        return not fusion.varies and _has_few_rows(rows, columns) and _is_read_in_place(fusion, Source(right))
    moved = rows * inner + 2 * rows * columns  # the result is transposed back, or read across
    return fusion.uses[value.operands[1]] == 1 and inner * columns >= SAVING * moved


def _has_few_rows(rows: int, columns: int) -> bool:
    return rows <= max(columns, LEAST_MANY_ROWS)


def _multiply_transposed(fusion: Fusion, value: Value, right: Leaf) -> Lazy:
    left, dtype = fusion.assembly.in_memory(fusion.operand(value)), dtype_of(value)
    (rows, inner), columns = left.window.shape, right.window.shape[1]
    sizes = (columns, rows, inner)
    schedule = choose_schedule(dtype, sizes, fusion.assembly.target)
    across = Source(replace(left, window=left.window.permuted((1, 0))))
    panels, place = right_operand(fusion, across, sizes, schedule)

    def emit(out: Leaf, epilogue: Epilogue, inputs: tuple[Leaf, ...]) -> None:
        kernel = GemmKernel(
            fusion.assembly.name("product"), dtype, (), columns, rows, inner, matrix_of(right.window.permuted((1, 0))),
            panels, matrix_of(out.window.permuted((1, 0))), epilogue, schedule,
        )  # fmt: skip
        reads = (fusion.assembly.location(right), place, *map(fusion.assembly.location, inputs))
        fusion.assembly.call(kernel, (fusion.assembly.location(out),), reads)

    def steps(window: Window) -> EpilogueOperand | None:
        across, down = window.strides
        return EpilogueOperand((), down, across) if across in (0, 1) else None

    home = Window((rows, columns), (1, rows))
    return PendingKernel(fusion, home, dtype, emit, steps, rows).lazy()
