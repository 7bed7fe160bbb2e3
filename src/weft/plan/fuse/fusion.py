"""Hold the state of fusing a region: expressions so far, how often each is read, and the plan being made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch

from weft.ir.graph import Value
from weft.ir.types import DTYPE_NAMES, TensorType
from weft.plan.form.plan import Buffer, BufferKind, KernelCall, Location
from weft.plan.fuse.image_limits import LimitedImages
from weft.plan.kernels.expression import DTYPE_BYTES, SHORT_FLOATS, Instruction, View, explicit_rounding
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.loop import LoopExpression, LoopKernel, plan_loop
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.walk import Blocks
from weft.plan.regions.indices import IndexLimit, uniform
from weft.plan.regions.lazy import (
    BodyWriter,
    Computed,
    Lazy,
    Leaf,
    LeafSource,
    Node,
    Taken,
    Window,
    in_order_of,
    is_dense,
    plain,
    read_from_memory,
    same_layout,
    walk,
)
from weft.plan.regions.region import Region
from weft.target import Target

FEW_CHANNELS = 8  # which fill no vector


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
        kernel, reads = self._loop(self._with_wide_tables(lazy, out), out)
        self.call(kernel, (self.location(out),), reads)

    def _with_wide_tables(self, lazy: Lazy, out: Leaf) -> Lazy:
        """The expression with tables along pixels repeated for their few channels, so that both are one long row."""
        shape, steps = lazy.shape, out.window.strides
        sides = [place for place, size in enumerate(shape) if steps[place] == 1 and 1 < size <= FEW_CHANNELS]
        along = [place for place in range(len(shape)) if sides and steps[place] == shape[sides[0]] and shape[place] > 1]
        if len(sides) != 1 or len(along) != 1:
            return lazy
        (channels,), (pixels,), leaves = sides, along, lazy.leaves()
        tables = [
            leaf
            for leaf in leaves
            if self._is_table(leaf, shape[pixels])
            and all(step == (place == pixels) or shape[place] == 1 for place, step in enumerate(leaf.window.strides))
        ]
        pairs = [(leaf.window.strides[pixels], leaf.window.strides[channels]) for leaf in leaves if leaf not in tables]
        if not tables or any(pair not in ((0, 0), (shape[channels], 1)) for pair in pairs):
            return lazy
        wide = tuple(shape[channels] if place == pixels else int(place == channels) for place in range(len(shape)))
        return lazy.replaced({id(leaf): self._repeated(leaf, Window(shape, wide), shape[channels]) for leaf in tables})

    def _is_table(self, leaf: Leaf, size: int) -> bool:
        """Whether a leaf reads a constant of so many numbers."""
        buffer = self.buffers[leaf.source.buffer]
        is_whole = buffer.kind == "constant" and not leaf.window.offset
        return is_whole and self.constants[buffer.index].numel() == size

    def _repeated(self, leaf: Leaf, window: Window, times: int) -> Leaf:
        """A constant each of whose numbers comes so many times."""
        tensor = self.constants[self.buffers[leaf.source.buffer].index]
        number = self.buffer("constant", tensor.numel() * times, leaf.dtype)
        self.constants.append(tensor.flatten().repeat_interleave(times))
        return self.leaf_in(number, window, leaf.dtype)

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
    for node in walk(lazy.node):
        steps = node.table.window.strides if isinstance(node, Taken) else ()
        if len(steps) == len(lazy.shape) > 1 and min(steps) > 0:  # slices lie as those do that they are taken from
            return in_order_of(lazy.shape, steps)
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


BYTES = frozenset({"i8", "u8"})
FLOATS = frozenset({"f32", "f64", *SHORT_FLOATS})


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor in memory, and its dtype with those that a kernel which packs it converts its numbers to, in turn."""

    leaf: Leaf
    casts: tuple[str, ...] = ()

    @property
    def is_short(self) -> bool:
        """Tell whether numbers were rounded to a short float."""
        return any(dtype in SHORT_FLOATS for dtype in self.casts)

    @property
    def lazy(self) -> Lazy:
        """The numbers as they are packed, as an expression."""
        node: Node = self.leaf
        for dtype in self.casts[1:]:
            node = Computed("cast", (node,), dtype)
        return Lazy(self.leaf.window.shape, node)


class LooseOutputs:
    """Gives outputs that only programs of ours read the layout of kernels, and their memory from the start.

    What a forward saves for its backward nobody else looks at. Laid out as PyTorch would, images would be transposed
    when the forward hands them out, and again when the backward reads them. Intermediates that are handed out whole
    become the outputs.
    """

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._moved: dict[int, int] = {}  # buffers: an intermediate, and the output that it becomes

    def place(self, lazy: Lazy, out: Leaf) -> Leaf:
        """Where an expression is handed out that has the memory of `out`: an intermediate that it lies in, or there."""
        node = lazy.node
        if isinstance(node, Leaf) and node.source.buffer == out.source.buffer:
            return node
        if isinstance(node, Leaf) and node.source.pending is None and self._can_become(node, out):
            self._moved[node.source.buffer] = out.source.buffer
            return node
        return replace(out, window=preferred(lazy))

    def _can_become(self, leaf: Leaf, out: Leaf) -> bool:
        own, its = (self._assembly.buffers[one.source.buffer] for one in (leaf, out))
        return (
            own.kind == "arena"
            and leaf.source.buffer not in self._moved
            and own.bytes == its.bytes
            and is_dense(leaf.window)
        )

    def moved(self, call: KernelCall) -> KernelCall:
        """The call with outputs in the place of the intermediates that have become them."""
        if not any(place.buffer in self._moved for place in call.arguments):
            return call
        return replace(call, writes=_moved(call.writes, self._moved), reads=_moved(call.reads, self._moved))


def _moved(places: tuple[Location, ...], moved: Mapping[int, int]) -> tuple[Location, ...]:
    return tuple(replace(place, buffer=moved.get(place.buffer, place.buffer)) for place in places)


class Fusion:
    """The state of fusing one region."""

    def __init__(self, region: Region, target: Target, *, varies: bool = False) -> None:
        """`varies` says that it is for calls of smaller sizes, too, which leave out rows of products."""
        self.region = region
        self.varies = varies
        self.assembly = Assembly(target)
        self.lazies: dict[Value, Lazy] = {}
        self.several: dict[Value, tuple[Lazy, ...]] = {}
        self.uses = Counter(operand for value in region.values for operand in value.operands)
        self.uses.update(region.outputs)
        self.last_use = {operand: index for index, value in enumerate(region.values) for operand in value.operands}
        self._inputs = frozenset(region.inputs)
        self._weights: frozenset[int] | None = None  # buffers
        self._own_weights: set[int] = set()
        self._is_packing = False
        self.position = 0
        self._living: list[Value] = []
        self._listed = 0  # of the region's values
        self.outputs: dict[Value, Leaf] = {}
        self.loose = LooseOutputs(self.assembly)
        self.open_groups: list[object] = []
        self.copies: dict[tuple[int, Window], Leaf] = {}
        self.rows: dict[tuple[int, Window], Leaf] = {}
        self.panels: dict[tuple[tuple[str, ...], int, Window, Blocks, int], Location] = {}
        self.checked: set[IndexLimit] = set()
        self.limited: dict[Value, LimitedImages] = {}  # of convolutions and poolings that end where images do

    def operand(self, value: Value, index: int = 0) -> Lazy:
        """The expression of an operand."""
        return self.lazies[value.operands[index]]

    def images(self, value: Value) -> Lazy:
        """The images that a convolution or pooling sees: where it ends as they do, with anything beyond."""
        limited = self.limited.get(value)
        return self.operand(value) if limited is None else self.lazies[limited.images]

    def limits(self, value: Value) -> tuple[Location, ...]:
        """Where the numbers of rows and columns lie at which a convolution or pooling ends."""
        numbers = self.limited[value].numbers if value in self.limited else ()
        return tuple(self.assembly.location(self.assembly.in_memory(self.lazies[number])) for number in numbers)

    def from_outside(self, value: Value) -> Lazy | None:
        """The expression of what is there before the region runs: an input or a constant."""
        if value.op == "constant" and value not in self.lazies:  # of an index that is made later, and checked now
            self.lazies[value] = self.constant(value)
        return self.lazies[value] if value.op == "constant" or value in self._inputs else None

    def constant(self, value: Value) -> Lazy:
        """A constant: a number in the code where it is uniform, else a buffer."""
        tensor: torch.Tensor = value.attributes["tensor"]
        kind, number = tensor_type(value), uniform(value)
        if number is not None:
            return Lazy(kind.shape, number)
        buffer = self.assembly.buffer("constant", kind.size, dtype_of(value))
        self.assembly.constants.append(tensor.detach().contiguous())
        return Lazy(kind.shape, self.assembly.leaf_in(buffer, plain(kind.shape), dtype_of(value)))

    def live(self) -> Iterator[tuple[Value, Lazy]]:
        """The values the region has made so far that a later one reads, and that read what is held back.

        What none reads any more is not looked at again, nor what lies in memory: this is asked for at each group of
        rows.
        """
        values, now = self.region.values, self.position
        made = [value for value in values[self._listed : now] if value in self.lazies]
        fresh = [
            value for value in made if any(leaf.source.pending is not None for leaf in self.lazies[value].leaves())
        ]
        self._living = [value for value in (*self._living, *fresh) if self.last_use.get(value, -1) >= now]
        self._listed = now
        last = [value for value in values[now : now + 1] if value in self.lazies and value in self.last_use]
        return ((value, self.lazies[value]) for value in (*self._living, *last))

    def place_for(self, value: Value, window: Window) -> Leaf:
        """Memory of this layout for a value: where it is handed out, if it is handed out so, else an intermediate."""
        out = self.outputs.get(value)
        if out is not None and value in self.region.loose and is_dense(window):
            out = self.outputs[value] = replace(out, window=window)
        if out is not None and same_layout(out.window, window):
            return Leaf(out.source, window, out.dtype)
        return self.arena(window, dtype_of(value))

    def arena(self, window: Window, dtype: str) -> Leaf:
        """A new intermediate of this layout."""
        return self.assembly.leaf_in(self.assembly.buffer("arena", window.size, dtype), window, dtype)

    def plain_arena(self, shape: Sequence[int], dtype: str) -> Leaf:
        """A new intermediate, row by row."""
        return self.arena(plain(shape), dtype)

    def is_weight(self, leaf: Leaf) -> bool:
        """Whether a leaf reads a parameter or buffer, or what is prepared of them; none is one while packing."""
        if self._is_packing:
            return False
        if self._weights is None:  # the expressions of inputs are there before any other, and stay as they are
            nodes = (self.lazies[value].node for value in self.region.weights)
            self._weights = frozenset(node.source.buffer for node in nodes if isinstance(node, Leaf))
        return leaf.source.buffer in self._weights or leaf.source.buffer in self._own_weights

    def is_constant(self, leaf: Leaf) -> bool:
        """Whether a leaf reads a constant."""
        return leaf.source.pending is None and self.assembly.buffers[leaf.source.buffer].kind == "constant"

    @cached_property
    def weight_bytes(self) -> int:
        """The bytes of all parameters and buffers that the region reads."""
        return sum(tensor_type(value).size * DTYPE_BYTES[dtype_of(value)] for value in self.region.weights)

    def source(self, lazy: Lazy) -> Source:
        """What a kernel that packs an expression reads: the tensor in memory that it converts, else the expression."""
        casts, node = [lazy.dtype], lazy.node
        while isinstance(node, Computed) and node.op == "cast" and node.dtype in FLOATS:
            [node] = node.operands
            casts.append(node.dtype)
        if isinstance(node, Leaf) and node.source.pending is None and len(casts) > 1 and node.dtype in FLOATS | BYTES:
            return Source(node, tuple(reversed(casts)))
        return Source(self.assembly.in_memory(lazy))

    def prepared(self, lazy: Lazy, window: Window) -> Leaf:
        """An expression of weights in this layout, made when one of them has changed; it counts as a weight itself."""
        leaf = self.assembly.prepare(lazy, window)
        self._own_weights.add(leaf.source.buffer)
        return leaf

    def place_for_weights(self, window: Window, dtype: str) -> Leaf:
        """New memory of this layout for what is made when a weight has changed."""
        leaf = self.assembly.leaf_in(self.assembly.buffer("packed", window.size, dtype), window, dtype)
        self._own_weights.add(leaf.source.buffer)
        return leaf

    @contextmanager
    def packing(self) -> Iterator[None]:
        """Make the calls inside run when a weight has changed, not at every call of the program.

        They read weights where these lie: what is made on the way is thrown away, and nothing else may read it.
        """
        assembly, first = self.assembly, len(self.assembly.calls)
        kept = self.copies, self.rows, self.panels
        self.copies, self.rows, self.panels, self._is_packing = {}, {}, {}, True
        yield
        self.copies, self.rows, self.panels, self._is_packing = *kept, False
        assembly.packing += assembly.calls[first:]
        del assembly.calls[first:]


def tensor_type(value: Value) -> TensorType:
    """The type of a value that is one tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def dtype_of(value: Value) -> str:
    """The name of a value's dtype."""
    return DTYPE_NAMES[tensor_type(value).dtype]
