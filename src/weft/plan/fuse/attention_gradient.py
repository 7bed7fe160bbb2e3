"""The gradients of an attention -> one kernel that computes all three, without arrays of scores in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from weft.ir.graph import Value
from weft.plan.fuse.assembly import view_of
from weft.plan.fuse.attention import in_batch, with_batch
from weft.plan.fuse.attention_gradient_pattern import AttentionGradient, shape_of
from weft.plan.fuse.causal_mask import is_zero_after_row
from weft.plan.fuse.fusion import Fusion, dtype_of
from weft.plan.fuse.products import Product, matrix_of, multiply
from weft.plan.kernels.attention import AttentionSizes
from weft.plan.kernels.attention_gradient import AttentionGradientKernel, AttentionOperands, choose_attention_gradient
from weft.plan.kernels.expression import SHORT_FLOATS, Instruction
from weft.plan.kernels.schedule_gemm import packs_right
from weft.plan.regions.lazy import BodyWriter, Computed, Counted, Lazy, Leaf, Taken, read_from_memory, walk
from weft.plan.regions.region import FLOATS
from weft.plan.regions.window import Window, plain


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """What shares and slopes are made of: expressions of both products, and the products."""

    shares: Lazy
    slopes: Lazy
    scores: Product
    pull: Product


class AttentionGradients:
    """The gradients of a region's attentions, while the region is fused."""

    def __init__(self, fusion: Fusion, found: Iterable[AttentionGradient]) -> None:
        self.fusion = fusion
        self.found = list(found)
        self.between = {value for one in self.found for value in (one.scores, one.pull, *one.between)}
        self.turned = {value for one in self.found for value in one.turned}
        self.ends = {value for one in self.found for value in one.ends}
        self.ready = {one.ready: one for one in self.found}

    def note(self, value: Value) -> None:
        """Keep what lies between as an expression, however dear and however many read it."""
        operands = tuple(self.fusion.lazies[operand].node for operand in value.operands)
        whole = Lazy(shape_of(value), Computed(value.op, operands, dtype_of(value)))
        self.fusion.lazies[value] = multiply(self.fusion, value) if value.op == "matmul" else whole

    def compute(self, ready: Value) -> tuple[Value, ...]:
        """Compute all three products of an attention, where all that they read is there; gives them."""
        fusion, found = self.fusion, self.ready[ready]
        for end in found.ends:
            shape = shape_of(end)
            fusion.lazies[end] = Lazy(shape, fusion.place_for(end, plain(shape)))
        if not _emit(fusion, found):
            _compute_apart(fusion, found)
        return found.ends


def _leaf(fusion: Fusion, value: Value) -> Leaf:
    node = fusion.lazies[value].node
    assert isinstance(node, Leaf)
    return node


def _compute_apart(fusion: Fusion, found: AttentionGradient) -> None:
    """Compute the three products one by one, of shares and slopes in memory."""
    outs = {end: _leaf(fusion, end) for end in found.ends}
    for value in (found.shares, found.slopes):
        lazy = fusion.lazies[value]
        fusion.lazies[value] = Lazy(lazy.shape, fusion.assembly.in_memory(lazy))
    for value in found.turned:
        turned = fusion.operand(value).viewed(_turn, shape_of(value))
        assert turned is not None
        fusion.lazies[value] = turned
    for end, out in outs.items():
        fusion.assembly.store(multiply(fusion, end), out)


def _turn(window: Window) -> Window:
    last = len(window.shape) - 1
    return window.permuted((*range(last - 1), last, last - 1))


def _emit(fusion: Fusion, found: AttentionGradient) -> bool:
    """Write the kernel; tells whether it could be."""
    dtype, batch = dtype_of(found.slopes), shape_of(found.slopes)[:-2]
    elements = _elements(fusion, found, dtype)
    same = found.scores.operands[0] is found.for_key.operands[1] and (
        found.pull.operands[0] is found.for_value.operands[1]
    )
    if elements is None or not same or any(dtype_of(end) != dtype for end in found.ends):
        return False
    assert elements.scores.factors is not None
    assert elements.pull.factors is not None
    scores, pull = in_batch(elements.scores.factors, batch), in_batch(elements.pull.factors, batch)
    if scores is None or pull is None or shape_of(found.for_query)[-1] != scores.inner:
        return False  # what the slopes are multiplied by is no key
    *_, rows, keys = shape_of(found.slopes)
    sizes = AttentionSizes(dtype, batch, rows, keys, scores.inner, pull.inner)
    causal = all(is_zero_after_row(lazy, fusion.assembly) for lazy in (elements.shares, elements.slopes))
    schedule = choose_attention_gradient(sizes, scores.schedule, pull.schedule, fusion.assembly.target, causal=causal)
    if schedule is None:
        return False
    sources = (found.scores.operands[0], found.pull.operands[0], found.for_query.operands[1])
    query, gradient, key = (_rows(fusion, value, batch) for value in sources)
    ends = [with_batch(fusion, _leaf(fusion, end), batch) for end in found.ends]
    body, inputs, (share, slope) = _body(elements)
    outs = [matrix_of(leaf.window) for leaf in ends]
    read = [matrix_of(leaf.window) for leaf in (query, gradient, key)]
    operands = AttentionOperands(outs[0], outs[1], outs[2], read[0], scores.right, read[1], pull.right, read[2])
    assembly = fusion.assembly
    kernel = AttentionGradientKernel(
        assembly.name("attention_gradient"), sizes, operands,
        tuple(view_of(leaf.window, leaf.dtype) for leaf in inputs), body, share, slope, schedule,
    )  # fmt: skip
    places = [assembly.location(leaf) for leaf in (query, gradient, key, *inputs)]
    reads = (places[0], scores.right_place, places[1], pull.right_place, *places[2:])
    assembly.call(kernel, tuple(map(assembly.location, ends)), reads)
    return True


def _rows(fusion: Fusion, value: Value, batch: tuple[int, ...]) -> Leaf:
    """A tensor in memory, its rows near each other and each side by side: it is a right operand too."""
    leaf = with_batch(fusion, fusion.assembly.in_memory(fusion.lazies[value]), batch)
    rows, columns = leaf.window.shape[-2:]
    if not packs_right((rows, columns, rows), matrix_of(leaf.window), leaf.dtype) and leaf.window.strides[-1] == 1:
        return leaf
    copy = fusion.plain_arena(leaf.window.shape, leaf.dtype)
    fusion.assembly.store_by_loop(Lazy(leaf.window.shape, leaf), copy)
    return copy


def _elements(fusion: Fusion, found: AttentionGradient, dtype: str) -> Elements | None:
    """Shares and slopes as expressions of both products and of memory; None where they are not."""
    if dtype not in FLOATS:
        return None
    shares, slopes = fusion.lazies[found.shares], fusion.lazies[found.slopes]
    products = _products(shares, dtype), _products(slopes, dtype)
    if products[0] is None or products[1] is None or len(products[0]) != 1 or len(products[1]) != 2:
        return None
    [scores] = products[0]
    others = [product for product in products[1] if product is not scores]
    if len(others) != 1:
        return None
    own = (None, scores, others[0])
    shares, slopes = (
        read_from_memory(lazy, [leaf for leaf in lazy.leaves() if leaf.source.pending not in own])
        for lazy in (shares, slopes)
    )
    return Elements(shares, slopes, scores, others[0])


def _products(lazy: Lazy, dtype: str) -> list[Product] | None:
    """The products that an expression reads, each element at its place; None where it reads something otherwise."""
    found: list[Product] = []
    for node in walk(lazy.node):
        if isinstance(node, Taken) or node.dtype in SHORT_FLOATS:
            return None
        if isinstance(node, Counted) and any(node.window.strides[:-2]):
            return None
        if isinstance(node, Leaf) and isinstance(node.source.pending, Product):
            product = node.source.pending
            if product.factors is None or product.memory >= 0 or node.dtype != dtype:
                return None
            if not node.window.is_plain or node.window.size != product.home.size:
                return None
            found += [product] if product not in found else []
    return found


def _body(elements: Elements) -> tuple[tuple[Instruction, ...], list[Leaf], tuple[int, int]]:
    """Shares and slopes as one body, what it reads beside the products, and the numbers of both."""
    own: tuple[Product, ...] = (elements.scores, elements.pull)
    inputs: list[Leaf] = []

    def number_of(leaf: Leaf) -> int:
        if leaf.source.pending is not None:
            return [product is leaf.source.pending for product in own].index(True)
        for number, known in enumerate(inputs):
            if (known.source.buffer, known.window, known.dtype) == (leaf.source.buffer, leaf.window, leaf.dtype):
                return 2 + number
        inputs.append(leaf)
        return 1 + len(inputs)

    for lazy in (elements.shares, elements.slopes):
        for leaf in lazy.leaves():
            number_of(leaf)
    writer = BodyWriter(number_of, 2 + len(inputs))
    numbers = writer.write(elements.shares.node), writer.write(elements.slopes.node)
    return tuple(writer.body), inputs, numbers
