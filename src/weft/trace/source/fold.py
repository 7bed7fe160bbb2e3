"""Replace arithmetic on numbers by its result, where Python's own is known, finite and small."""

import ast
import copy
import math
import operator
from collections.abc import Callable
from typing import Any

# What is computed now has to be stored in the program: small enough that nobody notices.
LARGEST_BITS = 128

BINARY: dict[type[ast.operator], Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], object]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}


class Rewriter(ast.NodeTransformer):
    """Visit what a program evaluates; annotations, defaults, decorators, patterns and f-strings stay as written.

    So does what is called, indexed or compared by identity, but for what is inside: Python would warn about a number
    there. And what is no docstring does not become one.
    """

    def replaced(self, node: Any) -> Any:
        """Give what stands in the place of an expression whose parts have been visited."""
        raise NotImplementedError

    def visit(self, node: Any) -> Any:
        """Visit the parts of a node, then the node."""
        before: Any = getattr(node, "value", None)
        node = self.parts(node)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value = before
        return self.replaced(node) if isinstance(node, ast.expr) else node

    def parts(self, node: Any) -> Any:
        """Visit the parts of a node."""
        match node:
            case ast.pattern() | ast.JoinedStr() | ast.arguments():
                return node
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                node.body = [self.visit(statement) for statement in node.body]
            case ast.AnnAssign():
                if node.value is not None:
                    node.value = self.visit(node.value)
            case ast.Call():
                node.func = self.parts(node.func)
                node.args = [self.visit(argument) for argument in node.args]
                node.keywords = [self.visit(keyword) for keyword in node.keywords]
            case ast.Subscript():
                node.value = self.parts(node.value)
                if isinstance(node.value, ast.Name | ast.Attribute | ast.Call):  # it looks at indices of literals too
                    node.slice = self.visit(node.slice)
            case ast.Compare() if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
                node.left = self.parts(node.left)
                node.comparators = [self.parts(comparator) for comparator in node.comparators]
            case _:
                return self.generic_visit(node)
        return node


def number(node: ast.expr) -> int | float | None:
    """Give the number that an expression is, computed now; None where that is not known, not finite or not small."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _computed(operator.pos, value)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
            return _computed(UNARY[type(op)], number(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return _computed(BINARY[type(op)], number(left), number(right))
    return None


def _computed(compute: Callable[..., Any], *operands: Any) -> int | float | None:
    if None in operands or (compute is operator.pow and _may_be_huge(*operands)):
        return None
    try:
        value = compute(*operands)
    except ArithmeticError:
        return None
    if isinstance(value, int):
        return value if value.bit_length() <= LARGEST_BITS else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def _may_be_huge(base: Any, power: Any) -> bool:
    return isinstance(base, int) and isinstance(power, int) and abs(power) * base.bit_length() > LARGEST_BITS


class _Fold(Rewriter):
    def replaced(self, node: ast.expr) -> ast.expr:
        value = number(node) if isinstance(node, ast.BinOp | ast.UnaryOp) else None
        if value is None:
            return node
        constant = ast.copy_location(ast.Constant(abs(value)), node)
        # A negative Constant would print as `-2 ** 2`, which reads back as something else.
        is_negative = math.copysign(1, value) < 0
        return ast.copy_location(ast.UnaryOp(ast.USub(), constant), node) if is_negative else constant


def fold(tree: ast.Module) -> ast.Module:
    """Replace every expression of numbers by its value, where that cannot raise, warn or grow."""
    folded: ast.Module = _Fold().visit(copy.deepcopy(tree))
    return folded
