"""Fuse a Region into a Plan: elementwise trees, reductions, products and moves become as few kernels as they can.

Values are taken in order and kept as expressions for as long as possible; memory is used where a kernel needs its
operand there, where a costly value is read more than once, and where the region hands something out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch

from weft.errors import InternalError
from weft.ir.graph import Value
from weft.ir.types import TensorType
from weft.plan.form.plan import Plan
from weft.plan.fuse.attention import attend, attend_backward
from weft.plan.fuse.conv_gradients import convolve_back, weigh
from weft.plan.fuse.convolutions import convolve, convolve_bytes, has_border
from weft.plan.fuse.fusion import Fusion, declared, dtype_of, extent_of, lazy_size, preferred, tensor_type
from weft.plan.fuse.image_layout import channels_last_strides
from weft.plan.fuse.image_limits import LimitedImages, limited_images
from weft.plan.fuse.indexing import check, gather, scatter, take
from weft.plan.fuse.matmul import PendingKernel, multiply_either_way
from weft.plan.fuse.prepare import (
    is_prepared,
    is_prepared_product,
    is_repeated,
    prepare,
    prepare_bytes,
    prepare_product,
)
from weft.plan.fuse.recurrent import recur
from weft.plan.fuse.rows import is_of_rows, reduce_rows, settle_scalars
from weft.plan.fuse.windows import pool, pool_back
from weft.plan.kernels.expression import CHEAP_OPS
from weft.plan.kernels.top import TopKernel
from weft.plan.regions.indices import SCATTERS, VIEWS, Change, counted
from weft.plan.regions.lazy import (
    Computed,
    FixedNumber,
    Lazy,
    Leaf,
    Node,
    Taken,
    Window,
    in_order_of,
    plain,
    same_layout,
    walk,
)
from weft.plan.regions.region import REDUCTIONS, Region
from weft.target import Target

MOST_REPEATED = 2
LONGEST_EXPRESSION = 48
IMAGE_RANK = 4  # batch, channels, rows, columns
MOST_LOOKED_AHEAD = 32  # values, to see whether all that is made of one meets again


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """A plan of a region, the constants its buffers of that kind hold, and the strides of its outputs, in order."""

    plan: Plan
    constants: tuple[torch.Tensor, ...]
    strides: tuple[tuple[int, ...], ...]


class Fuser(Fusion):
    """Fuses one region."""

    def __init__(self, region: Region, target: Target, *, varies: bool = False) -> None:
        super().__init__(region, target, varies=varies)
        self._unread: set[Value] = set()  # what convolutions and poolings have no need of
        for value in region.values:
            found = limited_images(value)
            if found is not None and not has_border(value, target):
                self._end_at(value, found)

    def _end_at(self, value: Value, found: LimitedImages) -> None:
        """Let a convolution or pooling end where its images do, instead of what hides the rest of them."""
        hidden, position = value.operands[0], self.region.values.index(value)
        self.limited[value] = found
        self.uses[found.images] += 1
        self.uses[hidden] -= 1
        for operand in (found.images, *found.numbers):
            self.last_use[operand] = max(self.last_use.get(operand, -1), position)
        if not self.uses[hidden]:
            self._unread.add(hidden)
            self.uses.subtract(hidden.operands)

    def fuse(self) -> Fused:
        """Make the plan."""
        for value in self.region.inputs:
            self._add_input(value)
        self.outputs = {value: self._output_buffer(value) for value in self.region.outputs}
        prepared = prepare_bytes(self, lambda value: RULES.get(value.op, compute)(self, value))
        for position, value in enumerate(self.region.values):
            if value in self._unread:
                continue
            self.position = position
            if value in prepared:
                if value in self.outputs:
                    self._hand_out(value, self.outputs[value])
                continue
            if value.op == "item":
                self.lazies[value] = self._keep(value, self.several[value.operands[0]][value.attributes["index"]])
            elif value.op == "library":
                check(self, value)
            elif isinstance(value.type, TensorType):
                self.lazies[value] = self._keep(value, RULES.get(value.op, compute)(self, value))
            else:
                self.several[value] = RULES_OF_SEVERAL[value.op](self, value)
            if value in self.outputs:
                self._hand_out(value, self.outputs[value])
        self.assembly.settle_all()
        self._check_all_is_written()
        return Fused(
            Plan(
                tuple(self.assembly.buffers),
                tuple(map(self.loose.moved, self.assembly.calls)),
                tuple(self.assembly.packing),
                tuple(self.assembly.checks),
            ),
            tuple(self.assembly.constants),
            tuple(self.outputs[value].window.strides for value in self.region.outputs),
        )

    def _check_all_is_written(self) -> None:
        """Raise an InternalError if something that the region hands out is computed nowhere."""
        written = {place.buffer for call in self.assembly.calls for place in call.writes}
        lost = [value for value, out in self.outputs.items() if out.source.buffer not in written]
        if any(tensor_type(value).size for value in lost):
            raise InternalError(f"a plan leaves out what it hands out: {', '.join(map(str, lost))}")

    def _add_input(self, value: Value) -> None:
        kind = tensor_type(value)
        number = self.assembly.buffer("input", extent_of(kind), dtype_of(value))
        self.lazies[value] = Lazy(kind.shape, self.assembly.leaf_in(number, declared(kind), dtype_of(value)))

    def _output_buffer(self, value: Value) -> Leaf:
        kind = tensor_type(value)
        number = self.assembly.buffer("output", extent_of(kind), dtype_of(value))
        return self.assembly.leaf_in(number, declared(kind), dtype_of(value))

    def _hand_out(self, value: Value, out: Leaf) -> None:
        lazy = self.lazies[value]
        if value in self.region.loose:
            out = self.outputs[value] = self.loose.place(lazy, out)
        node = lazy.node
        if isinstance(node, Leaf) and node.source.buffer == out.source.buffer and same_layout(node.window, out.window):
            return
        self.assembly.store(lazy, out)
        if self.uses[value] > 1 and not is_of_rows(lazy):
            self.lazies[value] = Lazy(lazy.shape, out)

    def _keep(self, value: Value, lazy: Lazy) -> Lazy:
        """Put an expression into memory if several read it and it is dear, or if it has grown too long."""
        if value in self.outputs:
            return lazy
        whole = list(walk(lazy.node))
        nodes = [node for node in whole if isinstance(node, Computed)]
        dear = (
            len(nodes) > MOST_REPEATED or any(node.op not in CHEAP_OPS for node in nodes) or any(map(_is_dear, whole))
        )
        several = self.uses[value] > 1 and not self._meets_again(value, LONGEST_EXPRESSION - len(nodes))
        several = dear and (several or value in self.region.stored) and not (self.varies and self._is_of_places(lazy))
        if several or len(nodes) > LONGEST_EXPRESSION:
            return Lazy(lazy.shape, prepare(self, lazy) if is_prepared(self, lazy) else self.assembly.in_memory(lazy))
        return lazy

    def _is_of_places(self, lazy: Lazy) -> bool:
        """Whether an expression is a mask made of positions and sizes: kernels end where those that they read do."""
        sources = [leaf.source for leaf in lazy.leaves() if any(leaf.window.strides)]
        known = [self.assembly.buffers[source.buffer].kind for source in sources if source.pending is None]
        return lazy.dtype == "bool" and len(known) == len(sources) and {*known} <= {"constant"}

    def _meets_again(self, value: Value, most: int) -> bool:
        """Whether all that is made of a value is elementwise, at most so many ops, and meets in one of them.

        That one computes the value once, however many of its operands need it.
        """
        inside, open_uses = {value}, self.uses[value]
        for later in self.region.values[self.position + 1 : self.position + 1 + MOST_LOOKED_AHEAD]:
            found = sum(operand in inside for operand in later.operands)
            if not found:
                continue
            if later.op in RULES or later.op == "item" or not isinstance(later.type, TensorType):
                return False
            open_uses -= found
            if not open_uses:
                return True
            inside.add(later)
            open_uses += self.uses[later]
            if len(inside) > most:
                return False
        return False


def _is_dear(node: Node) -> bool:
    """Whether a node reads elements at indices, or a product that is not computed yet."""
    return isinstance(node, Taken) or (isinstance(node, Leaf) and isinstance(node.source.pending, PendingKernel))


Rule = Callable[[Fusion, Value], Lazy]


def compute(fuser: Fusion, value: Value) -> Lazy:
    """An elementwise op."""
    _finish_all_but_last(fuser, value)
    operands = tuple(lazy.node for lazy in _prepared(fuser, [fuser.lazies[operand] for operand in value.operands]))
    return Lazy(tensor_type(value).shape, Computed(value.op, operands, dtype_of(value)))


def _prepared(fuser: Fusion, operands: list[Lazy]) -> list[Lazy]:
    """Operands of which those that read weights alone, beside others that do not, are computed before any call."""
    if len(operands) < 2 or all(not isinstance(lazy.node, Computed) for lazy in operands):
        return operands
    own = [is_prepared(fuser, lazy) for lazy in operands]
    if not any(own) or all(mine or not lazy.leaves() for mine, lazy in zip(own, operands, strict=True)):
        return operands
    return [
        Lazy(lazy.shape, prepare(fuser, lazy)) if mine and is_repeated(lazy) else lazy
        for mine, lazy in zip(own, operands, strict=True)
    ]


def _finish_all_but_last(fuser: Fusion, value: Value) -> None:
    """Put operands that wait for different products into memory, but the one with the youngest product.

    Each then ends with elementwise code of its own. A sum of many products grows in one place instead of being added up
    behind the last of them, when all others have been stored.
    """
    ages = {operand: age for operand in value.operands if (age := _age(fuser.lazies[operand])) is not None}
    for operand in sorted(ages, key=ages.__getitem__):
        if ages[operand] < max(ages.values()):
            lazy = fuser.lazies[operand]
            fuser.lazies[operand] = Lazy(lazy.shape, fuser.assembly.in_memory(lazy))


def _age(lazy: Lazy) -> int | None:
    """When the product was met that can compute an expression; None if none can."""
    products = {leaf.source.pending for leaf in lazy.leaves() if isinstance(leaf.source.pending, PendingKernel)}
    fitting = all(one.computes(lazy.dtype) and one.home.size == lazy_size(lazy) for one in products)
    return max((one.met for one in products), default=None) if fitting else None


def constant(fuser: Fusion, value: Value) -> Lazy:
    """A constant, made once: a check that ran before may have needed it."""
    return fuser.lazies[value] if value in fuser.lazies else fuser.constant(value)


def count(_fuser: Fusion, value: Value) -> Lazy:
    """Positions along a dimension."""
    return counted(value, tensor_type(value))


def find_top(fuser: Fusion, value: Value) -> Lazy:
    """Where the largest or smallest of rows are."""
    shape, dtype = tensor_type(value.operands[0]).shape, dtype_of(value.operands[0])
    numbers = fuser.assembly.in_memory(fuser.operand(value))
    if not same_layout(replace(numbers.window, offset=0), plain(shape)):
        row_by_row = fuser.plain_arena(shape, dtype)
        fuser.assembly.store(Lazy(shape, numbers), row_by_row)
        numbers = row_by_row
    given = value.attributes
    out = fuser.place_for(value, plain(tensor_type(value).shape))
    kernel = TopKernel(
        fuser.assembly.name("top"),
        dtype,
        prod(shape[:-1]),
        shape[-1],
        given["count"],
        given["largest"],
        given["sorted"],
    )
    fuser.assembly.call(kernel, (fuser.assembly.location(out),), (fuser.assembly.location(numbers),))
    return Lazy(tensor_type(value).shape, out)


def product(fuser: Fusion, value: Value) -> Lazy:
    """A product of matrices, computed before any call where only weights decide it."""
    if is_prepared_product(fuser, value):
        return prepare_product(fuser, value, multiply_either_way)
    return multiply_either_way(fuser, value)


def convolution(fuser: Fusion, value: Value) -> Lazy:
    """A convolution, of floats or of integers of 8 bits."""
    return (convolve_bytes if dtype_of(value) == "i32" else convolve)(fuser, value)


def view(change: Change) -> Rule:
    """The rule of a view: the operand's leaves are seen through it, or the operand is put into memory."""

    def rule(fuser: Fusion, value: Value) -> Lazy:
        shape = tensor_type(value).shape
        lazy = settle_scalars(fuser.operand(value), shape)
        found = lazy.viewed(lambda window: change(window, value), shape)
        if found is not None:
            return found
        beside = None if value in fuser.outputs else _with_channels_beside(lazy, shape)
        if value.op == "reshape" and beside is not None:
            out = fuser.arena(beside[0], lazy.dtype)
            fuser.assembly.store(lazy, Leaf(out.source, beside[1], lazy.dtype))
            return Lazy(shape, out)
        home = preferred(lazy)
        if change(home, value) is None:
            home = plain(lazy.shape)
        handed = value.op == "reshape" and home == plain(lazy.shape)
        key = (lazy.node.source.buffer, lazy.node.window) if isinstance(lazy.node, Leaf) else None
        if handed and key in fuser.rows:  # another reshape of the same has laid it out row by row
            memory = fuser.rows[key]
        elif isinstance(lazy.node, Leaf) and fuser.is_weight(lazy.node):  # laid out anew when it has changed
            memory = fuser.prepared(lazy, home)
        else:
            memory = fuser.place_for(value, plain(shape)) if handed else fuser.arena(home, lazy.dtype)
            memory = Leaf(memory.source, home, lazy.dtype)
            fuser.assembly.store(lazy, memory)
        if handed and key is not None and key[0] >= 0:
            fuser.rows[key] = memory
        again = Lazy(lazy.shape, memory).viewed(lambda window: change(window, value), shape)
        assert again is not None
        return again

    return rule


def _with_channels_beside(lazy: Lazy, shape: tuple[int, ...]) -> tuple[Window, Window] | None:
    """Where images put together of others lie, if the channels of those were inside of rows: as such, and as parts."""
    if len(shape) != IMAGE_RANK or len(lazy.shape) <= IMAGE_RANK or lazy.shape[:2] != shape[:2]:
        return None
    steps = preferred(lazy).strides
    whole = in_order_of(shape, channels_last_strides(shape))
    parts = whole.reshaped(lazy.shape)
    return (whole, parts) if parts is not None and steps[1] < max(steps[2:]) else None


def pad(fuser: Fusion, value: Value) -> Lazy:
    """A copy inside a border."""
    lazy, shape = fuser.operand(value), tensor_type(value).shape
    out = fuser.place_for(value, _in_layout_of_most(shape, [lazy]))
    fuser.assembly.store_by_loop(Lazy(shape, FixedNumber(value.attributes["value"], lazy.dtype)), out)
    low = value.attributes["low"]
    stop = tuple(first + extent for first, extent in zip(low, lazy.shape, strict=True))
    inside = out.window.sliced(low, stop, (1,) * len(shape))
    fuser.assembly.store(lazy, Leaf(out.source, inside, out.dtype))
    return Lazy(shape, out)


def concatenate(fuser: Fusion, value: Value) -> Lazy:
    """Each operand is computed into its part."""
    shape, dimension = tensor_type(value).shape, value.attributes["dimension"]
    dtype = dtype_of(value)
    out = fuser.place_for(value, _in_layout_of_most(shape, [fuser.lazies[operand] for operand in value.operands]))
    first = 0
    for operand in value.operands:
        lazy = fuser.lazies[operand]
        start = tuple(first if i == dimension else 0 for i in range(len(shape)))
        first += lazy.shape[dimension]
        stop = tuple(first if i == dimension else extent for i, extent in enumerate(shape))
        part = out.window.sliced(start, stop, (1,) * len(shape))
        fuser.assembly.store(lazy, Leaf(out.source, part, dtype))
    return Lazy(shape, out)


def _in_layout_of_most(shape: tuple[int, ...], parts: list[Lazy]) -> Window:
    """The layout that most elements of the parts have: images with channels side by side stay so."""
    votes: Counter[tuple[int, ...]] = Counter()
    for part in parts:
        votes[in_order_of(shape, preferred(part).strides).strides] += lazy_size(part)
    return Window(shape, votes.most_common(1)[0][0]) if shape else plain(shape)


RULES: Mapping[str, Rule] = {
    "constant": constant,
    "iota": count,
    "top_places": find_top,
    **{op: view(change) for op, change in VIEWS.items()},
    "pad": pad,
    "concat": concatenate,
    "matmul": product,
    "convolution": convolution,
    "convolution_input_gradient": convolve_back,
    "convolution_weight_gradient": weigh,
    "take": take,
    "gather": gather,
    **dict.fromkeys(SCATTERS, scatter),
    "average_pool": lambda fuser, value: pool(fuser, value)[0],
    "max_pool_gradient": pool_back,
    "average_pool_gradient": pool_back,
    **dict.fromkeys(REDUCTIONS, reduce_rows),
}

# For ops that give several tensors.
RULES_OF_SEVERAL: Mapping[str, Callable[[Fusion, Value], tuple[Lazy, ...]]] = {
    "max_pool": pool,
    "attention": attend,
    "attention_gradient": attend_backward,
    "recurrent": recur,
}


def fuse(region: Region, target: Target, *, varies: bool = False) -> Fused:
    """Make the plan of a region, without lanes and offsets; it may be one for calls of smaller sizes, too."""
    return Fuser(region, target, varies=varies).fuse()
