"""Say how arguments of kernels step along their dimensions, and which bytes tiles touch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from weft.plan.extents.parts import positions_of
from weft.plan.form.plan import KernelCall
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.conv_weight import DepthwiseWeightKernel, WeightGradientKernel
from weft.plan.kernels.expression import DTYPE_BYTES, View
from weft.plan.kernels.gemm import EpilogueOperand, GemmKernel, Matrix, PackedMatrix, packed_size
from weft.plan.kernels.images import Images
from weft.plan.kernels.kernel import Boxes, ByteBox, Kernel, box, cut_range
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.pool import INDEX_BYTES, PoolKernel
from weft.plan.kernels.recurrent import ELEMENT_BYTES, RecurrentKernel, StepsOfRows
from weft.plan.kernels.reduce import RowKernel
from weft.plan.kernels.scatter import ScatterKernel
from weft.plan.kernels.winograd import WinogradKernel

Axes = tuple[tuple[int, ...], tuple[tuple[int, ...] | None, ...]]
"""The counts of a kernel's dimensions, and how many bytes each argument steps for them; None of one read anywhere."""


def boxes_of(kernel: Kernel, begin: int, end: int) -> Boxes:
    """Give what tiles touch, of packed operands too: of these the matrices that the tiles are of."""
    of_kind = BOXES.get(type(kernel))
    return kernel.boxes(begin, end) if of_kind is None else of_kind(kernel, begin, end)


def _boxes_of_scatter(kernel: ScatterKernel, begin: int, end: int) -> Boxes:
    scatter, found = kernel.expression, kernel.boxes(begin, end)
    read = (
        box(view.offset, zip(view.strides, scatter.sizes, strict=True), DTYPE_BYTES[view.dtype])
        for view in scatter.inputs
    )
    return (*found[:1], *read, *found[1 + len(scatter.inputs) :])


def _boxes_of_product(kernel: GemmKernel, begin: int, end: int) -> Boxes:
    found = kernel.boxes(begin, end)
    if not _is_packed_by_matrix(kernel):
        return found
    return _with_packed(found, 2, (kernel.batch, kernel.right, kernel), kernel.walk.covered(begin, end).matrices)


def _boxes_of_attention(kernel: AttentionKernel, begin: int, end: int) -> Boxes:
    found, first, blocks = kernel.boxes(begin, end), 2 + 2 * kernel.keeps_numbers, kernel.row_blocks.count
    matrices = (begin // blocks, (end - 1) // blocks + 1)
    products = ((kernel.key, kernel.scores(1)), (kernel.value, kernel.values(1, kernel.sizes.keys)))
    for place, (operand, product) in enumerate(products, first):
        found = _with_packed(found, place, (kernel.sizes.batch, operand, product), matrices)
    return found


def _boxes_of_gradients(kernel: AttentionGradientKernel, begin: int, end: int) -> Boxes:
    found, operands = kernel.boxes(begin, end), kernel.operands
    for place, operand, product in (
        (4, operands.keys_across, kernel.scores(1)),
        (6, operands.values_across, kernel.pull(1)),
    ):
        found = _with_packed(found, place, (kernel.sizes.batch, operand, product), (begin, end))
    return found


def _boxes_of_weight_gradient(kernel: WeightGradientKernel | DepthwiseWeightKernel, begin: int, end: int) -> Boxes:
    del begin, end  # each tile reads all images
    conv, item = kernel.conv, DTYPE_BYTES[kernel.conv.element]
    groups = kernel.groups if isinstance(kernel, WeightGradientKernel) else 1
    channels = conv.in_channels * groups if isinstance(kernel, WeightGradientKernel) else conv.out_channels

    def seen(images: Images, size: tuple[int, int], count: int) -> ByteBox | None:
        steps = zip((images.image, images.row, images.column, images.channel), (conv.images, *size, count), strict=True)
        return box(images.offset, steps, item)

    of_output = seen(kernel.of_output, conv.out_size, conv.out_channels * groups)
    return None, seen(kernel.input, conv.in_size, channels), of_output


Packed = tuple[tuple[int, ...], Matrix | PackedMatrix, GemmKernel]  # a batch, an operand, the product of one matrix


def _with_packed(found: Boxes, place: int, of: Packed, matrices: tuple[int, int]) -> Boxes:
    """The boxes with that of a right operand, if it is packed, of some matrices of a batch."""
    batch, operand, product = of
    if not isinstance(operand, PackedMatrix):
        return found
    elements = packed_size(product.columns, product.inner, product.schedule)
    one = _matrices(batch, operand.batch, matrices, (elements, DTYPE_BYTES[product.operands[1]]))
    return (*found[:place], one, *found[place + 1 :])


def _is_packed_by_matrix(kernel: GemmKernel) -> bool:
    """Whether a product has a right operand of several matrices that are packed one by one."""
    return isinstance(kernel.right, PackedMatrix) and any(kernel.right.batch) and kernel.schedule.group == 1


def _boxes_of_packing(kernel: PackKernel, begin: int, end: int) -> Boxes:
    if kernel.casts or kernel.group > 1:
        return kernel.boxes(begin, end)
    item, panels = DTYPE_BYTES[kernel.element], kernel.panels
    matrices = (begin // panels.count, (end - 1) // panels.count + 1)
    elements = panels.total * kernel.lanes * kernel.depth
    source = kernel.source
    offset, steps = cut_range(kernel.batch, source.batch, *matrices) if kernel.batch else (0, [])
    sides = [*((stride, size) for size, stride in kernel.outer), (source.row, kernel.inner)]
    read = box(offset + kernel.offset, [*steps, *sides, (source.column, kernel.columns)], item)
    written = _matrices(kernel.batch, kernel.packed_batch, matrices, (elements, item))
    return (written, read, *((None,) if kernel.scale_batch is not None else ()))


def _matrices(
    batch: tuple[int, ...], strides: tuple[int, ...], matrices: tuple[int, int], sizes: tuple[int, int]
) -> ByteBox | None:
    """The box of some packed matrices of so many elements, each of so many bytes."""
    elements, item = sizes
    offset, steps = cut_range(batch, strides, *matrices) if batch else (0, [])
    return box(offset, [*steps, (1, elements)], item)


def tiles_of_first(call: KernelCall) -> int | None:
    """Give how many tiles compute each position of a kernel's first dimension, one position after the other."""
    kernel, axes, writes = call.kernel, axes_of(call.kernel), len(call.writes)
    if axes is None or not axes[0]:
        return None
    count, steps = axes[0][0], [0 if step is None else step[0] for step in axes[1][:writes]]
    if count < 2 or kernel.tile_count % count:
        return None
    tiles = kernel.tile_count // count

    def positions(place: int) -> list[tuple[int, int] | None]:
        found = kernel.boxes(place * tiles, (place + 1) * tiles)[:writes]
        pairs = zip(found, steps, strict=True)
        return [positions_of(one, step, count) if one is not None and step else None for one, step in pairs]

    first = positions(0)
    for place in (0, 1, count - 1):
        for here, there in zip(positions(place), first, strict=True):
            if here is None or there is None or here != ((there[0] + place) % count,) * 2:
                return None
    return tiles


def axes_of(kernel: Kernel) -> Axes | None:
    """Give a kernel's dimensions, as far as arguments step along them evenly; None of a kind that is not known."""
    of_kind = AXES.get(type(kernel))
    return None if of_kind is None else of_kind(kernel)


def _axes_of_loop(kernel: LoopKernel) -> Axes:
    return kernel.sizes, (*map(_steps, (*kernel.outputs, *kernel.inputs)), *(None for _ in kernel.tables))


def _axes_of_rows(kernel: RowKernel) -> Axes:
    expression = kernel.expression
    return (*expression.rows, *expression.columns), tuple(map(_steps, (*expression.outputs, *expression.inputs)))


def _axes_of_packing(kernel: PackKernel) -> Axes:
    sides = ((*kernel.packed_batch, 0, 0), (*kernel.source.batch, kernel.source.row, kernel.source.column))
    items, others = (kernel.element, kernel.read), () if kernel.scale_batch is None else (None,)
    steps = (tuple(step * DTYPE_BYTES[item] for step in row) for row, item in zip(sides, items, strict=True))
    return (*kernel.batch, kernel.inner, kernel.columns), (*steps, *others)


def _axes_of_scatter(kernel: ScatterKernel) -> Axes:
    scatter = kernel.expression
    return scatter.sizes, (None, *map(_steps, scatter.inputs), *(None for _ in scatter.tables))


def row_axis(kernel: Kernel) -> int | None:
    """The dimension of a kernel that tiles cut into rows."""
    if isinstance(kernel, LoopKernel):
        return max(len(kernel.sizes) - 2, 0)
    if isinstance(kernel, RowKernel):
        return len(kernel.expression.rows) - 1
    return len(kernel.batch) if isinstance(kernel, GemmKernel) else None


def rows_of(kernel: Kernel) -> int:
    """How many rows tiles cut, of one matrix where there are several."""
    if isinstance(kernel, LoopKernel):
        return kernel.rows if kernel.rows > 1 else kernel.columns
    if isinstance(kernel, RowKernel):
        return prod(kernel.outer_rows)
    return kernel.rows if isinstance(kernel, GemmKernel) else 0


def _steps(view: View) -> tuple[int, ...]:
    return tuple(step * DTYPE_BYTES[view.dtype] for step in view.strides)


def _steps_of_right(kernel: GemmKernel) -> tuple[int, ...] | None:
    right, item = kernel.right, DTYPE_BYTES[kernel.operands[1]]
    if _is_packed_by_matrix(kernel):
        return (*(step * item for step in right.batch), 0, 0, 0)
    if isinstance(right, PackedMatrix):
        return None
    return tuple(step * item for step in (*right.batch, 0, right.column, right.row))


def _axes_of_product(kernel: GemmKernel) -> Axes:
    def steps(where: Matrix | EpilogueOperand, sides: tuple[int, int, int], item: int) -> tuple[int, ...]:
        return tuple(step * item for step in (*where.batch, *sides))

    epilogue, left_item = kernel.epilogue, DTYPE_BYTES[kernel.operands[0]]
    dtypes = zip(epilogue.inputs, epilogue.dtypes(kernel.element), strict=True)
    return (*kernel.batch, kernel.rows, kernel.columns, kernel.inner), (
        steps(kernel.out, (kernel.out.row, kernel.out.column, 0), epilogue.stored_bytes(kernel.element)),
        steps(kernel.left, (kernel.left.row, 0, kernel.left.column), left_item),
        _steps_of_right(kernel),
        *(steps(operand, (operand.row, operand.column, 0), DTYPE_BYTES[dtype]) for operand, dtype in dtypes),
    )


def _axes_of_attention(kernel: AttentionKernel) -> Axes:
    sizes, item = kernel.sizes, DTYPE_BYTES[kernel.sizes.element]

    def steps(batch: Sequence[int], row: int, key: int = 0, size: int = item) -> tuple[int, ...]:
        return tuple(step * size for step in (*batch, row, key))

    rows = (*sizes.batch, sizes.rows)
    number = (*(prod(rows[place + 1 :]) * item for place in range(len(rows))), 0)
    key_step = kernel.key.column if isinstance(kernel.key, Matrix) else 0
    value_step = kernel.value.row if isinstance(kernel.value, Matrix) else 0
    return (*rows, sizes.keys), (
        steps(kernel.out.batch, kernel.out.row),
        *((number, number) if kernel.keeps_numbers else ()),
        steps(kernel.query.batch, kernel.query.row),
        steps(kernel.key.batch, 0, key_step),
        steps(kernel.value.batch, 0, value_step),
        *(
            steps(view.strides[:-2], view.strides[-2], view.strides[-1], DTYPE_BYTES[view.dtype])
            for view in kernel.inputs
        ),
    )


def _axes_of_gradients(kernel: AttentionGradientKernel) -> Axes:
    sizes, operands, item = kernel.sizes, kernel.operands, DTYPE_BYTES[kernel.sizes.element]

    def by_rows(matrix: Matrix) -> tuple[int, ...]:
        return tuple(step * item for step in (*matrix.batch, matrix.row, 0))

    def by_keys(matrix: Matrix | PackedMatrix, *, across: bool = False) -> tuple[int, ...]:
        step = 0
        if isinstance(matrix, Matrix):
            step = matrix.column if across else matrix.row
        return tuple(one * item for one in (*matrix.batch, 0, step))

    return (*sizes.batch, sizes.rows, sizes.keys), (
        by_rows(operands.for_query),
        by_keys(operands.for_key),
        by_keys(operands.for_value),
        by_rows(operands.query),
        by_keys(operands.keys_across, across=True),
        by_rows(operands.gradient),
        by_keys(operands.values_across, across=True),
        by_keys(operands.key),
        *map(_steps, kernel.inputs),
    )


def _axes_of_weight_gradient(kernel: WeightGradientKernel | DepthwiseWeightKernel) -> Axes:
    conv, given, item = kernel.conv, kernel.of_output, DTYPE_BYTES[kernel.conv.element]
    of_output = tuple(step * item for step in (given.image, given.row, given.column))
    return (conv.images, *conv.out_size), (None, (kernel.input.image * item, 0, 0), of_output)


def _axes_of_images(kernel: ConvKernel | PoolKernel | WinogradKernel) -> Axes:
    counts = (kernel.images, *kernel.out_size)
    given = (kernel.input.image * DTYPE_BYTES[kernel.element], 0, 0)  # rows and columns of the input are windows'
    limits = (None,) * sum(kernel.limited)

    def steps(item: int) -> tuple[int, ...]:
        return tuple(step * item for step in (kernel.output.image, kernel.output.row, kernel.output.column))

    if isinstance(kernel, PoolKernel):
        out = steps(DTYPE_BYTES[kernel.element])
        return counts, (out, *((steps(INDEX_BYTES),) if kernel.indices else ()), given, *limits)
    epilogue, pixels = kernel.epilogue, (prod(kernel.out_size), kernel.out_size[1], 1)
    operands = zip(epilogue.inputs, epilogue.dtypes(kernel.element), strict=True)
    others = (tuple(one.row * count * DTYPE_BYTES[dtype] for count in pixels) for one, dtype in operands)
    return counts, (steps(epilogue.stored_bytes(kernel.element)), given, None, *others, *limits)


def _axes_of_recurrent(kernel: RecurrentKernel) -> Axes:
    def rows(steps: StepsOfRows) -> tuple[int, int]:
        return steps.row * ELEMENT_BYTES, steps.step * ELEMENT_BYTES

    state = (kernel.size * ELEMENT_BYTES, 0)
    others = {"lstm": (state,), "gru": (None,)}.get(kernel.cell, ())
    limit = (None,) * kernel.limited
    return (kernel.batch, kernel.steps), (rows(kernel.out), state, rows(kernel.given), None, state, *others, *limit)


AXES: Mapping[type[Kernel], Callable[[Any], Axes]] = {
    LoopKernel: _axes_of_loop,
    RowKernel: _axes_of_rows,
    PackKernel: _axes_of_packing,
    GemmKernel: _axes_of_product,
    AttentionKernel: _axes_of_attention,
    AttentionGradientKernel: _axes_of_gradients,
    ScatterKernel: _axes_of_scatter,
    ConvKernel: _axes_of_images,
    PoolKernel: _axes_of_images,
    WinogradKernel: _axes_of_images,
    WeightGradientKernel: _axes_of_weight_gradient,
    DepthwiseWeightKernel: _axes_of_weight_gradient,
    RecurrentKernel: _axes_of_recurrent,
}

BOXES: Mapping[type[Kernel], Callable[[Any, int, int], Boxes]] = {
    PackKernel: _boxes_of_packing,
    GemmKernel: _boxes_of_product,
    AttentionKernel: _boxes_of_attention,
    AttentionGradientKernel: _boxes_of_gradients,
    ScatterKernel: _boxes_of_scatter,
    WeightGradientKernel: _boxes_of_weight_gradient,
    DepthwiseWeightKernel: _boxes_of_weight_gradient,
}
