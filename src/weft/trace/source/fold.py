"""Expressions of literals -> the literal they have as their value, where Python's own result is known and small."""

import ast
import copy
import math
import operator
from collections.abc import Callable
from typing import Any

# What is computed now has to be stored in the program: small enough that nobody notices.
LARGEST_BITS = 128
LARGEST_SIZE = 256

Literal = bool | int | float | str | tuple["Literal", ...] | None


class NoLiteral(Exception):  # noqa: N818  (not an error: a plain answer from deep inside an expression)
    """The expression is no literal: its value is unknown, too large, or an exception at run time."""


BINARY: dict[type[ast.operator], Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], object]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}
# Without `is`: the identity of a literal is the implementation's business, and comparing it is warned about.
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda member, container: operator.contains(container, member),
    ast.NotIn: lambda member, container: not operator.contains(container, member),
}
# Python warns when one of these is called, indexed or compared by identity.
DISPLAYS = (
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Dict,
    ast.Set,
    ast.JoinedStr,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.Lambda,
)
# What may vanish with a branch that is never taken: nothing that binds a name or makes a function a generator.
DROPPABLE = (ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple, ast.Call)
DROPPABLE_PARTS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context, ast.keyword)


def literal(node: ast.expr) -> Literal:
    """Give the value of an expression of literals; raise NoLiteral where there is none."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Tuple(elts=elements, ctx=ast.Load()):
            return tuple(literal(element) for element in elements)
        case ast.UnaryOp():
            return _unary(node)
        case ast.BinOp():
            return _binary(node)
        case ast.Compare():
            return _compare(node)
    raise NoLiteral


def is_literal(node: ast.expr) -> bool:
    """Say whether an expression has a value that is known now."""
    try:
        literal(node)
    except NoLiteral:
        return False
    return True


def is_display(node: ast.expr) -> bool:
    """Say whether Python may see a literal, or a list and the like, already when it compiles the expression."""
    return isinstance(node, DISPLAYS) or not any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(node))


def literal_node(value: Literal, at: ast.expr) -> ast.expr:
    """Make the expression that has this value, at the place of another one."""
    node: ast.expr
    if isinstance(value, tuple):
        node = ast.Tuple([literal_node(element, at) for element in value], ast.Load())
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.copysign(1, value) < 0:
        # A negative Constant would print as `-2 ** 2`, which reads back as something else.
        node = ast.UnaryOp(ast.USub(), ast.copy_location(ast.Constant(-value), at))
    else:
        node = ast.Constant(value)
    return ast.copy_location(node, at)


def _attempt(compute: Callable[..., object], *operands: Literal) -> Literal:
    """Compute now what the program would compute later, unless that raises or its result does not fit a literal."""
    try:
        value = compute(*operands)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise NoLiteral from error
    if not _fits(value):
        raise NoLiteral
    return value  # type: ignore[return-value]  # _fits has checked the type


def _fits(value: object) -> bool:
    if type(value) is tuple:
        return _size(value) <= LARGEST_SIZE and all(_fits(element) for element in value)
    if type(value) is int:
        return value.bit_length() <= LARGEST_BITS
    if type(value) is float:
        return math.isfinite(value)  # nan has no literal; infinity has only a misleading one
    if type(value) is str:
        return len(value) <= LARGEST_SIZE
    return value is None or type(value) is bool


def _size(value: object) -> int:
    """Count the letters of texts and the elements of tuples, at all depths."""
    if isinstance(value, tuple):
        return 1 + sum(_size(element) for element in value)
    return len(value) if isinstance(value, str) else 1


def _unary(node: ast.UnaryOp) -> Literal:
    value = literal(node.operand)
    if isinstance(node.op, ast.Invert) and isinstance(value, bool):
        raise NoLiteral  # Python warns about ~True, and should go on doing so
    return _attempt(UNARY[type(node.op)], value)


def _binary(node: ast.BinOp) -> Literal:
    compute = BINARY.get(type(node.op))
    if compute is None:
        raise NoLiteral
    left, right = literal(node.left), literal(node.right)
    if _may_be_huge(node.op, left, right):
        raise NoLiteral
    return _attempt(compute, left, right)


def _may_be_huge(op: ast.operator, left: Literal, right: Literal) -> bool:
    """Say before computing whether a result could be too large; the operands themselves fit already."""
    if isinstance(op, ast.Mod):
        return isinstance(left, str)  # "%999999999d" % 1
    if isinstance(op, ast.Mult):
        return any(
            isinstance(many, str | tuple) and isinstance(times, int) and _size(many) * times > LARGEST_SIZE
            for many, times in ((left, right), (right, left))
        )
    if isinstance(left, int) and isinstance(right, int):
        if isinstance(op, ast.LShift):
            return right > LARGEST_BITS
        if isinstance(op, ast.Pow):
            return abs(right) * left.bit_length() > LARGEST_BITS
    return False


def _compare(node: ast.Compare) -> Literal:
    left, result = literal(node.left), True
    rights = [literal(comparator) for comparator in node.comparators]
    for op, right in zip(node.ops, rights, strict=True):
        compute = COMPARE.get(type(op))
        if compute is None:
            raise NoLiteral
        result = result and bool(_attempt(compute, left, right))
        left = right
    return result


class _Fold(ast.NodeTransformer):
    """Replace what has a known value, from the leaves up; annotations, patterns and f-strings stay as written.

    So does what is called, indexed or compared by identity: Python would warn about a literal there.
    """

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.pattern | ast.JoinedStr | ast.arguments):
            return node
        return super().visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        value = self.visit(node.value)
        # `"a" + "b"` as a first statement is no docstring, but `"ab"` would be one.
        if not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
            node.value = value
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        return _folded(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return _folded(node)

    def operand(self, node: ast.expr) -> ast.expr:
        """Fold inside what is called, indexed or compared by identity, unless a literal would be left there."""
        folded: ast.expr = self.visit(copy.deepcopy(node))
        return node if is_display(folded) else folded

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            node.left = self.operand(node.left)
            node.comparators = [self.operand(comparator) for comparator in node.comparators]
            return node
        self.generic_visit(node)
        return _folded(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.func = self.operand(node.func)
        node.args = [self.visit(argument) for argument in node.args]
        node.keywords = [self.visit(keyword) for keyword in node.keywords]
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.value = self.operand(node.value)
        if not is_display(node.value):
            node.slice = self.visit(node.slice)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        if not is_literal(node.test):
            return node
        taken, dropped = (node.body, node.orelse) if literal(node.test) else (node.orelse, node.body)
        return taken if _droppable(dropped) else node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        while len(node.values) > 1 and is_literal(node.values[0]):
            first, *rest = node.values
            if bool(literal(first)) is isinstance(node.op, ast.And):
                node.values = rest  # the first operand only hands over to the next
            elif all(_droppable(value) for value in rest):
                return first
            else:
                break
        return node if len(node.values) > 1 else node.values[0]


def _folded(node: ast.expr) -> ast.expr:
    try:
        return literal_node(literal(node), node)
    except NoLiteral:
        return node


def _droppable(node: ast.expr) -> bool:
    return all(isinstance(part, (*DROPPABLE, *DROPPABLE_PARTS)) for part in ast.walk(node))


def fold(tree: ast.Module) -> ast.Module:
    """Replace every expression of literals by its value, where that cannot raise, warn or grow."""
    folded: ast.Module = _Fold().visit(copy.deepcopy(tree))
    return folded


def fold_expression(node: ast.expr) -> ast.expr:
    """Fold one expression, leaving the given one as it is."""
    folded: ast.expr = _Fold().visit(copy.deepcopy(node))
    return folded
