"""Fuse reads at indices into loops and make scatter kernels of writes; each index that could be wrong is checked first.

A read is an expression as any other, fused with what follows it. A write starts from a copy of what is written into,
in which elements are then replaced or added to, in the order of the source.
"""

from __future__ import annotations

from weft.ir.graph import Value
from weft.plan.form.plan import KernelCall, Location
from weft.plan.fuse.fusion import Fusion, tensor_type
from weft.plan.kernels.check import plan_check
from weft.plan.kernels.expression import View, explicit_rounding
from weft.plan.kernels.loop import LoopExpression
from weft.plan.kernels.scatter import ScatterExpression, plan_scatter
from weft.plan.regions.indices import index_expression, index_of, limit_of, unguarded
from weft.plan.regions.lazy import (
    BodyWriter,
    Computed,
    Counted,
    FixedNumber,
    Lazy,
    Leaf,
    Node,
    Taken,
    Window,
    plain,
    read_from_memory,
    walk,
)

JOINS = {
    "scatter": "store", "scatter_add": "add", "scatter_mul": "mul", "scatter_min": "minimum", "scatter_max": "maximum",
}  # fmt: skip


def take(fusion: Fusion, value: Value) -> Lazy:
    """Slices at the places of a list: the list is seen as an index along its dimension."""
    shape, dimension = tensor_type(value).shape, value.attributes["dimension"]
    index = _index(fusion, value)
    spread = index.viewed(lambda window: _along(window, shape, dimension), shape)
    assert spread is not None, "a list can be seen along any dimension"
    return _taken(fusion, value, spread)


def gather(fusion: Fusion, value: Value) -> Lazy:
    """One element for each index."""
    return _taken(fusion, value, _index(fusion, value))


def _index(fusion: Fusion, value: Value) -> Lazy:
    """The places that an op takes from or writes to, which are checked before the region runs."""
    return unguarded(fusion.operand(value, 1))


def _along(window: Window, shape: tuple[int, ...], dimension: int) -> Window:
    strides = tuple(window.strides[0] if place == dimension else 0 for place in range(len(shape)))
    return Window(shape, strides, window.offset)


def _taken(fusion: Fusion, value: Value, index: Lazy) -> Lazy:
    table, dimension = fusion.assembly.in_memory(fusion.operand(value)), value.attributes["dimension"]
    check(fusion, value)
    index = read_from_memory(index, index.leaves())
    window, place = _places(table.window, index, dimension)
    return Lazy(index.shape, Taken(table, window, place, table.dtype))


def _places(table: Window, index: Lazy, dimension: int) -> tuple[Window, Node]:
    """Where elements of a table lie: what their coordinates alone say, and what the index adds to it."""
    steps = tuple(0 if place == dimension else stride for place, stride in enumerate(table.strides))
    node: Node = index.node if index.dtype == "i64" else Computed("cast", (index.node,), "i64")
    if table.strides[dimension] != 1:
        node = Computed("mul", (node, FixedNumber(table.strides[dimension], "i64")), "i64")
    return Window(index.shape, steps, table.offset), node


def scatter(fusion: Fusion, value: Value) -> Lazy:
    """A copy of the first operand, with elements replaced or added to where the index says."""
    shape, dimension = tensor_type(value).shape, value.attributes["dimension"]
    check(fusion, value)
    index, source = _index(fusion, value), fusion.operand(value, 2)
    out = fusion.place_for(value, plain(shape))
    fusion.assembly.store(fusion.operand(value), out)
    fusion.assembly.settle(out.source.buffer)  # what is scattered goes over it
    # An index that is the same along a row moves whole rows, a vector at a time.
    across = len(shape) - 1
    whole_rows = dimension != across and _is_steady(index, across)
    window, node = _places(out.window, index, dimension)
    steps = tuple(0 if whole_rows and place == across else stride for place, stride in enumerate(window.strides))
    place = Computed("add", (node, Counted(Window(index.shape, steps, window.offset), "i64")), "i64")
    column = window.strides[across] if whole_rows else 0
    _emit(fusion, value, Lazy(index.shape, place), source, (out, column))
    return Lazy(shape, out)


def _is_steady(index: Lazy, dimension: int) -> bool:
    """Whether an index is the same all along a dimension."""
    seen = [node.window for node in walk(index.node) if isinstance(node, Leaf | Counted | Taken)]
    return not any(window.strides[dimension] for window in seen)


def _emit(fusion: Fusion, value: Value, place: Lazy, source: Lazy, target: tuple[Leaf, int]) -> None:
    assembly, (out, column_stride) = fusion.assembly, target
    place, source = (read_from_memory(lazy, lazy.leaves()) for lazy in (place, source))
    leaves = list(dict.fromkeys((*place.leaves(), *source.leaves())))
    tables: list[Leaf] = []
    writer = BodyWriter(leaves.index, len(leaves), tables)
    numbers = [writer.write(lazy.node) for lazy in (place, source)]
    body, (where, what) = explicit_rounding([leaf.dtype for leaf in leaves], writer.body, numbers)
    expression = ScatterExpression(
        assembly.name("scatter"), place.shape, out.dtype, column_stride,
        tuple(View(leaf.dtype, leaf.window.strides) for leaf in leaves), body, where, what, JOINS[value.op],
        tuple(table.dtype for table in tables),
    )  # fmt: skip
    kernel = plan_scatter(expression, assembly.target)
    reads = (*map(assembly.location, leaves), *(Location(table.source.buffer) for table in tables))
    assembly.call(kernel, (Location(out.source.buffer),), reads)


def _looked_at_once(index: Lazy) -> Lazy:
    """One of the places along each dimension along which they are the same."""
    once = tuple(min(size, 1) if _is_steady(index, place) else size for place, size in enumerate(index.shape))
    none, steps = (0,) * len(once), (1,) * len(once)
    found = index.viewed(lambda window: window.sliced(none, once, steps), once)
    assert found is not None, "a part of an index is one"
    return found


def check(fusion: Fusion, value: Value) -> None:
    """Have what a value relies on compared with its limits, before anything runs; each index once."""
    limit = limit_of(value)
    if limit is None or limit in fusion.checked or limit.is_kept:
        return
    fusion.checked.add(limit)
    # Moves of an index may have been made before the region: then it is their result that lies outside.
    lazy = index_expression(limit.index, fusion.from_outside) or index_expression(index_of(value), fusion.from_outside)
    assert lazy is not None, "only what can be checked is part of a region"
    lazy = _looked_at_once(lazy)
    node: Node = lazy.node if lazy.dtype == "i64" else Computed("cast", (lazy.node,), "i64")
    if limit.ignored is not None:
        counts = Computed("ne", (node, FixedNumber(limit.ignored, "i64")), "bool")
        node = Computed("select", (counts, node, FixedNumber(0, "i64")), "i64")
    assembly, leaves = fusion.assembly, lazy.leaves()
    writer = BodyWriter(leaves.index, len(leaves))
    number = writer.write(node)
    body, results = explicit_rounding([leaf.dtype for leaf in leaves], writer.body, [number])
    views = tuple(View(leaf.dtype, leaf.window.strides or (1,)) for leaf in leaves)
    shape = lazy.shape or (1,)
    rows = View("i64", plain(shape).strides)
    expression = LoopExpression(assembly.name("check"), shape, (rows,), views, body, results)
    kernel = plan_check(expression, limit.extent, assembly.target)
    if kernel.tile_count:
        assembly.checks.append(KernelCall(kernel, (), tuple(map(assembly.location, leaves))))
