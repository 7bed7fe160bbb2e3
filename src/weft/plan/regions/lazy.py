"""Hold elementwise expressions that are not computed yet: a small graph over windows of memory, as one kernel takes it.

All leaves of an expression have its shape: a leaf that repeats has steps of 0. A view of an expression is the same
expression over views of its leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from weft.ir.types import row_major
from weft.plan.kernels.expression import Instruction


@dataclass(frozen=True, slots=True)
class Window:
    """Element [i, j, ...] lies at offset + i * strides[0] + j * strides[1] + ..., counted in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_plain(self) -> bool:
        """Whether the elements lie row by row, without gaps, from the start on."""
        return self.offset == 0 and all(
            stride == expected
            for stride, expected, extent in zip(self.strides, row_major(self.shape), self.shape, strict=True)
            if extent != 1
        )

    def permuted(self, order: Sequence[int]) -> Window:
        """The same elements with dimensions in another order."""
        return Window(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order), self.offset)

    def expanded(self, shape: Sequence[int]) -> Window:
        """Dimensions of size 1, and new ones in front, repeated."""
        new = len(shape) - len(self.shape)
        kept = zip(self.shape, self.strides, shape[new:], strict=True)
        steps = tuple(0 if extent == 1 and wanted != 1 else stride for extent, stride, wanted in kept)
        return Window(tuple(shape), (*([0] * new), *steps), self.offset)

    def sliced(self, start: Sequence[int], stop: Sequence[int], step: Sequence[int]) -> Window:
        """Every step-th element from start to before stop, in each dimension."""
        cuts = list(zip(start, stop, step, strict=True))
        shape = tuple(max(0, -((first - last) // every)) for first, last, every in cuts)
        offset = self.offset + sum(first * stride for (first, _, _), stride in zip(cuts, self.strides, strict=True))
        return Window(shape, tuple(s * every for s, (_, _, every) in zip(self.strides, cuts, strict=True)), offset)

    def reversed(self, dimensions: Sequence[int]) -> Window:
        """Dimensions run through backwards."""
        offset = self.offset + sum(max(self.shape[i] - 1, 0) * self.strides[i] for i in dimensions)
        steps = tuple(-stride if i in dimensions else stride for i, stride in enumerate(self.strides))
        return Window(self.shape, steps, offset)

    def reshaped(self, shape: Sequence[int]) -> Window | None:
        """The same elements, row by row, in another shape; None where no steps give them."""
        if self.size == 0:
            return Window(tuple(shape), row_major(tuple(shape)), self.offset)
        strides: list[int] = []
        old = _runs(self)
        for extent in reversed(shape):
            if extent == 1:
                strides.append(0 if not strides else strides[-1])
                continue
            while old and old[-1][0] == 1:
                old.pop()
            if not old:
                return None
            run, stride = old.pop()
            if run % extent:
                return None
            strides.append(stride)
            old.append((run // extent, stride * extent))
        return Window(tuple(shape), tuple(reversed(strides)), self.offset)


def _runs(window: Window) -> list[tuple[int, int]]:
    """Dimensions merged where one continues the other: (number of elements, step) from the outside in."""
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(window.shape, window.strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == stride * extent:
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    return runs


def plain(shape: Sequence[int]) -> Window:
    """Elements row by row, without gaps."""
    return Window(tuple(shape), row_major(tuple(shape)))


def in_order_of(shape: Sequence[int], strides: Sequence[int]) -> Window:
    """Elements without gaps, dimensions nested as these strides nest them (a repeated dimension outermost)."""
    order = sorted(range(len(shape)), key=lambda i: (-strides[i] if strides[i] > 0 else -float("inf"), i))
    steps = [0] * len(shape)
    step = 1
    for dimension in reversed(order):
        steps[dimension] = step
        step *= max(shape[dimension], 1)
    return Window(tuple(shape), tuple(steps))


def same_layout(first: Window, second: Window) -> bool:
    """Whether two windows over one buffer read the same elements in the same order."""
    return (first.shape, first.offset) == (second.shape, second.offset) and all(
        one == other or extent == 1
        for one, other, extent in zip(first.strides, second.strides, first.shape, strict=True)
    )


def is_dense(window: Window) -> bool:
    """Whether a window is all of its memory, each element once, in whatever order of dimensions."""
    return window.size > 0 and same_layout(window, in_order_of(window.shape, window.strides))


Number = int | float | bool
Change = Callable[[Window], Window | None]


class Pending(Protocol):
    """A kernel that is not emitted yet: a product that waits for its epilogue, rows that wait for more stages."""

    def settle(self) -> None:
        """Emit it as it is now."""

    def as_memory(self, leaf: Leaf) -> Leaf:
        """The leaf, read from memory: settles what computes it."""

    def take(self, lazy: Lazy, out: Leaf) -> bool:
        """Compute an expression that reads it in the same kernel, if that can be."""


@dataclass(frozen=True, slots=True, eq=False)
class LeafSource:
    """What a leaf reads: a buffer of the plan (`buffer`), or something not in memory yet (`pending`)."""

    buffer: int = -1
    pending: Pending | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """Elements that are read."""

    source: LeafSource
    window: Window
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class FixedNumber:
    """One number everywhere."""

    number: Number
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """The position itself: what `window` would step to."""

    window: Window
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """An operation on each element."""

    op: str
    operands: tuple[Node, ...]
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """Elements of a table in memory: those that `window` steps to, moved by an index (i64) that is counted in elements.

    `table` is the whole of what is read: the index moves the window within it.
    """

    table: Leaf
    window: Window
    index: Node
    dtype: str


Node = Leaf | FixedNumber | Counted | Computed | Taken


@dataclass(frozen=True, slots=True, eq=False)
class Lazy:
    """An expression with its shape."""

    shape: tuple[int, ...]
    node: Node

    @property
    def dtype(self) -> str:
        """The dtype of its elements."""
        return self.node.dtype

    def leaves(self) -> list[Leaf]:
        """What it reads, each leaf once."""
        return [node for node in walk(self.node) if isinstance(node, Leaf)]

    def viewed(self, change: Change, shape: tuple[int, ...]) -> Lazy | None:
        """The expression seen through a view; None where a leaf cannot be."""
        changed: dict[int, Node] = {}
        for node in walk(self.node):
            new = _viewed(node, change, changed)
            if new is None:
                return None
            changed[id(node)] = new
        return Lazy(shape, changed[id(self.node)])

    def replaced(self, replacements: dict[int, Node]) -> Lazy:
        """The expression with some leaves (by id) replaced."""
        changed: dict[int, Node] = {}
        for node in walk(self.node):
            if isinstance(node, Computed):
                changed[id(node)] = Computed(node.op, tuple(changed[id(item)] for item in node.operands), node.dtype)
            elif isinstance(node, Taken) and id(node) not in replacements:
                changed[id(node)] = Taken(node.table, node.window, changed[id(node.index)], node.dtype)
            else:
                changed[id(node)] = replacements.get(id(node), node)
        return Lazy(self.shape, changed[id(self.node)])


def _viewed(node: Node, change: Change, changed: dict[int, Node]) -> Node | None:
    if isinstance(node, Computed):
        return Computed(node.op, tuple(changed[id(operand)] for operand in node.operands), node.dtype)
    if isinstance(node, FixedNumber):
        return node
    window = change(node.window)
    if window is None:
        return None
    if isinstance(node, Taken):
        return Taken(node.table, window, changed[id(node.index)], node.dtype)
    return Leaf(node.source, window, node.dtype) if isinstance(node, Leaf) else Counted(window, node.dtype)


def walk(root: Node) -> Iterator[Node]:
    """Every node once, operands first."""
    if not isinstance(root, (Computed, Taken)):
        yield root  # most expressions are one node, and are asked for often
        return
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            if isinstance(node, Computed):
                stack.extend((operand, False) for operand in reversed(node.operands) if id(operand) not in seen)
            elif isinstance(node, Taken):
                stack.append((node.index, False))


def read_from_memory(lazy: Lazy, leaves: list[Leaf]) -> Lazy:
    """An expression with some of what it reads settled and read from memory."""
    changed: dict[int, Node] = {}
    for leaf in leaves:
        if leaf.source.pending is not None:
            changed[id(leaf)] = leaf.source.pending.as_memory(leaf)
    return lazy.replaced(changed) if changed else lazy


class BodyWriter:
    """Writes expressions as instructions of one kernel: equal leaves are read once, shared nodes computed once.

    `tables` collects what is read at indices, for kernels that can.
    """

    def __init__(self, number_of: Callable[[Leaf], int], first: int, tables: list[Leaf] | None = None) -> None:
        self._number_of = number_of
        self._first = first
        self.tables = tables
        self.body: list[Instruction] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Node] = []

    def write(self, root: Node) -> int:
        """Add an expression; gives the number of its value."""
        for node in walk(root):
            if id(node) not in self._numbers:
                self._numbers[id(node)] = self._write(node)
                self._kept.append(node)
        return self._numbers[id(root)]

    def _write(self, node: Node) -> int:
        if isinstance(node, Leaf):
            return self._number_of(node)
        if isinstance(node, FixedNumber):
            instruction = Instruction("constant", (), node.dtype, (node.number,))
        elif isinstance(node, Counted):
            instruction = Instruction("iota", (), node.dtype, (*node.window.strides, node.window.offset))
        elif isinstance(node, Taken):
            where = (*node.window.strides, node.window.offset)
            instruction = Instruction("take", (self._numbers[id(node.index)],), node.dtype, (self._table(node), *where))
        else:
            operands = tuple(self._numbers[id(operand)] for operand in node.operands)
            instruction = Instruction(node.op, operands, node.dtype)
        self.body.append(instruction)
        return self._first + len(self.body) - 1

    def _table(self, node: Taken) -> int:
        assert self.tables is not None, "only kernels with tables are given what is read at indices"
        for number, known in enumerate(self.tables):
            if (known.source.buffer, known.dtype) == (node.table.source.buffer, node.table.dtype):
                return number
        self.tables.append(node.table)
        return len(self.tables) - 1
