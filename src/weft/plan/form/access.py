"""A kernel and a range of its tiles -> the bytes of each argument that these tiles may touch.

Boxes may be larger than what is touched, never smaller. An argument without a box (None) may be touched anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from weft.plan.form.plan import Kernel
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.attention_gradient import AttentionGradientKernel
from weft.plan.kernels.box import Box, box
from weft.plan.kernels.conv import ConvKernel, Images
from weft.plan.kernels.epilogue import Epilogue, Operand
from weft.plan.kernels.expression import DTYPE_BYTES, View
from weft.plan.kernels.gemm import GemmKernel, Matrix, PackedMatrix
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pool import PoolKernel
from weft.plan.kernels.pool_gradient import PoolGradientKernel
from weft.plan.kernels.reduce import RowKernel
from weft.plan.kernels.walk import Walk
from weft.plan.kernels.winograd import PRODUCTS, WinogradKernel, WinogradStage

Range = tuple[int, int]
Steps = tuple[int, list[tuple[int, int]]]  # an offset, and (stride, count) for each dimension
Boxes = tuple[Box | None, ...]
INDEX_BYTES = DTYPE_BYTES["i64"]


@dataclass(frozen=True, slots=True)
class Part:
    """What a range of tiles covers: matrices (groups), rows and columns of each."""

    matrices: Range
    rows: Range
    columns: Range


def boxes(kernel: Kernel, begin: int, end: int) -> Boxes | None:
    """Give a box for each argument that tiles [begin, end) touch, outputs first; None: all, anywhere."""
    find = ACCESS.get(type(kernel))
    return find(kernel, begin, end) if find else None


def cut_range(sizes: Sequence[int], strides: Sequence[int], first: int, last: int) -> Steps:
    """Give the steps through points [first, last) of a space, counted row by row; whole rows where it is not one row.

    The last dimensions that a range cuts through at both ends may be taken larger than they are.
    """
    offset = 0
    for place, size in enumerate(sizes):
        inner = prod(sizes[place + 1 :])
        start, stop = first // inner if inner else 0, -(-last // inner) if inner else 0
        offset += start * strides[place]
        if stop - start > 1 or place == len(sizes) - 1:
            rest = zip(strides[place + 1 :], sizes[place + 1 :], strict=True)
            return offset, [(strides[place], min(stop, size) - start), *rest]
        first, last = first - start * inner, last - start * inner
    return offset, []


def _loop(kernel: LoopKernel, begin: int, end: int) -> Boxes:
    across, down, schedule = kernel.column_tiles, kernel.row_tiles, kernel.schedule
    first, last = begin // across, (end - 1) // across
    columns = (0, kernel.columns)
    if first == last:
        width = schedule.column_tile
        columns = (begin % across * width, min(((end - 1) % across + 1) * width, kernel.columns))
    top = first // down * kernel.line + first % down * schedule.row_tile
    bottom = last // down * kernel.line + min((last % down + 1) * schedule.row_tile, kernel.line)

    def seen(view: View) -> Box | None:
        offset, steps = cut_range(kernel.sizes[:-1], view.strides[:-1], top, bottom)
        offset += view.offset + columns[0] * view.strides[-1]
        return box(offset, [*steps, (view.strides[-1], columns[1] - columns[0])], DTYPE_BYTES[view.dtype])

    return (*map(seen, kernel.outputs), *map(seen, kernel.inputs), *(None for _ in kernel.tables))


def _rows(kernel: RowKernel, begin: int, end: int) -> Boxes:
    expression, schedule, across = kernel.expression, kernel.schedule, kernel.lane_tiles
    kept, outer = len(expression.rows), kernel.outer_rows
    first, last = begin // across, (end - 1) // across
    lanes = (0, kernel.lane_rows)
    if first == last:
        width = schedule.lane_tile
        lanes = (begin % across * width, min(((end - 1) % across + 1) * width, kernel.lane_rows))
    top, bottom = first * schedule.row_tile, min((last + 1) * schedule.row_tile, prod(outer))

    def seen(view: View) -> Box | None:
        offset, steps = cut_range(outer, view.strides[: len(outer)], top, bottom)
        if schedule.along_rows:
            stride = view.strides[kept - 1]
            offset, steps = offset + lanes[0] * stride, [*steps, (stride, lanes[1] - lanes[0])]
        steps += zip(view.strides[kept:], expression.columns, strict=True)
        return box(offset + view.offset, steps, DTYPE_BYTES[view.dtype])

    return (*map(seen, expression.outputs), *map(seen, expression.inputs))


def part_of(walk: Walk, begin: int, end: int) -> Part:
    """Give the rows and columns that a range of a walk's tiles covers: all of them where it is more than one row.

    Rows are those of all visits.
    """
    rows, columns = (0, walk.lines * walk.row_blocks.total * walk.visits), (0, walk.columns)
    first, last = begin // walk.tile_columns, (end - 1) // walk.tile_columns
    matrices = (first // walk.tile_rows, last // walk.tile_rows + 1)
    if matrices[1] - matrices[0] == 1:
        top = first % walk.tile_rows * walk.tile_row_blocks
        bottom = min((last % walk.tile_rows + 1) * walk.tile_row_blocks, walk.blocks_down)
        first_row, last_row = _row_start(walk, top // walk.visits), _row_start(walk, -(-bottom // walk.visits))
        rows = (first_row * walk.visits, last_row * walk.visits)
    if first == last:
        left = begin % walk.tile_columns * walk.tile_panels
        right = min(((end - 1) % walk.tile_columns + 1) * walk.tile_panels, walk.panels.count)
        columns = (walk.panels.start(left) * walk.lanes, min(walk.panels.start(right) * walk.lanes, walk.columns))
    return Part(matrices, rows, columns)


def _row_start(walk: Walk, block: int) -> int:
    line, place = divmod(block, max(walk.row_blocks.count, 1))
    return line * walk.row_blocks.total + walk.row_blocks.start(place)


def _product(kernel: GemmKernel, begin: int, end: int) -> Boxes:
    part = part_of(kernel.walk, begin, end)
    rows, columns, inner = part.rows, part.columns, (0, kernel.inner)
    element = DTYPE_BYTES[kernel.element]
    stored = _stored_bytes(kernel.epilogue, kernel.element)

    def matrix(where: Matrix | Operand, sides: tuple[Range, Range], item: int) -> Box | None:
        offset, steps = cut_range(kernel.batch, where.batch, *part.matrices) if kernel.batch else (0, [])
        for stride, (first, last) in zip((where.row, where.column), sides, strict=True):
            offset += first * stride
            steps = [*steps, (stride, last - first)]
        return box(offset, steps, item)

    right = None if isinstance(kernel.right, PackedMatrix) else matrix(kernel.right, (inner, columns), element)
    return (
        matrix(kernel.out, (rows, columns), stored),
        matrix(kernel.left, (rows, inner), element),
        right,
        *(matrix(line, (rows, columns), element) for line in kernel.epilogue.inputs),
    )


def _stored_bytes(epilogue: Epilogue, element: str) -> int:
    return DTYPE_BYTES[epilogue.body[-1].dtype if epilogue.body else element]


def _convolution(kernel: ConvKernel, begin: int, end: int) -> Boxes:
    part, element = part_of(kernel.walk, begin, end), DTYPE_BYTES[kernel.element]
    groups = kernel.groups if not kernel.depthwise else 1
    first, last = part.matrices
    out = (first * kernel.out_channels + part.columns[0], (last - 1) * kernel.out_channels + part.columns[1])
    seen = part.columns if kernel.depthwise else (first * kernel.in_channels, last * kernel.in_channels)
    height, width = kernel.out_size
    images = (part.rows[0] // (height * width), -(-part.rows[1] // (height * width)))

    def operand(where: Operand) -> Box | None:
        rows, channels = part.rows, groups * kernel.out_channels
        steps = [(where.row, rows[1] - rows[0]), (where.column, channels)]
        return box(rows[0] * where.row, steps, element)

    vertical = _rows_seen(kernel, part.rows) if images[1] - images[0] == 1 else (0, kernel.in_size[0])
    stored = _stored_bytes(kernel.epilogue, kernel.element)
    return (
        _pixels(kernel.output, (kernel.images, height, width), part.rows, out, stored),
        _image_rows(kernel.input, (images, vertical, (0, kernel.in_size[1])), seen, element),
        None,
        *map(operand, kernel.epilogue.inputs),
    )


def _rows_seen(kernel: ConvKernel, pixels: Range) -> Range:
    """Give the rows of an input image that windows at these output pixels, all of one image, may see."""
    height, width = kernel.out_size
    window, image = kernel.window, pixels[0] // (height * width) * height * width
    top, bottom = (pixels[0] - image) // width, (pixels[1] - 1 - image) // width
    first = top * window.stride[0] - window.padding[0]
    last = bottom * window.stride[0] - window.padding[0] + (window.size[0] - 1) * window.dilation[0] + 1
    first = min(max(first, 0), kernel.in_size[0])
    return first, max(min(last, kernel.in_size[0]), first)


def _pixels(images: Images, sizes: tuple[int, int, int], pixels: Range, channels: Range, item: int) -> Box | None:
    offset, steps = cut_range(sizes, (images.image, images.row, images.column), *pixels)
    offset += images.offset + channels[0] * images.channel
    return box(offset, [*steps, (images.channel, channels[1] - channels[0])], item)


def _image_rows(images: Images, ranges: tuple[Range, Range, Range], channels: Range, item: int) -> Box | None:
    strides = (images.image, images.row, images.column, images.channel)
    spans = list(zip(strides, (*ranges, channels), strict=True))
    offset = images.offset + sum(stride * first for stride, (first, _) in spans)
    return box(offset, [(stride, last - first) for stride, (first, last) in spans], item)


def _pooling(kernel: PoolKernel, begin: int, end: int) -> Boxes:
    element = DTYPE_BYTES[kernel.element]
    offset, steps, images = _lines(kernel, kernel.out_size, (begin, end))
    written = [box(offset, steps, item) for item in (element, *([INDEX_BYTES] if kernel.indices else []))]
    return (*written, _whole_images(kernel.input, images, kernel.in_size, (kernel.channels, element)))


def _pool_gradient(kernel: PoolGradientKernel, begin: int, end: int) -> Boxes:
    element = DTYPE_BYTES[kernel.element]
    offset, steps, images = _lines(kernel, kernel.in_size, (begin, end))
    given = [(kernel.of_output, element), *([(kernel.indices, INDEX_BYTES)] if kernel.indices else [])]
    read = (_whole_images(where, images, kernel.out_size, (kernel.channels, item)) for where, item in given)
    return (box(offset, steps, element), *read)


def _lines(
    kernel: PoolKernel | PoolGradientKernel, size: tuple[int, int], tiles: Range
) -> tuple[int, list[tuple[int, int]], Range]:
    """Where some tiles of lines write, as an offset and steps, and the images that they are of."""
    places, tile, (height, width) = kernel.output, kernel.schedule.tile_lines, size
    first, last = tiles[0] * tile, min(tiles[1] * tile, kernel.lines)
    if kernel.schedule.along == "channels":
        per_image = height
        offset, steps = cut_range((kernel.images, height), (places.image, places.row), first, last)
        steps = [*steps, (places.channel, kernel.channels)]
    else:
        per_image = kernel.channels * height
        strides = (places.image, places.channel, places.row)
        offset, steps = cut_range((kernel.images, kernel.channels, height), strides, first, last)
    return places.offset + offset, [*steps, (places.column, width)], (first // per_image, -(-last // per_image))


def _whole_images(where: Images, images: Range, size: tuple[int, int], parts: tuple[int, int]) -> Box | None:
    """All rows of some images, of so many channels whose numbers take so many bytes."""
    channels, item = parts
    return _image_rows(where, (images, (0, size[0]), (0, size[1])), (0, channels), item)


def _winograd(kernel: WinogradKernel, begin: int, end: int) -> Boxes:
    """The images that some of the patches are of, whole."""
    out, image, *inputs = _patches_images(kernel, kernel.blocks.start(begin), kernel.blocks.start(end))
    return out, image, None, *inputs


def _winograd_stage(stage: WinogradStage, begin: int, end: int) -> Boxes:
    """Some rows of each matrix of patches or products, and the images that they are of."""
    kernel, first, last = stage.of, stage.tiles.start(begin), stage.tiles.start(end)
    out, image, *inputs = _patches_images(kernel, first, last)
    channels = kernel.in_channels if stage.makes == "patches" else kernel.out_channels
    steps = [(kernel.blocks.size * channels, PRODUCTS), (channels, last - first), (1, channels)]
    between = box(first * channels, steps, DTYPE_BYTES[kernel.element])
    return (between, image) if stage.makes == "patches" else (out, between, *inputs)


def _patches_images(kernel: WinogradKernel, first: int, last: int) -> list[Box | None]:
    """The images that patches are of: of the output, of the input, and of the epilogue's operands."""
    patches, (height, width), element = prod(kernel.squares), kernel.out_size, DTYPE_BYTES[kernel.element]
    images = first // patches, -(-last // patches)
    pixels = images[0] * height * width, images[1] * height * width

    def operand(where: Operand) -> Box | None:
        steps = [(where.row, pixels[1] - pixels[0]), (where.column, kernel.out_channels)]
        return box(pixels[0] * where.row, steps, element)

    ranges = (images, (0, kernel.in_size[0]), (0, kernel.in_size[1]))
    stored = _stored_bytes(kernel.epilogue, kernel.element)
    return [
        _pixels(kernel.output, (kernel.images, height, width), pixels, (0, kernel.out_channels), stored),
        _image_rows(kernel.input, ranges, (0, kernel.in_channels), element),
        *map(operand, kernel.epilogue.inputs),
    ]


def _attention(kernel: AttentionKernel, begin: int, end: int) -> Boxes:
    """Some rows of queries and outputs, where they are of one matrix, and whole matrices of keys and values."""
    sizes, blocks = kernel.sizes, kernel.row_blocks
    first, last = begin // blocks.count, (end - 1) // blocks.count
    rows = (0, sizes.rows)
    if first == last:
        rows = (blocks.start(begin % blocks.count), blocks.start((end - 1) % blocks.count + 1))
    element = DTYPE_BYTES[sizes.element]

    def seen(strides: Sequence[int], spans: Sequence[tuple[int, Range]], item: int = element) -> Box | None:
        offset, steps = cut_range(sizes.batch, strides, first, last + 1) if sizes.batch else (0, [])
        for stride, (start, stop) in spans:
            offset += start * stride
            steps = [*steps, (stride, stop - start)]
        return box(offset, steps, item)

    def matrix(where: Matrix | PackedMatrix, down: Range, across: Range) -> Box | None:
        if isinstance(where, PackedMatrix):
            return None
        return seen(where.batch, ((where.row, down), (where.column, across)))

    number = box(first * sizes.rows + rows[0], [(1, (last - first) * sizes.rows + rows[1] - rows[0])], element)
    sides = [rows, (0, sizes.keys)]
    inputs = (
        seen(view.strides[:-2], list(zip(view.strides[-2:], sides, strict=True)), DTYPE_BYTES[view.dtype])
        for view in kernel.inputs
    )
    return (
        matrix(kernel.out, rows, (0, sizes.columns)),
        *((number, number) if kernel.keeps_numbers else ()),
        matrix(kernel.query, rows, (0, sizes.inner)),
        matrix(kernel.key, (0, sizes.inner), (0, sizes.keys)),
        matrix(kernel.value, (0, sizes.keys), (0, sizes.columns)),
        *inputs,
    )


def _attention_gradient(kernel: AttentionGradientKernel, begin: int, end: int) -> Boxes:
    """Whole matrices of the batch."""
    sizes, operands, element = kernel.sizes, kernel.operands, DTYPE_BYTES[kernel.sizes.element]

    def seen(strides: Sequence[int], sides: Sequence[tuple[int, int]], item: int = element) -> Box | None:
        offset, steps = cut_range(sizes.batch, strides, begin, end) if sizes.batch else (0, [])
        return box(offset, [*steps, *sides], item)

    def matrix(where: Matrix | PackedMatrix, rows: int, columns: int) -> Box | None:
        if isinstance(where, PackedMatrix):
            return None
        return seen(where.batch, [(where.row, rows), (where.column, columns)])

    inputs = (
        seen(view.strides[:-2], list(zip(view.strides[-2:], (sizes.rows, sizes.keys), strict=True)),
             DTYPE_BYTES[view.dtype])
        for view in kernel.inputs
    )  # fmt: skip
    return (
        matrix(operands.for_query, sizes.rows, sizes.inner),
        matrix(operands.for_key, sizes.keys, sizes.inner),
        matrix(operands.for_value, sizes.keys, sizes.columns),
        matrix(operands.query, sizes.rows, sizes.inner),
        matrix(operands.keys_across, sizes.inner, sizes.keys),
        matrix(operands.gradient, sizes.rows, sizes.columns),
        matrix(operands.values_across, sizes.columns, sizes.keys),
        matrix(operands.key, sizes.keys, sizes.inner),
        *inputs,
    )


# Kernels are of many classes without a common one; each row's function takes its own.
ACCESS: dict[type, Callable[[Any, int, int], Boxes]] = {
    LoopKernel: _loop,
    RowKernel: _rows,
    GemmKernel: _product,
    ConvKernel: _convolution,
    PoolKernel: _pooling,
    PoolGradientKernel: _pool_gradient,
    WinogradKernel: _winograd,
    WinogradStage: _winograd_stage,
    AttentionKernel: _attention,
    AttentionGradientKernel: _attention_gradient,
}
