"""Make kernels of recurrent layers."""

from __future__ import annotations

from weft.ir.graph import Value
from weft.ir.recurrent import GATES, OPERANDS
from weft.plan.fuse.fusion import Fusion, tensor_type
from weft.plan.kernels.recurrent import RecurrentKernel, StepsOfRows, lanes_of_states, rows_together
from weft.plan.regions.lazy import Lazy, Leaf, Window, plain


def recur(fusion: Fusion, value: Value) -> tuple[Lazy, ...]:
    """The states of a layer, and the last one; the weights of the state are packed."""
    cell, assembly = value.attributes["cell"], fusion.assembly
    given = _in_rows(fusion, fusion.operand(value))
    steps, batch, _ = given.window.shape
    size = tensor_type(value.operands[2]).shape[1]
    lanes = lanes_of_states(size, assembly.target)
    weights = _packed(fusion, fusion.operand(value, 1), (GATES[cell], size, lanes))
    others = [_plainly(fusion, fusion.operand(value, place)) for place in range(2, len(value.operands))]
    states = fusion.plain_arena((steps, batch, size), "f32")
    last = fusion.plain_arena((batch, size), "f32")
    kernel = RecurrentKernel(
        assembly.name("recurrent"),
        cell,
        steps,
        batch,
        size,
        lanes,
        value.attributes["reverse"],
        StepsOfRows(batch * size, size),
        StepsOfRows(*given.window.strides[:2]),
        len(value.operands) > OPERANDS[cell],
        rows_together(cell, assembly.target),
    )
    reads = tuple(map(assembly.location, (given, weights, *others)))
    assembly.call(kernel, (assembly.location(states), assembly.location(last)), reads)
    return Lazy(states.window.shape, states), Lazy(last.window.shape, last)


def _plainly(fusion: Fusion, lazy: Lazy) -> Leaf:
    """An operand in memory row by row."""
    leaf = fusion.assembly.in_memory(lazy)
    if leaf.window.strides == plain(lazy.shape).strides:
        return leaf
    found = fusion.plain_arena(lazy.shape, lazy.dtype)
    fusion.assembly.store(Lazy(lazy.shape, leaf), found)
    return found


def _in_rows(fusion: Fusion, lazy: Lazy) -> Leaf:
    """An operand in memory whose rows have no gaps."""
    leaf = fusion.assembly.in_memory(lazy)
    return leaf if leaf.window.strides[-1] == 1 and min(leaf.window.strides) >= 0 else _plainly(fusion, lazy)


def _packed(fusion: Fusion, lazy: Lazy, sizes: tuple[int, int, int]) -> Leaf:
    """Weights with the vectors of all gates side by side, for each row of the state, for each vector of units."""
    gates, size, lanes = sizes
    leaf = fusion.assembly.in_memory(lazy)
    row, column = leaf.window.strides
    shape = (size // lanes, size, gates, lanes)
    window = Window(shape, (lanes * row, column, size * row, row), leaf.window.offset)
    turned = Lazy(shape, Leaf(leaf.source, window, leaf.dtype))
    if fusion.is_weight(leaf):
        return fusion.prepared(turned, plain(shape))
    found = fusion.plain_arena(shape, lazy.dtype)
    fusion.assembly.store(turned, found)
    return found
