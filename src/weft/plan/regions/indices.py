"""Values that are indices -> the same computed from a region's inputs alone, to be checked before it runs.

What takes from or writes to a place that does not exist must not begin. So an op with an index is a kernel's only where
its index is made by a few elementwise ops and moves of what lies in memory when the region starts, or where it names
places that exist whatever it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from weft.ir.graph import Value
from weft.ir.ops import OPS
from weft.ir.types import DTYPE_NAMES, TensorType
from weft.plan.regions.lazy import Computed, Counted, Fixed, Lazy, Leaf, Source
from weft.plan.regions.ranges import Range, range_of
from weft.plan.regions.window import Window, plain
from weft.trace.lift.checks import CHECK_CLASSES, CHECK_DATA, CHECK_ONE_HOT, CHECK_PLACES

SCATTERS = frozenset({"scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"})
INDEXED = frozenset({"take", "gather"}) | SCATTERS
SAME_ELEMENTS = frozenset({"reshape", "permute", "expand", "reverse"})
CHECKS = frozenset({CHECK_CLASSES, CHECK_PLACES, CHECK_DATA, CHECK_ONE_HOT})
MOST_VALUES = 64  # that an index may be made of
Outside = Callable[[Value], Lazy | None]
Change = Callable[[Window, Value], Window | None]

# How each move changes the windows of what it moves; None where no window gives that.
VIEWS: Mapping[str, Change] = {
    "reshape": lambda window, value: window.reshaped(value.attributes["shape"]),
    "permute": lambda window, value: window.permuted(value.attributes["order"]),
    "expand": lambda window, value: window.expanded(value.attributes["shape"]),
    "slice": lambda window, value: window.sliced(*(value.attributes[name] for name in ("start", "stop", "step"))),
    "reverse": lambda window, value: window.reversed(value.attributes["dimensions"]),
}


@dataclass(frozen=True, slots=True)
class Limit:
    """What must be at least 0 and below `extent`, apart from elements that are `ignored`."""

    index: Value
    extent: int
    ignored: int | None = None

    @property
    def is_kept(self) -> bool:
        """Whether no data could break it."""
        found = range_of(self.index)
        return found is not None and found.within(Range(0, self.extent - 1))


def limit_of(value: Value) -> Limit | None:
    """What the data must keep to, for a value that would fail otherwise."""
    if value.op in INDEXED:
        kind = value.operands[0].type
        assert isinstance(kind, TensorType)
        return Limit(_origin(index_of(value)), kind.shape[value.attributes["dimension"]])
    if value.op == "library" and value.attributes["call"].target in CHECKS:
        _, extent, *ignored = value.attributes["call"].arguments
        return Limit(_origin(index_of(value)), extent, *(number for number in ignored if type(number) is int))
    return None


def index_of(value: Value) -> Value:
    """The operand of a value that holds places or classes."""
    return value.operands[1 if value.op in INDEXED else 0]


def _origin(index: Value) -> Value:
    """An index before moves that change none of its elements."""
    while index.op in SAME_ELEMENTS or (index.op == "cast" and _is_widened(index)):
        index = index.operands[0]
    return index


def _is_widened(value: Value) -> bool:
    before, after = value.operands[0].type, value.type
    assert isinstance(before, TensorType)
    assert isinstance(after, TensorType)
    return after.dtype is torch.int64 and before.dtype in (torch.int32, torch.int64)


def index_expression(index: Value, outside: Outside) -> Lazy | None:
    """An index as an expression of what lies `outside`, which gives None for what does not; None if it is not one."""
    known: dict[Value, Lazy | None] = {}

    def expression(value: Value) -> Lazy | None:
        if value not in known:
            found = outside(value)
            within = len(known) < MOST_VALUES
            known[value] = found if found is not None or not within else _inside(value, expression)
        return known[value]

    return expression(index)


def _inside(value: Value, expression: Outside) -> Lazy | None:
    kind = value.type
    if not isinstance(kind, TensorType) or value.op not in OPS:
        return None
    if value.op == "iota":
        return counted(value, kind)
    if value.op not in VIEWS and not OPS[value.op].elementwise:
        return None
    operands = [expression(operand) for operand in value.operands]
    nodes = [operand.node for operand in operands if operand is not None]
    if len(nodes) < len(operands):
        return None
    if value.op in VIEWS:
        change = VIEWS[value.op]
        return Lazy(value.operands[0].type.shape, nodes[0]).viewed(lambda window: change(window, value), kind.shape)  # type: ignore[union-attr]
    return Lazy(kind.shape, Computed(value.op, tuple(nodes), DTYPE_NAMES[kind.dtype]))


def counted(value: Value, kind: TensorType) -> Lazy:
    """Positions along a dimension."""
    strides = tuple(int(place == value.attributes["dimension"]) for place in range(kind.rank))
    return Lazy(kind.shape, Counted(Window(kind.shape, strides), DTYPE_NAMES[kind.dtype]))


def uniform(value: Value) -> Fixed | None:
    """The one number that a constant holds everywhere, if it does."""
    tensor: torch.Tensor = value.attributes["tensor"]
    if not tensor.numel() or not bool((tensor == tensor.reshape(-1)[0]).all()):
        return None
    number = tensor.reshape(-1)[0].item()
    if tensor.dtype.is_floating_point or not isinstance(number, float):
        return Fixed(number, DTYPE_NAMES[tensor.dtype])
    return None


def can_check(value: Value, is_outside: Callable[[Value], bool]) -> bool:
    """Whether a value that may fail can be checked before the region runs, given what lies outside of it."""
    limit = limit_of(value)

    def outside(operand: Value) -> Lazy | None:
        kind = operand.type
        if not isinstance(kind, TensorType) or not (is_outside(operand) or operand.op == "constant"):
            return None
        number = uniform(operand) if operand.op == "constant" else None
        name, window = DTYPE_NAMES[kind.dtype], Window(kind.shape, kind.strides)
        if operand.op == "constant":
            window = plain(kind.shape)
        return Lazy(kind.shape, number or Leaf(Source(), window, name))

    return limit is not None and (limit.is_kept or index_expression(limit.index, outside) is not None)
