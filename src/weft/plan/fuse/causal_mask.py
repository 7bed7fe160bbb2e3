"""An expression of scores -> whether the keys after a row are masked, for any row and whatever the scores are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from weft.plan.fuse.assembly import Assembly
from weft.plan.regions.lazy import Computed, Counted, Fixed, Lazy, Leaf, Node, walk

# What a comparison with 0 of key - row + start says of key - row + start - 1, and of its opposite.
STRICT = {"gt": (1, 0), "ge": (1, 1), "lt": (-1, 0), "le": (-1, 1)}
OPPOSITE = {"gt": "le", "ge": "lt", "lt": "ge", "le": "gt"}


@dataclass(frozen=True, slots=True)
class Line:
    """An integer that is key * keys + row * rows + start."""

    keys: int
    rows: int
    start: int

    def minus(self, other: Line) -> Line:
        """The difference of two."""
        return Line(self.keys - other.keys, self.rows - other.rows, self.start - other.start)

    def times(self, factor: int) -> Line:
        """A multiple."""
        return Line(self.keys * factor, self.rows * factor, self.start * factor)


def is_causal(scores: Lazy, assembly: Assembly) -> bool:
    """Whether scores are -inf exactly where the key comes after the row, and elsewhere something else."""
    node = scores.node
    if not isinstance(node, Computed) or node.op != "select":
        return False
    condition, yes, no = node.operands
    if _is_number(yes, -float("inf")):
        return _hides(condition, assembly, shown=False)
    return _is_number(no, -float("inf")) and _hides(condition, assembly, shown=True)


def is_zero_after_row(lazy: Lazy, assembly: Assembly) -> bool:
    """Whether an expression is 0 wherever the key comes after the row, as what follows from masked scores is."""
    known: dict[int, float | None] = {}
    for node in walk(lazy.node):
        known[id(node)] = _after_row(node, known, assembly)
    return known[id(lazy.node)] == 0


def _after_row(node: Node, known: Mapping[int, float | None], assembly: Assembly) -> float | None:
    """The number that an expression is wherever the key comes after the row; None where that is not known."""
    if isinstance(node, Fixed):
        return node.number
    if not isinstance(node, Computed):
        return None
    if node.op == "select":
        condition, yes, no = node.operands
        if _hides(condition, assembly, shown=False):
            return known[id(yes)]
        if _hides(condition, assembly, shown=True):
            return known[id(no)]
    first, *rest = (known[id(operand)] for operand in node.operands)
    return FOLLOWS[node.op](first, *rest) if node.op in FOLLOWS else None


def _product(first: float | None, second: float | None) -> float | None:
    if 0 in (first, second):
        return 0.0
    hidden = first == HIDDEN and second is not None and second > 0
    return HIDDEN if hidden or (second == HIDDEN and first is not None and first > 0) else None


def _sum(first: float | None, second: float | None) -> float | None:
    if HIDDEN in (first, second):
        return HIDDEN
    return 0.0 if first == second == 0 else None


def _quotient(first: float | None, second: float | None) -> float | None:
    if first == 0:
        return 0.0
    return HIDDEN if first == HIDDEN and second is not None and second > 0 else None


# What follows from a score of -inf and from 0, and so holds whatever else is computed with, as long as that is finite.
HIDDEN = -float("inf")
FOLLOWS: Mapping[str, Callable[..., float | None]] = {
    "exp": lambda number: 0.0 if number == HIDDEN else None,
    "mul": _product,
    "div": _quotient,
    "add": _sum,
    "sub": lambda first, second: HIDDEN if first == HIDDEN else _sum(first, None if second == HIDDEN else second),
    "neg": lambda number: 0.0 if number == 0 else None,
    "cast": lambda number: number,
    "select": lambda _, yes, no: yes if yes == no else None,
}


def _hides(condition: Node, assembly: Assembly, *, shown: bool) -> bool:
    """Whether a condition holds exactly for the keys after a row; or exactly for the others, which are `shown`."""
    while isinstance(condition, Computed):
        if condition.op in ("logical_not", "bitwise_not") and condition.dtype == "bool":
            condition, shown = condition.operands[0], not shown
        elif condition.op == "select" and _is_number(condition.operands[1], 1) and _is_number(condition.operands[2], 0):
            condition = condition.operands[0]
        else:
            break
    if isinstance(condition, Leaf):
        return _is_triangle(condition, assembly, shown=shown)
    if not isinstance(condition, Computed) or condition.op not in STRICT:
        return False
    left, right = (_line(operand, assembly) for operand in condition.operands)
    if left is None or right is None:
        return False
    sign, equal = STRICT[OPPOSITE[condition.op] if shown else condition.op]
    # Now the keys are hidden where this is above 0.
    found = left.minus(right).times(sign)
    return (found.keys, found.rows, found.start + equal) == (1, -1, 0)


def _line(node: Node, assembly: Assembly) -> Line | None:
    if isinstance(node, Fixed):
        return Line(0, 0, node.number) if isinstance(node.number, int) else None
    if isinstance(node, Counted) or (isinstance(node, Leaf) and _counts(node, assembly)):
        *_, rows, keys = node.window.strides
        return None if any(node.window.strides[:-2]) else Line(keys, rows, node.window.offset)
    if not isinstance(node, Computed) or node.op not in ("add", "sub") or node.dtype != "i64":
        return None
    left, right = (_line(operand, assembly) for operand in node.operands)
    if left is None or right is None:
        return None
    return left.minus(right if node.op == "sub" else right.times(-1))


def _counts(leaf: Leaf, assembly: Assembly) -> bool:
    """Whether what is read is a constant that holds 0, 1, 2 and so on."""
    table = _constant(leaf, assembly)
    return table is not None and leaf.dtype == "i64" and torch.equal(table.reshape(-1), torch.arange(table.numel()))


def _constant(leaf: Leaf, assembly: Assembly) -> torch.Tensor | None:
    buffer = assembly.buffers[leaf.source.buffer]
    known = leaf.source.pending is None and buffer.kind == "constant"
    return assembly.constants[buffer.index] if known else None


def _is_number(node: Node, number: float) -> bool:
    return isinstance(node, Fixed) and node.number == number


def _is_triangle(mask: Leaf, assembly: Assembly, *, shown: bool) -> bool:
    """Whether a mask is a constant that names the keys after a row, or the others, the same for all of the batch."""
    table = _constant(mask, assembly)
    *_, rows, keys = mask.window.shape
    if table is None or mask.window.offset or table.numel() != rows * keys:
        return False
    if any(mask.window.strides[:-2]) or mask.window.strides[-2:] != (keys, 1):
        return False
    whole = torch.ones(rows, keys, dtype=table.dtype)
    return torch.equal(table.reshape(rows, keys), whole.tril() if shown else whole.triu(1))
