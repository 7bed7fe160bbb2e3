"""Outputs that only programs of ours read -> the layout that they have in kernels, and their memory from the start.

What a forward saves for its backward nobody else looks at. Laid out as PyTorch would, images would be transposed when
the forward hands them out, and again when the backward reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.plan.form.plan import KernelCall, Location
from weft.plan.fuse.assembly import Assembly, preferred
from weft.plan.regions.lazy import Lazy, Leaf
from weft.plan.regions.window import is_dense


class LooseOutputs:
    """Gives outputs of a region their layouts; intermediates that are handed out whole become the outputs."""

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
