"""Make one kernel of each attention, and one of all its gradients, without an array of scores in memory.

Scores are an expression of the product of a query and a key, and of masks; the kernel computes it block by block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from weft.ir.graph import Value
from weft.plan.form.plan import Location
from weft.plan.fuse.fusion import Assembly, Fusion, Source, dtype_of, tensor_type, view_of
from weft.plan.fuse.matmul import Factors, PendingKernel, factors_of, matrix_of, right_operand
from weft.plan.kernels.attention import AttentionKernel, AttentionSchedule, AttentionSizes, choose_attention
from weft.plan.kernels.attention_gradient import AttentionGradientKernel, AttentionOperands, choose_attention_gradient
from weft.plan.kernels.expression import SHORT_FLOATS, Instruction
from weft.plan.kernels.gemm import Epilogue, EpilogueOperand, Matrix, PackedMatrix, choose_schedule, packs_right
from weft.plan.regions.attention import attention_sizes
from weft.plan.regions.lazy import (
    BodyWriter,
    Computed,
    Counted,
    FixedNumber,
    Lazy,
    Leaf,
    LeafSource,
    Node,
    Taken,
    Window,
    plain,
    read_from_memory,
    walk,
)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Scores as an expression of the `product` of query and key; `causal`: those of keys behind a query are -inf."""

    product: Leaf
    node: Node
    causal: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Batch, rows, keys."""
        return self.product.window.shape

    def computed(self, op: str, *operands: Node, dtype: str = "") -> Computed:
        """Write an operation on scores."""
        return Computed(op, operands, dtype or self.product.dtype)

    def fixed(self, number: float) -> FixedNumber:
        """Write a number."""
        return FixedNumber(number, self.product.dtype)


def scores_of(fusion: Fusion, value: Value, masks: Sequence[Value]) -> Scores:
    """Write down what the op says of scores: scaled, then masked."""
    sizes, given = attention_sizes(value), value.attributes
    own = Leaf(LeafSource(), plain((*sizes.batch, sizes.rows, sizes.keys)), sizes.element)
    scores = Scores(own, own, causal=given["causal"])
    node: Node = own if given["scale"] == 1 else scores.computed("mul", own, scores.fixed(given["scale"]))
    causal = given["causal"]
    for mask in masks:
        read = _mask(fusion, mask)
        if dtype_of(mask) == "bool":
            node = scores.computed("select", read, node, scores.fixed(given["hidden"]))
            if isinstance(read, Computed) and read.op == "logical_not":
                node = scores.computed("select", read.operands[0], scores.fixed(given["hidden"]), node.operands[1])
        else:
            node = scores.computed("add", node, read)
    if given["causal"]:
        rows, columns = (Counted(Window(scores.shape, _steps(own, place)), "i64") for place in (-2, -1))
        behind = scores.computed("gt", columns, rows, dtype="bool")
        node = scores.computed("select", behind, scores.fixed(-math.inf), node)
    return Scores(own, node, causal)


def _steps(leaf: Leaf, place: int) -> tuple[int, ...]:
    rank = len(leaf.window.shape)
    return tuple(int(dimension == rank + place) for dimension in range(rank))


def _mask(fusion: Fusion, mask: Value) -> Node:
    """A mask as an expression of memory, or in memory, where the kernel's pass cannot compute it."""
    lazy = fusion.lazies[mask]
    lazy = read_from_memory(lazy, lazy.leaves())
    for node in walk(lazy.node):
        counts_matrices = isinstance(node, Counted) and any(node.window.strides[:-2])
        if isinstance(node, Taken) or node.dtype in SHORT_FLOATS or counts_matrices:
            return fusion.assembly.in_memory(lazy)
    return lazy.node


def _right(fusion: Fusion, value: Value) -> Leaf:
    """A tensor in memory, its last two dimensions exchanged."""
    leaf = fusion.assembly.in_memory(fusion.lazies[value])
    last = len(leaf.window.shape) - 1
    return Leaf(leaf.source, leaf.window.permuted((*range(last - 1), last, last - 1)), leaf.dtype)


def _factors(fusion: Fusion, left: Value, right: Value, *, once: bool = False) -> Factors:
    """The product of one tensor's rows with those of another."""
    leaf, across = fusion.assembly.in_memory(fusion.lazies[left]), _right(fusion, right)
    *batch, rows, inner = leaf.window.shape
    return factors_of(fusion, (tuple(batch), leaf, Source(across)), (rows, across.window.shape[-1], inner), once=once)


@dataclass(slots=True, eq=False)
class Attention:
    """An attention that waits for where its result goes; `numbers` are each row's highest score and its sum."""

    fusion: Fusion
    value: Value
    scores: Scores
    factors: Factors
    sizes: AttentionSizes
    schedule: AttentionSchedule
    values: tuple[Matrix | PackedMatrix, Location]
    numbers: tuple[Leaf, ...] = ()
    product: PendingKernel | None = None
    is_emitted: bool = False

    def settle(self) -> None:
        """Emit the kernel, because somebody reads its numbers."""
        if self.product is not None and not self.is_emitted:
            self.product.settle()

    def emit(self, out: Leaf, _epilogue: Epilogue, _inputs: tuple[Leaf, ...]) -> None:
        """Write the kernel; its numbers are stored once, however often it is emitted."""
        assembly = self.fusion.assembly
        others, body, results = body_of([self.scores.node], [self.scores.product])
        assert results == [len(others) + len(body) if body else 0]
        numbers = () if self.is_emitted else self.numbers
        self.is_emitted = True
        kernel = AttentionKernel(
            assembly.name("attention"), self.sizes, matrix_of(self.factors.left.window), self.factors.right,
            self.values[0], matrix_of(out.window), tuple(view_of(leaf.window, leaf.dtype) for leaf in others), body,
            self.schedule, self.value.attributes["zeros"], bool(numbers),
        )  # fmt: skip
        places = [assembly.location(leaf) for leaf in others]
        reads = (assembly.location(self.factors.left), self.factors.right_place, self.values[1], *places)
        for leaf in numbers:
            assembly.owners.pop(leaf.source.buffer, None)
        assembly.call(kernel, tuple(map(assembly.location, (out, *numbers))), reads)


def body_of(nodes: Sequence[Node], own: Sequence[Leaf]) -> tuple[list[Leaf], tuple[Instruction, ...], list[int]]:
    """Write expressions as one body that has products of its `own`; gives what it reads beside, and their numbers."""
    inputs: list[Leaf] = []

    def number_of(leaf: Leaf) -> int:
        if leaf in own:
            return own.index(leaf)
        for number, known in enumerate(inputs):
            if (known.source.buffer, known.window, known.dtype) == (leaf.source.buffer, leaf.window, leaf.dtype):
                return len(own) + number
        inputs.append(leaf)
        return len(own) + len(inputs) - 1

    for node in nodes:
        for leaf in walk(node):
            if isinstance(leaf, Leaf):
                number_of(leaf)
    writer = BodyWriter(number_of, len(own) + len(inputs))
    numbers = [writer.write(node) for node in nodes]
    return inputs, tuple(writer.body), numbers


def attend(fusion: Fusion, value: Value) -> tuple[Lazy, Lazy]:
    """Make the kernel of an attention: its rows of values, and the logarithm of each row's sum."""
    query, key, values, *masks = value.operands
    sizes, target = attention_sizes(value), fusion.assembly.target
    scores = scores_of(fusion, value, masks)
    factors = _factors(fusion, query, key, once=fusion.uses[key] == 1)
    causal = scores.causal or _ends_causal(fusion, value, scores)
    schedule = choose_attention(sizes, factors.schedule, target, causal=causal)
    attention = Attention(fusion, value, scores, factors, sizes, schedule, _values(fusion, values, sizes, schedule))
    rows, dtype = (*sizes.batch, sizes.rows), sizes.element
    home = plain((*rows, sizes.columns))
    attention.product = PendingKernel(fusion, home, dtype, attention.emit, _operand, sizes.columns, takes_code=False)
    if any(
        item.op == "item" and item.operands[0] is value and item.attributes["index"] for item in fusion.region.values
    ):
        attention.numbers = tuple(fusion.plain_arena(rows, dtype) for _ in range(2))
        for leaf in attention.numbers:
            fusion.assembly.owners[leaf.source.buffer] = (attention,)
        highest, total = attention.numbers
        logarithm = Computed("add", (Computed("log", (total,), dtype), highest), dtype)
        return attention.product.lazy(), Lazy(rows, logarithm)
    return attention.product.lazy(), Lazy(rows, FixedNumber(0.0, dtype))  # nobody reads it


def _operand(window: Window) -> EpilogueOperand | None:
    return EpilogueOperand(window.strides[:-2], window.strides[-2], window.strides[-1])


def _ends_causal(fusion: Fusion, value: Value, scores: Scores) -> bool:
    """Whether the last that masks do is to put -inf to the keys behind a query, and nothing else."""
    node = scores.node
    if not isinstance(node, Computed) or node.op != "select" or value.attributes["hidden"] != -math.inf:
        return False
    condition, yes, _ = node.operands
    return hides_keys_behind(condition, fusion.assembly, shown=not isinstance(yes, FixedNumber))


def _values(
    fusion: Fusion, value: Value, sizes: AttentionSizes, schedule: AttentionSchedule
) -> tuple[Matrix | PackedMatrix, Location]:
    right = fusion.assembly.in_memory(fusion.lazies[value])
    product, target = (sizes.rows, sizes.columns, sizes.keys), fusion.assembly.target
    if not schedule.key_block:
        return right_operand(fusion, Source(right), product, choose_schedule(right.dtype, product, target))
    # A block of keys must be rows side by side, which packed panels do not have.
    right = _side_by_side(fusion, right) if packs_right(product, matrix_of(right.window), right.dtype) else right
    return matrix_of(right.window), fusion.assembly.location(right)


def _side_by_side(fusion: Fusion, leaf: Leaf) -> Leaf:
    copy = fusion.plain_arena(leaf.window.shape, leaf.dtype)
    fusion.assembly.store_by_loop(Lazy(leaf.window.shape, leaf), copy)
    return copy


def attend_backward(fusion: Fusion, value: Value) -> tuple[Lazy, ...]:
    """Make the kernel of all three gradients of an attention, which are of their inputs' shapes, row by row."""
    gradient, query, key, values, logarithm, weight, *masks = value.operands
    sizes, assembly = attention_sizes(value), fusion.assembly
    scores = scores_of(fusion, value, masks)
    products = _factors(fusion, query, key), _factors(fusion, gradient, values)
    pull = Leaf(LeafSource(), scores.product.window, sizes.element)
    causal = scores.causal or any(_adds_causal(fusion, mask) for mask in masks)
    schedule = choose_attention_gradient(
        sizes, products[0].schedule, products[1].schedule, assembly.target, causal=causal
    )
    read = [_rows(fusion, operand) for operand in (query, gradient, key)]
    outs = [_place(fusion, value, index) for index in range(3)]
    inputs, body, (share, slope) = body_of(
        _shares_and_slopes(value, scores, pull, [_for_each_row(fusion, each, scores) for each in (logarithm, weight)]),
        [scores.product, pull],
    )
    (for_query, for_key, for_value), rows = ([matrix_of(leaf.window) for leaf in leaves] for leaves in (outs, read))
    operands = AttentionOperands(
        for_query, for_key, for_value, rows[0], products[0].right, rows[1], products[1].right, rows[2]
    )
    kernel = AttentionGradientKernel(
        assembly.name("attention_gradient"), sizes, operands,
        tuple(view_of(leaf.window, leaf.dtype) for leaf in inputs), body, share, slope, schedule,
    )  # fmt: skip
    places = [assembly.location(leaf) for leaf in (*read, *inputs)]
    reads = (places[0], products[0].right_place, places[1], products[1].right_place, *places[2:])
    assembly.call(kernel, tuple(map(assembly.location, outs)), reads)
    return tuple(Lazy(leaf.window.shape, leaf) for leaf in outs)


def _shares_and_slopes(value: Value, scores: Scores, pull: Leaf, rows: Sequence[Leaf]) -> list[Node]:
    """The shares of softmax again, exp(score - logarithm), and what scores get: share * (pull - weight) * scale."""
    logarithm, weight = rows
    share: Node = scores.computed("exp", scores.computed("sub", scores.node, logarithm))
    if value.attributes["zeros"]:
        hidden = scores.computed("eq", scores.node, scores.fixed(-math.inf), dtype="bool")
        share = scores.computed("select", hidden, scores.fixed(0.0), share)
    slope = scores.computed("mul", share, scores.computed("sub", pull, weight))
    scale = value.attributes["scale"]
    return [share, slope if scale == 1 else scores.computed("mul", slope, scores.fixed(scale))]


def _adds_causal(fusion: Fusion, mask: Value) -> bool:
    """Whether a mask adds -inf to the scores of keys behind a query: shares there are 0, as far as all is finite."""
    node = fusion.lazies[mask].node
    if not isinstance(node, Computed) or node.op != "select":
        return False
    condition, yes, no = node.operands
    hidden = [isinstance(one, FixedNumber) and one.number == -math.inf for one in (yes, no)]
    return any(hidden) and hides_keys_behind(condition, fusion.assembly, shown=hidden[1])


def _for_each_row(fusion: Fusion, value: Value, scores: Scores) -> Leaf:
    """One number a row, repeated for all keys."""
    leaf = fusion.assembly.in_memory(fusion.lazies[value])
    window = leaf.window.reshaped((*leaf.window.shape, 1))
    assert window is not None
    return Leaf(leaf.source, window.expanded(scores.shape), leaf.dtype)


def _rows(fusion: Fusion, value: Value) -> Leaf:
    """A tensor in memory, its rows near each other and each side by side: it is a right operand too."""
    leaf = fusion.assembly.in_memory(fusion.lazies[value])
    rows, columns = leaf.window.shape[-2:]
    packs = packs_right((rows, columns, rows), matrix_of(leaf.window), leaf.dtype)
    return leaf if not packs and leaf.window.strides[-1] == 1 else _side_by_side(fusion, leaf)


def _place(fusion: Fusion, value: Value, index: int) -> Leaf:
    """Where one of several results goes: where it is handed out, if it is."""
    kind = tensor_type(value.operands[1 + index])
    for item in fusion.region.values:
        if item.op == "item" and item.operands[0] is value and item.attributes["index"] == index:
            return fusion.place_for(item, plain(kind.shape))
    return fusion.plain_arena(kind.shape, dtype_of(value.operands[1 + index]))


# A condition may be proven to hold exactly for the keys after a row: a comparison of positions, or a constant triangle.

# What a comparison with 0 of key - row + start says of key - row + start - 1, and of its opposite.
STRICT = {"gt": (1, 0), "ge": (1, 1), "lt": (-1, 0), "le": (-1, 1)}
OPPOSITE = {"gt": "le", "ge": "lt", "lt": "ge", "le": "gt"}


@dataclass(frozen=True, slots=True)
class Position:
    """An integer that is key * keys + row * rows + start."""

    keys: int
    rows: int
    start: int

    def minus(self, other: Position) -> Position:
        """The difference of two."""
        return Position(self.keys - other.keys, self.rows - other.rows, self.start - other.start)

    def times(self, factor: int) -> Position:
        """A multiple."""
        return Position(self.keys * factor, self.rows * factor, self.start * factor)


def hides_keys_behind(condition: Node, assembly: Assembly, *, shown: bool) -> bool:
    """Whether a condition holds exactly for the keys after a row; or exactly for the others, which are `shown`."""
    while isinstance(condition, Computed):
        if condition.op in ("logical_not", "bitwise_not") and condition.dtype == "bool":
            condition, shown = condition.operands[0], not shown
        elif condition.op == "select" and _is_number(condition.operands[1], 1) and _is_number(condition.operands[2], 0):
            condition = condition.operands[0]
        else:
            break
    if isinstance(condition, Leaf):
        return _is_triangle(condition, assembly, shown=shown)
    if not isinstance(condition, Computed) or condition.op not in STRICT:
        return False
    left, right = (_line(operand, assembly) for operand in condition.operands)
    if left is None or right is None:
        return False
    sign, equal = STRICT[OPPOSITE[condition.op] if shown else condition.op]
    # Now the keys are hidden where this is above 0.
    found = left.minus(right).times(sign)
    return (found.keys, found.rows, found.start + equal) == (1, -1, 0)


def _line(node: Node, assembly: Assembly) -> Position | None:
    if isinstance(node, FixedNumber):
        return Position(0, 0, node.number) if isinstance(node.number, int) else None
    if isinstance(node, Counted) or (isinstance(node, Leaf) and _counts(node, assembly)):
        *_, rows, keys = node.window.strides
        return None if any(node.window.strides[:-2]) else Position(keys, rows, node.window.offset)
    if not isinstance(node, Computed) or node.op not in ("add", "sub") or node.dtype != "i64":
        return None
    left, right = (_line(operand, assembly) for operand in node.operands)
    if left is None or right is None:
        return None
    return left.minus(right if node.op == "sub" else right.times(-1))


def _counts(leaf: Leaf, assembly: Assembly) -> bool:
    """Whether what is read is a constant that holds 0, 1, 2 and so on."""
    table = _constant(leaf, assembly)
    return table is not None and leaf.dtype == "i64" and torch.equal(table.reshape(-1), torch.arange(table.numel()))


def _constant(leaf: Leaf, assembly: Assembly) -> torch.Tensor | None:
    buffer = assembly.buffers[leaf.source.buffer]
    known = leaf.source.pending is None and buffer.kind == "constant"
    return assembly.constants[buffer.index] if known else None


def _is_number(node: Node, number: float) -> bool:
    return isinstance(node, FixedNumber) and node.number == number


def _is_triangle(mask: Leaf, assembly: Assembly, *, shown: bool) -> bool:
    """Whether a mask is a constant that names the keys after a row, or the others, the same for all of the batch."""
    table = _constant(mask, assembly)
    *_, rows, keys = mask.window.shape
    if table is None or mask.window.offset or table.numel() != rows * keys:
        return False
    if any(mask.window.strides[:-2]) or mask.window.strides[-2:] != (keys, 1):
        return False
    whole = torch.ones(rows, keys, dtype=table.dtype)
    return torch.equal(table.reshape(rows, keys), whole.tril() if shown else whole.triu(1))
