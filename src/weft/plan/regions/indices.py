"""Prove that indices name places that exist, or compute them from inputs alone, to be checked before a region runs.

What takes from or writes to a place that does not exist must not begin. So an op with an index is a kernel's only where
its index is made by a few elementwise ops and moves of what lies in memory when the region starts, or where it names
places that exist whatever it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

import torch

from weft.ir.graph import Value
from weft.ir.ops import OPS
from weft.ir.types import DTYPE_NAMES, DTYPES_BY_NAME, TensorType
from weft.plan.regions.lazy import Computed, Counted, FixedNumber, Lazy, Leaf, LeafSource, Window, plain
from weft.trace.lift.checks import CHECK_CLASSES, CHECK_DATA, CHECK_ONE_HOT, CHECK_PLACES

# The least and the greatest number that a value of whole numbers or truth values can hold, whatever the inputs: an
# index that can only name places that exist needs no check. Such are where the largest is, positions, what is clamped.
MOST_LOOKED_AT = 1024  # that are looked at for one answer


@dataclass(frozen=True, slots=True)
class Range:
    """All whole numbers from least to greatest; False and True are 0 and 1."""

    least: int
    greatest: int

    def joined(self, other: Range) -> Range:
        """The range of what is in either."""
        return Range(min(self.least, other.least), max(self.greatest, other.greatest))

    def within(self, other: Range) -> bool:
        """Whether all of it lies in another."""
        return other.least <= self.least and self.greatest <= other.greatest


Rule = Callable[[Value, list[Range]], Range]
TRUTH = Range(0, 1)


def range_of(value: Value) -> Range | None:
    """The range of a value's elements; None for other numbers than whole ones, and where nothing is known."""
    known: dict[Value, Range | None] = {}
    waiting = [value]
    while waiting:
        last = waiting[-1]
        missing = [operand for operand in _read(last) if operand not in known]
        if missing and len(known) + len(waiting) < MOST_LOOKED_AT:
            waiting += missing
            continue
        waiting.pop()
        if last not in known:
            known[last] = _range(last, [known.get(operand) for operand in _read(last)])
    return known[value]


def _read(value: Value) -> tuple[Value, ...]:
    """The values whose ranges tell that of a value."""
    if value.op not in RULES or value.op in OF_NO_OPERAND:
        return ()
    if value.op == "select" and _compares_whole(value.operands[0]):
        sums = (operand for choice in value.operands[1:] if choice.op == "add" for operand in choice.operands)
        return (*value.operands, *value.operands[0].operands, *sums)
    return value.operands[:1] if value.op in FIRST_ALONE else value.operands


def _compares_whole(condition: Value) -> bool:
    """Whether a condition is that one whole number is less than another."""
    return condition.op == "lt" and _all_of(condition.operands[0]) is not None


def _range(value: Value, operands: list[Range | None]) -> Range | None:
    whole = _all_of(value)
    if whole is None or value.op not in RULES:
        return whole
    given = [found for found in operands if found is not None]
    if len(given) < len(operands):
        return whole
    found = RULES[value.op](value, given)
    return found if found.within(whole) else whole  # beyond that, numbers wrap around


def _all_of(value: Value) -> Range | None:
    """All that a value's dtype can hold."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.dtype.is_floating_point or kind.dtype.is_complex or not kind.size:
        return None
    if kind.dtype is torch.bool:
        return TRUTH
    limits = torch.iinfo(kind.dtype)
    return Range(limits.min, limits.max)


def _corners(function: Callable[[int, int], int]) -> Rule:
    """Make the rule of an op of two operands whose extremes lie at theirs."""

    def rule(value: Value, operands: list[Range]) -> Range:
        del value
        ends = [(operand.least, operand.greatest) for operand in operands]
        found = [function(*pair) for pair in product(*ends)]
        return Range(min(found), max(found))

    return rule


def _compared(always: Callable[[Range, Range], bool], never: Callable[[Range, Range], bool]) -> Rule:
    def rule(value: Value, operands: list[Range]) -> Range:
        del value
        x, y = operands
        return Range(1, 1) if always(x, y) else Range(0, 0) if never(x, y) else TRUTH

    return rule


def _constant(value: Value, operands: list[Range]) -> Range:
    del operands
    tensor: torch.Tensor = value.attributes["tensor"]
    return Range(int(tensor.min()), int(tensor.max()))


def _iota(value: Value, operands: list[Range]) -> Range:
    del operands
    return Range(0, max(value.attributes["shape"][value.attributes["dimension"]] - 1, 0))


def _position(value: Value, operands: list[Range]) -> Range:
    """Where an extreme is: the operand may be of any numbers."""
    del operands
    kind, dimension = value.operands[0].type, value.attributes["dimension"]
    assert isinstance(kind, TensorType)
    return Range(0, max((kind.size if dimension is None else kind.shape[dimension]) - 1, 0))


def _sum(value: Value, operands: list[Range]) -> Range:
    kind = value.operands[0].type
    assert isinstance(kind, TensorType)
    count = prod(kind.shape[dimension] for dimension in value.attributes["dimensions"])
    return Range(count * operands[0].least, count * operands[0].greatest)


def _selected(value: Value, operands: list[Range]) -> Range:
    """One of two choices; one that is made of the number that is compared is known better."""
    condition, *choices = operands[:3]
    if condition.least == condition.greatest:
        return choices[0] if condition.least else choices[1]
    if len(operands) > 3:
        choices = [_chosen(value, operands, 1), _chosen(value, operands, 2)]
    return choices[0].joined(choices[1])


def _chosen(value: Value, operands: list[Range], place: int) -> Range:
    """The range of a choice, given whether x < y: of x itself, and of x + z. A choice that cannot be is as it was."""
    x, choice, (of_x, of_y) = value.operands[0].operands[0], value.operands[place], operands[3:5]
    if place == 1:
        known = Range(of_x.least, min(of_x.greatest, of_y.greatest - 1))
    else:
        known = Range(max(of_x.least, of_y.least), of_x.greatest)
    if known.least > known.greatest:
        return operands[place]
    if choice is x:
        return known
    if choice.op != "add" or x not in choice.operands:
        return operands[place]
    first = 5 + 2 * (place == 2 and value.operands[1].op == "add")
    parts = [known if part is x else given for part, given in zip(choice.operands, operands[first:], strict=False)]
    found, whole = RULES["add"](choice, parts), _all_of(choice)
    return found if whole is not None and found.within(whole) else operands[place]


def _padded(value: Value, operands: list[Range]) -> Range:
    number = int(value.attributes["value"])
    return operands[0].joined(Range(number, number))


def _all_together(value: Value, operands: list[Range]) -> Range:
    del value
    found, *others = operands
    for other in others:
        found = found.joined(other)
    return found


def _truth(operand: Range) -> Range:
    """Whether numbers of a range are not zero."""
    if not operand.least <= 0 <= operand.greatest:
        return Range(1, 1)
    return Range(0, int(operand.least < operand.greatest))


def _logical(rule: Rule) -> Rule:
    """Make the rule of an op on truth values, which takes numbers too."""
    return lambda value, operands: rule(value, [_truth(operand) for operand in operands])


SAME_NUMBERS = ("cast", "reshape", "permute", "expand", "slice", "reverse", "take", "gather", "max", "min", "concat")
# Of these the first operand tells the range, or none does.
FIRST_ALONE = frozenset({"take", "gather"})
OF_NO_OPERAND = frozenset({"argmax", "argmin", "top_places"})
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(SAME_NUMBERS, _all_together),
    "scatter": lambda _, operands: operands[0].joined(operands[2]),
    "constant": _constant,
    "iota": _iota,
    "argmax": _position,
    "argmin": _position,
    "top_places": lambda value, _: Range(0, value.operands[0].type.shape[-1] - 1),  # type: ignore[union-attr]
    "sum": _sum,
    "pad": _padded,
    "select": _selected,
    "add": _corners(lambda x, y: x + y),
    "sub": _corners(lambda x, y: x - y),
    "mul": _corners(lambda x, y: x * y),
    "minimum": _corners(min),
    "maximum": _corners(max),
    "logical_or": _logical(_corners(max)),
    "logical_and": _logical(_corners(min)),
    "logical_not": _logical(lambda _, operands: Range(1 - operands[0].greatest, 1 - operands[0].least)),
    "lt": _compared(lambda x, y: x.greatest < y.least, lambda x, y: x.least >= y.greatest),
    "le": _compared(lambda x, y: x.greatest <= y.least, lambda x, y: x.least > y.greatest),
    "gt": _compared(lambda x, y: x.least > y.greatest, lambda x, y: x.greatest <= y.least),
    "ge": _compared(lambda x, y: x.least >= y.greatest, lambda x, y: x.greatest < y.least),
}


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
class IndexLimit:
    """What must be at least 0 and below `extent`, apart from elements that are `ignored`."""

    index: Value
    extent: int
    ignored: int | None = None

    @property
    def is_kept(self) -> bool:
        """Whether no data could break it."""
        found = range_of(self.index)
        return found is not None and found.within(Range(0, self.extent - 1))


def limit_of(value: Value) -> IndexLimit | None:
    """What the data must keep to, for a value that would fail otherwise."""
    if value.op in INDEXED:
        kind = value.operands[0].type
        assert isinstance(kind, TensorType)
        return IndexLimit(_origin(index_of(value)), kind.shape[value.attributes["dimension"]])
    if value.op == "library" and value.attributes["call"].target in CHECKS:
        _, extent, *ignored = value.attributes["call"].arguments
        return IndexLimit(_origin(index_of(value)), extent, *(number for number in ignored if type(number) is int))
    return None


def index_of(value: Value) -> Value:
    """The operand of a value that holds places or classes."""
    return value.operands[1 if value.op in INDEXED else 0]


def unguarded(index: Lazy) -> Lazy:
    """An index without what puts places that there are not in any range: once it is checked, there are none."""
    node = index.node
    if not isinstance(node, Computed) or node.op != "select":
        return index
    _, outside, places = node.operands
    is_guard = isinstance(outside, FixedNumber) and outside.number == torch.iinfo(DTYPES_BY_NAME[outside.dtype]).max
    return Lazy(index.shape, places) if is_guard else index


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


def uniform(value: Value) -> FixedNumber | None:
    """The one number that a constant holds everywhere, if it does."""
    tensor: torch.Tensor = value.attributes["tensor"]
    if not tensor.numel() or not bool((tensor == tensor.reshape(-1)[0]).all()):
        return None
    number = tensor.reshape(-1)[0].item()
    if tensor.dtype.is_floating_point or not isinstance(number, float):
        return FixedNumber(number, DTYPE_NAMES[tensor.dtype])
    return None


def read_by_check(value: Value, is_outside: Callable[[Value], bool]) -> frozenset[Value] | None:
    """What a check of a value that may fail reads of what lies outside, before the region runs; None without one."""
    read: set[Value] = set()

    def outside(operand: Value) -> Lazy | None:
        kind = operand.type
        if not isinstance(kind, TensorType) or not (is_outside(operand) or operand.op == "constant"):
            return None
        number = uniform(operand) if operand.op == "constant" else None
        name, window = DTYPE_NAMES[kind.dtype], Window(kind.shape, kind.strides)
        if operand.op == "constant":
            window = plain(kind.shape)
        else:
            read.add(operand)
        return Lazy(kind.shape, number or Leaf(LeafSource(), window, name))

    limit = limit_of(value)
    if limit is None or (not limit.is_kept and index_expression(limit.index, outside) is None):
        return None
    return frozenset(read)
