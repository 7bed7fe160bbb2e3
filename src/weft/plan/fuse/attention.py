"""softmax(scores) times values -> one kernel for each attention, without an array of scores in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from weft.ir.graph import Value
from weft.plan.form.plan import Location
from weft.plan.fuse.assembly import view_of
from weft.plan.fuse.attention_pattern import Softmax
from weft.plan.fuse.causal_mask import is_causal
from weft.plan.fuse.fusion import Fusion, dtype_of, tensor_type
from weft.plan.fuse.products import Factors, Product, matrix_of, right_operand
from weft.plan.kernels.attention import AttentionKernel, AttentionSchedule, AttentionSizes, choose_attention
from weft.plan.kernels.epilogue import Epilogue, Operand
from weft.plan.kernels.expression import SHORT_FLOATS
from weft.plan.kernels.gemm import Matrix, PackedMatrix
from weft.plan.kernels.schedule_gemm import packs_right
from weft.plan.regions.lazy import BodyWriter, Counted, Lazy, Leaf, Taken, read_from_memory, walk
from weft.plan.regions.region import FLOATS
from weft.plan.regions.window import Window, plain
from weft.target import Target

FEWEST_ROWS, FEWEST_KEYS = 8, 8  # below, a block of rows is too small to be worth a kernel of its own
FEW_KEYS = 512  # not worth more than one core with few rows


@dataclass(slots=True, eq=False)
class Attention:
    """An attention whose scores are known and whose values are not yet.

    `scores` is the expression that goes into softmax; it reads the product `factors` make as the leaves `own`.
    """

    fusion: Fusion
    softmax: Softmax
    scores: Lazy
    own: Product
    factors: Factors
    sizes: AttentionSizes
    schedule: AttentionSchedule
    numbers: tuple[Leaf, ...] = ()
    product: Product | None = None
    is_emitted: bool = field(default=False)

    def settle(self) -> None:
        """Emit the kernel, because somebody reads its numbers."""
        if self.product is not None and not self.is_emitted:
            self.product.settle()


def begin_attention(fusion: Fusion, softmax: Softmax) -> Attention | None:
    """See whether the scores of a softmax can be computed block by block; None where not, or where it does not pay."""
    scores, dtype = fusion.lazies[softmax.scores], dtype_of(softmax.scores)
    if dtype not in FLOATS or dtype_of(softmax.product) != dtype or len(scores.shape) < 2:
        return None
    own = _scored_product(scores, dtype)
    if own is None or own.factors is None:
        return None
    others = [leaf for leaf in scores.leaves() if leaf.source.pending not in (None, own)]
    scores = read_from_memory(scores, others)
    scores = _in_batch_of(own.factors, scores)
    factors = in_batch(own.factors, scores.shape[:-2])
    *_, rows, keys = scores.shape
    if factors is None or factors.left.window.shape[-2] != rows:
        return None
    if not pays(prod(scores.shape[:-2]), rows, keys, fusion.assembly.target):
        return None
    batch, columns = scores.shape[:-2], tensor_type(softmax.product).shape[-1]
    sizes = AttentionSizes(dtype, batch, rows, keys, factors.inner, columns)
    target, causal = fusion.assembly.target, is_causal(scores, fusion.assembly)
    schedule = choose_attention(sizes, factors.schedule, target, causal=causal)
    if schedule is None:
        return None
    found = Attention(fusion, softmax, scores, own, factors, sizes, schedule)
    if softmax.keeps_numbers:
        found.numbers = tuple(fusion.plain_arena(scores.shape[:-1], dtype) for _ in range(2))
        for value, leaf in zip((softmax.highest, softmax.total), found.numbers, strict=True):
            fusion.assembly.owners[leaf.source.buffer] = (found,)
            window = leaf.window.reshaped(tensor_type(value).shape)
            assert window is not None
            fusion.lazies[value] = Lazy(tensor_type(value).shape, Leaf(leaf.source, window, dtype))
    return found


def pays(matrices: int, rows: int, keys: int, target: Target) -> bool:
    """Whether so many rows and keys are enough: with few rows a matrix is one tile, and each core needs one."""
    return keys >= FEWEST_KEYS and (rows >= FEWEST_ROWS or matrices >= target.cores or keys <= FEW_KEYS)


def _scored_product(scores: Lazy, dtype: str) -> Product | None:
    """The one product that scores are made of, element by element; None where there is another, or none."""
    found: Product | None = None
    for node in walk(scores.node):
        if isinstance(node, Taken) or node.dtype in SHORT_FLOATS:
            return None
        if isinstance(node, Counted) and any(node.window.strides[:-2]):
            return None
        if isinstance(node, Leaf) and isinstance(node.source.pending, Product) and node.source.pending.factors:
            product = node.source.pending
            if found not in (None, product) or product.memory >= 0:
                return None
            if not node.window.is_plain or node.window.size != product.home.size or node.dtype != dtype:
                return None
            found = product
    return found


def _in_batch_of(factors: Factors, scores: Lazy) -> Lazy:
    """Scores in the batch dimensions of their product, where these are more: there, keys that repeat have steps."""
    shape = (*factors.batch, *scores.shape[-2:])
    if len(shape) <= len(scores.shape) or prod(shape) != prod(scores.shape):
        return scores
    return scores.viewed(lambda window: window.reshaped(shape), shape) or scores


def in_batch(factors: Factors, batch: tuple[int, ...]) -> Factors | None:
    """The same products with the batch in other dimensions; None where that is not possible."""
    if prod(factors.batch) != prod(batch):
        return None
    left = factors.left.window.reshaped((*batch, *factors.left.window.shape[-2:]))
    steps = Window(factors.batch, factors.right.batch).reshaped(batch)
    if left is None or steps is None:
        return None
    right: Matrix | PackedMatrix = PackedMatrix(steps.strides)
    if isinstance(factors.right, Matrix):
        right = Matrix(steps.strides, factors.right.row, factors.right.column)
    leaf = Leaf(factors.left.source, left, factors.left.dtype)
    return Factors(batch, leaf, right, factors.right_place, factors.schedule)


def attend(attention: Attention, value: Value) -> Lazy:
    """The product of a softmax with values: a kernel that waits for where its result goes."""
    fusion, sizes, schedule = attention.fusion, attention.sizes, attention.schedule
    dtype, batch, product_sizes = sizes.element, sizes.batch, (sizes.rows, sizes.columns, sizes.keys)
    right = with_batch(fusion, fusion.assembly.in_memory(fusion.operand(value, 1)), batch)
    if schedule.key_block and packs_right(product_sizes, matrix_of(right.window), dtype):
        # A block of keys must be rows side by side, which packed panels do not have.
        copy = fusion.plain_arena(right.window.shape, dtype)
        fusion.assembly.store_by_loop(Lazy(right.window.shape, right), copy)
        right = copy
    matrix, place = _values(fusion, right, product_sizes, schedule)
    home = plain((*batch, sizes.rows, sizes.columns))

    def emit(out: Leaf, _epilogue: Epilogue, _inputs: tuple[Leaf, ...]) -> None:
        _emit(attention, (matrix, place), out)

    def steps(window: Window) -> Operand | None:
        return Operand(window.strides[:-2], window.strides[-2], window.strides[-1])

    attention.product = Product(fusion, home, dtype, emit, steps, sizes.columns, takes_code=False)
    shape = tensor_type(value).shape
    found = attention.product.lazy().viewed(lambda window: window.reshaped(shape), shape)
    assert found is not None
    return found


def with_batch(fusion: Fusion, right: Leaf, batch: tuple[int, ...]) -> Leaf:
    """Matrices in memory with the batch in other dimensions, copied where that needs it."""
    shape = (*batch, *right.window.shape[-2:])
    window = right.window.reshaped(shape)
    if window is None:
        copy = fusion.plain_arena(right.window.shape, right.dtype)
        fusion.assembly.store_by_loop(Lazy(right.window.shape, right), copy)
        window = copy.window.reshaped(shape)
        right = copy
    assert window is not None
    return Leaf(right.source, window, right.dtype)


def _values(
    fusion: Fusion, right: Leaf, sizes: tuple[int, int, int], schedule: AttentionSchedule
) -> tuple[Matrix | PackedMatrix, Location]:
    if schedule.key_block:
        return matrix_of(right.window), fusion.assembly.location(right)
    return right_operand(fusion, right, sizes, right.dtype)


def _emit(attention: Attention, values: tuple[Matrix | PackedMatrix, Location], out: Leaf) -> None:
    """Write the kernel; its numbers are stored once, however often it is emitted."""
    assembly, factors, softmax = attention.fusion.assembly, attention.factors, attention.softmax
    others = [leaf for leaf in attention.scores.leaves() if leaf.source.pending is None]

    def number_of(leaf: Leaf) -> int:
        return 0 if leaf.source.pending is attention.own else 1 + others.index(leaf)

    writer = BodyWriter(number_of, 1 + len(others))
    result = writer.write(attention.scores.node)
    assert result == (len(others) + len(writer.body) if writer.body else 0)
    numbers = () if attention.is_emitted else attention.numbers
    attention.is_emitted = True
    kernel = AttentionKernel(
        assembly.name("attention"), attention.sizes, matrix_of(factors.left.window), factors.right, values[0],
        matrix_of(out.window), tuple(view_of(leaf.window, leaf.dtype) for leaf in others), tuple(writer.body),
        attention.schedule, softmax.masked_gives_zeros, bool(numbers),
    )  # fmt: skip
    places = [assembly.location(leaf) for leaf in others]
    reads = (assembly.location(factors.left), factors.right_place, values[1], *places)
    for leaf in numbers:
        assembly.owners.pop(leaf.source.buffer, None)
    assembly.call(kernel, tuple(map(assembly.location, (out, *numbers))), reads)
