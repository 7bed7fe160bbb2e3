"""Read what must hold of sizes, as `n % 2 == 0 and n > 8`: Python's arithmetic, of which nothing else is understood."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from weft.errors import UsageError

OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Div: operator.truediv, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Not: operator.not_, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {"max": max, "min": min, "abs": abs}
MOST_CHARACTERS = 4096
MOST_NODES = 512
Holds = Callable[[Mapping[str, int]], bool]


def read_condition(text: str, names: Collection[str]) -> Holds:
    """Give what tells whether it holds for sizes of these names, or raise UsageError."""
    try:
        tree = ast.parse(text, mode="eval") if len(text) <= MOST_CHARACTERS else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if tree is None or sum(1 for _ in ast.walk(tree)) > MOST_NODES:
        raise _not_understood(text)
    _check(tree.body, names, text)
    body = tree.body

    def holds(sizes: Mapping[str, int]) -> bool:
        try:
            return bool(_value(body, sizes))
        except (ZeroDivisionError, OverflowError):
            return False

    return holds


def _not_understood(text: str) -> UsageError:
    return UsageError(
        f"a condition on sizes is not understood: {text[:80]}",
        why="it is arithmetic on the sizes of the program, with comparisons",
    )


def _check(node: ast.AST, names: Collection[str], text: str) -> None:
    """Raise UsageError for all but arithmetic on whole numbers and known names."""
    if isinstance(node, ast.Name):
        fits = node.id in names
    elif isinstance(node, ast.Constant):
        fits = isinstance(node.value, int) and abs(node.value) < 1 << 63
    elif isinstance(node, ast.Call):
        fits = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and bool(node.args) and not node.keywords
        for argument in node.args:
            _check(argument, names, text)
    elif isinstance(node, ast.BinOp):
        fits = type(node.op) in OPERATORS
        _check(node.left, names, text)
        _check(node.right, names, text)
    elif isinstance(node, ast.UnaryOp):
        fits = type(node.op) in OPERATORS
        _check(node.operand, names, text)
    elif isinstance(node, ast.Compare):
        fits = all(type(one) in OPERATORS for one in node.ops)
        for part in (node.left, *node.comparators):
            _check(part, names, text)
    else:
        fits = isinstance(node, ast.BoolOp)
        for part in node.values if isinstance(node, ast.BoolOp) else ():
            _check(part, names, text)
    if not fits:
        raise _not_understood(text)


def _value(node: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Call):
        return FUNCTIONS[node.func.id](*(_value(argument, sizes) for argument in node.args))  # type: ignore[attr-defined]
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](_value(node.operand, sizes))
    if isinstance(node, ast.Compare):
        values = [_value(part, sizes) for part in (node.left, *node.comparators)]
        return all(OPERATORS[type(one)](values[at], values[at + 1]) for at, one in enumerate(node.ops))
    found = (_value(part, sizes) for part in node.values)
    return all(found) if isinstance(node.op, ast.And) else any(found)
