"""Collect the buffers and calls of a plan while it is made, and what is held back in the hope of doing more at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Protocol

import torch

from weft.ir.types import TensorType
from weft.plan.form.plan import Buffer, BufferKind, KernelCall, Location
from weft.plan.kernels.expression import DTYPE_BYTES, Instruction, View, explicit_rounding
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.loop import LoopExpression, LoopKernel, plan_loop
from weft.plan.kernels.pack import PackKernel
from weft.plan.regions.lazy import BodyWriter, Lazy, Leaf, LeafSource, Node, Taken, read_from_memory, walk
from weft.plan.regions.window import Window, in_order_of, plain
from weft.target import Target


class BufferOwner(Protocol):
    """What writes a buffer that other kernels may want to read, and is not emitted yet."""

    def settle(self) -> None:
        """Emit it as it is now."""


class Assembly:
    """Collects buffers and calls."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.buffers: list[Buffer] = []
        self.calls: list[KernelCall] = []
        self.checks: list[KernelCall] = []
        self.packing: list[KernelCall] = []
        self.constants: list[torch.Tensor] = []
        self.owners: dict[int, tuple[BufferOwner, ...]] = {}
        self._counts: Counter[str] = Counter()
        self._packed: dict[tuple[PackKernel | LoopKernel, tuple[Location, ...]], Location] = {}

    def buffer(self, kind: BufferKind, elements: int, dtype: str) -> int:
        """Add a buffer; gives its number."""
        self.buffers.append(Buffer(kind, self._counts[kind], elements * DTYPE_BYTES[dtype]))
        self._counts[kind] += 1
        return len(self.buffers) - 1

    def name(self, kind: str) -> str:
        """A name for the next kernel."""
        return f"{kind}_{len(self.calls) + len(self.packing) + len(self.checks)}"

    def location(self, leaf: Leaf) -> Location:
        """Where a leaf's window starts."""
        return Location(leaf.source.buffer, leaf.window.offset * DTYPE_BYTES[leaf.dtype])

    def call(self, kernel: Kernel, writes: tuple[Location, ...], reads: tuple[Location, ...]) -> None:
        """Add a call; kernels that are held back and write what it reads come first."""
        for place in reads:
            self.settle(place.buffer)
        if kernel.tile_count:
            self.calls.append(KernelCall(kernel, writes, reads))

    def pack(
        self, kernel: PackKernel | LoopKernel, sources: tuple[Location, ...], elements: int, dtype: str
    ) -> Location:
        """Where a weight lies packed, or what is made of weights; what is made alike for several calls is made once."""
        key = (replace(kernel, name=""), sources)  # the name tells only when it was met
        if key not in self._packed:
            self._packed[key] = Location(self.buffer("packed", elements, dtype))
            self.packing.append(KernelCall(kernel, (self._packed[key],), sources))
        return self._packed[key]

    def settle(self, buffer: int) -> None:
        """Emit what is held back and writes a buffer: it is read next, or written again."""
        for owner in self.owners.pop(buffer, ()):
            owner.settle()

    def settle_all(self) -> None:
        """Emit all that is held back."""
        for owners in list(self.owners.values()):
            for owner in owners:
                owner.settle()

    def fresh(self, lazy: Lazy) -> Leaf:
        """An intermediate for an expression, laid out as most of what it reads."""
        return self.leaf_in(self.buffer("arena", lazy_size(lazy), lazy.dtype), preferred(lazy), lazy.dtype)

    def leaf_in(self, buffer: int, window: Window, dtype: str) -> Leaf:
        """A leaf that reads a buffer."""
        return Leaf(LeafSource(buffer), window, dtype)

    def in_memory(self, lazy: Lazy) -> Leaf:
        """The leaf that an expression is, or one that it is computed into."""
        if isinstance(lazy.node, Leaf) and lazy.node.source.pending is None:
            return lazy.node
        leaf = self.fresh(lazy)
        self.store(lazy, leaf)
        return leaf

    def store(self, lazy: Lazy, out: Leaf) -> None:
        """Compute an expression into memory; what it reads that is pending is given the chance to do it."""
        for leaf in lazy.leaves():
            if leaf.source.pending is not None and leaf.source.pending.take(lazy, out):
                return
        self.store_by_loop(read_from_memory(lazy, lazy.leaves()), out)

    def without_tables(self, lazy: Lazy) -> Lazy:
        """The expression with what it reads at indices computed into memory, for kernels that read no tables."""
        made: dict[int, Node] = {}
        for node in walk(lazy.node):
            if isinstance(node, Taken):
                made[id(node)] = self.in_memory(Lazy(lazy.shape, node))
        return lazy.replaced(made) if made else lazy

    def store_by_loop(self, lazy: Lazy, out: Leaf) -> None:
        """Compute an expression by a loop kernel."""
        kernel, reads = self._loop(lazy, out)
        self.call(kernel, (self.location(out),), reads)

    def prepare(self, lazy: Lazy, window: Window) -> Leaf:
        """Compute an expression of weights by a loop kernel, into this layout, when one of them has changed."""
        kernel, reads = self._loop(lazy, Leaf(LeafSource(), window, lazy.dtype))
        place = self.pack(kernel, reads, window.size, lazy.dtype)
        return self.leaf_in(place.buffer, window, lazy.dtype)

    def _loop(self, lazy: Lazy, out: Leaf) -> tuple[LoopKernel, tuple[Location, ...]]:
        sources: list[Leaf] = []
        tables: list[Leaf] = []

        def number_of(leaf: Leaf) -> int:
            for number, known in enumerate(sources):
                if (known.source.buffer, known.window, known.dtype) == (leaf.source.buffer, leaf.window, leaf.dtype):
                    return number
            sources.append(leaf)
            return len(sources) - 1

        for leaf in lazy.leaves():
            number_of(leaf)
        writer = BodyWriter(number_of, len(sources), tables)
        result = writer.write(lazy.node)
        body, results = rounded([leaf.dtype for leaf in sources], writer.body, result)
        expression = LoopExpression(
            self.name("loop"),
            lazy.shape or (1,),
            (view_of(out.window, out.dtype),),
            tuple(view_of(leaf.window, leaf.dtype) for leaf in sources),
            body,
            results,
            tables=tuple(table.dtype for table in tables),
        )
        reads = (*map(self.location, sources), *(Location(table.source.buffer) for table in tables))
        return plan_loop(expression, self.target), reads


def rounded(inputs: list[str], body: list[Instruction], result: int) -> tuple[tuple[Instruction, ...], tuple[int, ...]]:
    """A body with the rounding of short floats written out."""
    return explicit_rounding(inputs, body, (result,))


def view_of(window: Window, dtype: str) -> View:
    """How a loop sees a window whose start is already in the argument."""
    return View(dtype, window.strides or (1,))


def lazy_size(lazy: Lazy) -> int:
    """Number of elements of an expression."""
    return Window(lazy.shape, lazy.shape).size


def preferred(lazy: Lazy) -> Window:
    """The layout of the whole leaves of an expression, or of one that is repeated along some dimensions; else plain."""
    repeated = None
    for leaf in lazy.leaves():
        steps = leaf.window.strides
        own = [step > 0 or extent == 1 for step, extent in zip(steps, lazy.shape, strict=True)]
        if len(steps) > 1 and all(own):
            return in_order_of(lazy.shape, steps)
        if repeated is None and min(steps, default=-1) >= 0 and sum(step > 0 for step in steps) > 1:
            repeated = steps
    return in_order_of(lazy.shape, _filled(repeated)) if repeated else plain(lazy.shape)


def _filled(strides: tuple[int, ...]) -> list[int]:
    """Strides in which a repeated dimension goes with the one before it, as the halves of an enlarged image do."""
    found: list[int] = []
    for step in strides:
        found.append(step or (found[-1] if found else 0))
    return found


def declared(kind: TensorType) -> Window:
    """The window that a tensor of this type is."""
    return Window(kind.shape, kind.strides)


def extent_of(kind: TensorType) -> int:
    """How many elements lie from a tensor's first to its last one."""
    reach = sum((size - 1) * abs(step) for size, step in zip(kind.shape, kind.strides, strict=True))
    return reach + 1 if kind.size else 0
