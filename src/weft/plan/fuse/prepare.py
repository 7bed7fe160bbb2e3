"""Compute small expressions of weights alone when a weight has changed, not at every call.

The scale and the shift that batch norm makes of its four tensors are such expressions. Behind a product, what its
columns are multiplied with and what is added to them go into the product itself: the one into its packed weights, the
other to where its sums start. Products of weights alone are such expressions too, as that of the zeros from which a
recurrent layer starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from weft.ir.graph import Value
from weft.ir.ops import OPS
from weft.ir.types import TensorType
from weft.plan.fuse.fusion import Fusion, dtype_of, tensor_type
from weft.plan.kernels.gemm import EpilogueOperand
from weft.plan.regions.lazy import Computed, FixedNumber, Lazy, Leaf, Node, Window, in_order_of, plain, walk
from weft.plan.regions.region import MOVES, REDUCTIONS

PREPARED_OPS = MOVES | REDUCTIONS | {name for name, op in OPS.items() if op.elementwise}
MOST_PREPARED = 16 * 1024  # numbers: more are not kept from call to call
LEAST_REPEATED = 4  # places that read each number; for fewer there is too little to spare

Steps = Callable[[Window], EpilogueOperand | None]


def is_prepared(fusion: Fusion, lazy: Lazy) -> bool:
    """Tell whether an expression reads weights alone, some numbers, but few enough to keep what it makes of them."""
    leaves = []
    for node in walk(lazy.node):
        if isinstance(node, Leaf) and node.source.pending is None and fusion.is_weight(node):
            leaves.append(node)
        elif not isinstance(node, (FixedNumber, Computed)):
            return False
    return bool(leaves) and 0 < _without_repeats(leaves).size <= MOST_PREPARED


def is_repeated(lazy: Lazy) -> bool:
    """Tell whether an expression has the same few numbers at many places."""
    return _without_repeats(lazy.leaves()).size * LEAST_REPEATED <= lazy.leaves()[0].window.size


def prepare(fusion: Fusion, lazy: Lazy) -> Leaf:
    """Compute an expression of weights when one of them has changed; gives where it then lies."""
    if isinstance(lazy.node, Leaf):
        return lazy.node
    small = _without_repeats(lazy.leaves())
    seen = lazy.viewed(lambda window: replace(window, shape=small.shape), small.shape)
    assert seen is not None, "a window with fewer places is one too"
    out = fusion.prepared(seen, in_order_of(small.shape, small.strides))
    steps = [step if extent > 1 else 0 for extent, step in zip(small.shape, out.window.strides, strict=True)]
    return replace(out, window=Window(lazy.shape, tuple(steps)))


def is_prepared_product(fusion: Fusion, value: Value) -> bool:
    """Tell whether a product is of weights, or of these and constants, and has few enough numbers to keep.

    A sum of nothing is computed like any other value: nothing is packed for it.
    """
    nodes = [node for operand in value.operands for node in walk(fusion.lazies[operand].node)]
    leaves = [node for node in nodes if isinstance(node, Leaf)]
    return (
        0 < tensor_type(value).size <= MOST_PREPARED
        and all(tensor_type(operand).size for operand in value.operands)
        and all(isinstance(node, (Leaf, FixedNumber, Computed)) for node in nodes)
        and any(map(fusion.is_weight, leaves))
        and all(fusion.is_weight(leaf) or fusion.is_constant(leaf) for leaf in leaves)
    )


def prepare_bytes(fuser: Fusion, rule: Callable[[Value], Lazy]) -> frozenset[Value]:
    """Compute integers of 8 bits that are made of weights, and what else is, when a weight has changed.

    Gives the values that are not to be computed again. What others read of them lies in memory of its own.
    """
    prepared, fixed = _made_of_weights(fuser)
    if not prepared:
        return prepared
    values = fuser.region.values
    read = {operand for value in values if value not in prepared for operand in value.operands}
    read.update(fuser.region.outputs)
    with fuser.packing():
        for position, value in enumerate(values):
            if value not in prepared and value not in fixed:
                continue
            fuser.position = position
            fuser.lazies[value] = rule(value)
            if value in read and value in prepared:
                out = fuser.place_for_weights(plain(tensor_type(value).shape), dtype_of(value))
                fuser.assembly.store(fuser.lazies[value], out)
                fuser.lazies[value] = Lazy(tensor_type(value).shape, out)
        fuser.assembly.settle_all()
    fuser.position = 0
    return prepared


def _made_of_weights(fusion: Fusion) -> tuple[frozenset[Value], frozenset[Value]]:
    """What integers of 8 bits are made of, where that is weights alone, and what else is made of that, but moves.

    Gives what is made of weights, and what of constants alone.
    """
    values, weights = fusion.region.values, fusion.region.weights
    made: set[Value] = set(weights)
    fixed: set[Value] = {value for value in values if value.op == "constant"}
    for value in values:
        if isinstance(value.type, TensorType) and value.op in PREPARED_OPS and value.operands:
            if all(operand in fixed for operand in value.operands):
                fixed.add(value)
            elif all(operand in made or operand in fixed for operand in value.operands):
                made.add(value)
    bytes_of_weights = {value for value in made - weights if dtype_of(value) == "i8"}
    found = _needed(values, bytes_of_weights) & made
    for value in values:
        if value in made and not found.isdisjoint(value.operands) and not _stays(value):
            found.add(value)
    found = _needed(values, found) & made - weights
    return frozenset(found), frozenset(fixed & _needed(values, found))


def _needed(values: Sequence[Value], wanted: set[Value]) -> set[Value]:
    """Values with all that they are made of."""
    found = set(wanted)
    for value in reversed(values):
        if value in found:
            found.update(value.operands)
    return found


def _stays(value: Value) -> bool:
    """Whether kernels do as well without a value in memory: it only moves numbers, or widens integers of 8 bits."""
    return value.op in MOVES or (value.op == "cast" and dtype_of(value.operands[0]) == "i8")


def prepare_product(fusion: Fusion, value: Value, rule: Callable[[Fusion, Value], Lazy]) -> Lazy:
    """Compute a product of weights when one of them has changed; gives where it then lies."""
    shape = tensor_type(value).shape
    out = fusion.place_for_weights(plain(shape), dtype_of(value))
    with fusion.packing():
        fusion.assembly.store(rule(fusion, value), out)
    return Lazy(shape, out)


def _without_repeats(leaves: list[Leaf]) -> Window:
    """The places of leaves of one shape, with a single one along each dimension that all of them repeat."""
    shape = leaves[0].window.shape
    steps = tuple(max(abs(leaf.window.strides[place]) for leaf in leaves) for place in range(len(shape)))
    return Window(tuple(extent if step else 1 for extent, step in zip(shape, steps, strict=True)), steps)


@dataclass(frozen=True, slots=True)
class Folded:
    """An expression of a product whose columns are multiplied by weights and added to some, and what is left of it."""

    scale: Lazy
    shift: Lazy | None
    last: Node
    """What stands for the product so scaled and shifted in the expression."""


def fold(fusion: Fusion, lazy: Lazy, own: Leaf, steps: Steps) -> Folded | None:
    """Find what multiplies a product by weights, a number for each column, and what is added before and after."""
    scale: Node | None = None
    shift: Node | None = None
    last: Node = own
    for reader, other in _by_columns(fusion, lazy, own, steps):
        last = reader
        if reader.op == "mul":
            scale = other if scale is None else Computed("mul", (scale, other), reader.dtype)
            shift = None if shift is None else Computed("mul", (shift, other), reader.dtype)
        elif shift is not None:
            shift = Computed(reader.op, (shift, other), reader.dtype)
        else:
            shift = other if reader.op == "add" else Computed("neg", (other,), reader.dtype)
    if scale is None:
        return None
    return Folded(Lazy(lazy.shape, scale), None if shift is None else Lazy(lazy.shape, shift), last)


def _by_columns(fusion: Fusion, lazy: Lazy, own: Leaf, steps: Steps) -> Iterator[tuple[Computed, Node]]:
    """The operations behind a product, as far as each alone reads the one before, and weights by column."""
    node: Node = own
    while True:
        readers = [one for one in walk(lazy.node) if isinstance(one, Computed) and node in one.operands]
        if len(readers) != 1 or readers[0].op not in ("add", "sub", "mul") or readers[0].operands.count(node) != 1:
            return
        [reader] = readers
        other = reader.operands[1 - reader.operands.index(node)]
        if reader.op == "sub" and reader.operands[0] is not node:
            return
        if not _is_by_column(fusion, Lazy(lazy.shape, other), own.dtype, steps):
            return
        yield reader, other
        node = reader


def _is_by_column(fusion: Fusion, lazy: Lazy, dtype: str, steps: Steps) -> bool:
    found = [steps(leaf.window) for leaf in lazy.leaves()]
    apart = all(one is not None and one.row == 0 and not any(one.batch) and one.column == 1 for one in found)
    return apart and lazy.dtype == dtype and is_prepared(fusion, lazy)
