"""Hold the state of fusing a region: expressions so far, how often each value is read, and the plan being made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from weft.ir.graph import Value
from weft.ir.types import DTYPE_NAMES, TensorType
from weft.plan.form.plan import KernelCall, Location
from weft.plan.fuse.assembly import Assembly, preferred
from weft.plan.fuse.image_limits import LimitedImages
from weft.plan.kernels.blocks import Blocks
from weft.plan.kernels.expression import DTYPE_BYTES, SHORT_FLOATS
from weft.plan.regions.indices import IndexLimit, uniform
from weft.plan.regions.lazy import Computed, Lazy, Leaf, Node
from weft.plan.regions.region import Region
from weft.plan.regions.window import Window, is_dense, plain, same_layout
from weft.target import Target

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

    def __init__(self, region: Region, target: Target) -> None:
        self.region = region
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
