"""Prove that a condition holds exactly for the keys after a row: a comparison of positions, or a constant triangle."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weft.plan.fuse.assembly import Assembly
from weft.plan.regions.lazy import Computed, Counted, Fixed, Leaf, Node

# What a comparison with 0 of key - row + start says of key - row + start - 1, and of its opposite.
STRICT = {"gt": (1, 0), "ge": (1, 1), "lt": (-1, 0), "le": (-1, 1)}
OPPOSITE = {"gt": "le", "ge": "lt", "lt": "ge", "le": "gt"}


@dataclass(frozen=True, slots=True)
class Position:
    """An integer that is key * keys + row * rows + start."""

    keys: int
    rows: int
    start: int

    def minus(self, other: Position) -> Position:
        """The difference of two."""
        return Position(self.keys - other.keys, self.rows - other.rows, self.start - other.start)

    def times(self, factor: int) -> Position:
        """A multiple."""
        return Position(self.keys * factor, self.rows * factor, self.start * factor)


def hides_keys_behind(condition: Node, assembly: Assembly, *, shown: bool) -> bool:
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


def _line(node: Node, assembly: Assembly) -> Position | None:
    if isinstance(node, Fixed):
        return Position(0, 0, node.number) if isinstance(node.number, int) else None
    if isinstance(node, Counted) or (isinstance(node, Leaf) and _counts(node, assembly)):
        *_, rows, keys = node.window.strides
        return None if any(node.window.strides[:-2]) else Position(keys, rows, node.window.offset)
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
