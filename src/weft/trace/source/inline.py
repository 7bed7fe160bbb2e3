"""Calls of straight-line functions -> the expressions they compute, wherever nothing could notice.

The events of the call (effects.py) have to be the events of the expression, once each, in order, under the
same conditions; and every name has to mean in its new place what it meant in the function.
"""

import ast
import copy
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager

from weft.trace.source.effects import referred, same_effects
from weft.trace.source.fold import fold_expression, is_display
from weft.trace.source.function import Program, StraightLine, matched_arguments, straight_line
from weft.trace.source.names import bound_names

LARGEST_EXPRESSION = 100
LARGEST_GROWTH = 5000
# One round suffices where functions come before those that call them; stopping early is always correct.
MOST_ROUNDS = 20
# An argument of these kinds can bind a name, or let the rest of the program go on, in the middle of the call.
INTERRUPTING = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)


class _WriteOut(ast.NodeTransformer):
    """Replace references by what they refer to."""

    def __init__(self, lets: Sequence[ast.expr]) -> None:
        self.lets = lets

    def visit_Name(self, node: ast.Name) -> ast.AST:
        index = referred(node.id)
        return node if index is None else self.visit(copy.deepcopy(self.lets[index]))


def write_out(lets: Sequence[ast.expr]) -> ast.expr:
    """Give the last expression with all references written out."""
    expression: ast.expr = _WriteOut(lets).visit(copy.deepcopy(lets[-1]))
    return expression


def written_size(lets: Sequence[ast.expr]) -> int:
    """Count the nodes of the last expression with all references written out, without writing it."""
    sizes: list[int] = []
    for let in lets:
        indices = [referred(part.id) for part in ast.walk(let) if isinstance(part, ast.Name)]
        own = sum(1 for _ in ast.walk(let))
        sizes.append(own + sum(sizes[index] for index in indices if index is not None))
    return sizes[-1]


def misplaces_literal(expression: ast.expr) -> bool:
    """Say whether a literal would be called, indexed or compared by identity."""
    for part in ast.walk(fold_expression(expression)):
        match part:
            case ast.Call(func=operand) | ast.Subscript(value=operand):
                operands = [operand]
            case ast.Compare(left=left, comparators=comparators, ops=ops):
                identity = any(isinstance(op, ast.Is | ast.IsNot) for op in ops)
                operands = [node for node in (left, *comparators) if identity and not _is_none(node)]
            case _:
                operands = []
        if any(is_display(operand) for operand in operands):
            return True
    return False


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


class _Inline(ast.NodeTransformer):
    """Walks a program in the order it runs, knowing at each place which names have a value for good."""

    def __init__(self, program: Program, lines: dict[str, StraightLine]) -> None:
        self.program = program
        self.lines = lines
        self.steady: AbstractSet[str] = program.names.always_bound()
        self.hidden: AbstractSet[str] = frozenset()
        self.growth = 0

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Visit statements that run one after the other; what they bind holds until the end of the block."""
        before, result = self.steady, []
        for statement in statements:
            result.append(self.visit(statement))
            self.steady = self.steady | self.program.names.bound_by(statement)
        self.steady = before
        return result

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, field, self.block(value))
            elif isinstance(value, list):
                setattr(node, field, [self.visit(item) if isinstance(item, ast.AST) else item for item in value])
            elif isinstance(value, ast.AST):
                setattr(node, field, self.visit(value))
        return node

    @contextmanager
    def scope(self, bound: AbstractSet[str], given: AbstractSet[str]) -> Iterator[None]:
        """Go inside a scope that binds some names, of which some are given from the start."""
        before = self.steady, self.hidden
        self.steady = (self.steady - bound) | (given - self.program.names.unsteady)
        self.hidden = self.hidden | bound
        yield
        self.steady, self.hidden = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        # Defaults, decorators and annotations are evaluated elsewhere, or never: they stay as written.
        inside = frozenset(name for statement in node.body for name in bound_names(statement))
        parameters = frozenset(bound_names(node.args))
        with self.scope(inside | parameters, parameters):
            node.body = self.block(node.body)
            line = straight_line(node, self.program) if node is self.program.functions.get(node.name) else None
            if isinstance(line, StraightLine):
                self.lines[node.name] = line  # as it is now, for the functions that follow
                self.flatten(node, line)
        return node

    def flatten(self, node: ast.FunctionDef, line: StraightLine) -> None:
        """Make a function one expression, each part in its own line, so that no step of it is ever stored."""
        lets = line.lets({})
        if len(lets) > 1 and written_size(lets) <= LARGEST_EXPRESSION and same_effects(lets, self.steady):
            expression = write_out(lets)
            if not misplaces_literal(expression):
                docstring = node.body[:1] if ast.get_docstring(node, clean=False) is not None else []
                node.body = [*docstring, ast.copy_location(ast.Return(expression), node.body[-1])]

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        parameters = frozenset(bound_names(node.args))
        with self.scope(parameters | frozenset(bound_names(node.body)), parameters):
            node.body = self.visit(node.body)
        return node

    def comprehension(self, node: ast.AST) -> ast.AST:
        """Visit a comprehension: its names hide others, and none of them has a value everywhere inside."""
        with self.scope(frozenset(bound_names(node)), frozenset()):
            return self.generic_visit(node)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = comprehension  # noqa: N815

    def left_alone(self, node: ast.AST) -> ast.AST:
        """Leave what has rules of its own for names (classes), for pausing (async) or for text (f-strings, match)."""
        return node

    visit_ClassDef = visit_AsyncFunctionDef = visit_JoinedStr = visit_Match = left_alone  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        node.iter = self.visit(node.iter)
        before = self.steady
        self.steady = before | (frozenset(bound_names(node.target)) - self.program.names.unsteady)
        node.body = self.block(node.body)
        self.steady = before
        node.orelse = self.block(node.orelse)
        return node

    def operand(self, node: ast.expr) -> ast.expr:
        """Visit what is called, indexed or compared by identity, unless a literal would be left there."""
        growth = self.growth
        visited: ast.expr = self.visit(copy.deepcopy(node))
        if not is_display(visited):
            return visited
        self.growth = growth
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if not any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            return self.generic_visit(node)
        node.left = self.operand(node.left)
        node.comparators = [self.operand(comparator) for comparator in node.comparators]
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.value = self.operand(node.value)
        if not is_display(node.value):
            node.slice = self.visit(node.slice)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.func = self.operand(node.func)
        node.args = [self.visit(argument) for argument in node.args]
        node.keywords = [self.visit(keyword) for keyword in node.keywords]
        if not isinstance(node.func, ast.Name) or node.func.id not in self.steady - self.hidden:
            return node
        line = self.lines.get(node.func.id)
        arguments = None if line is None else matched_arguments(node, line)
        if line is None or arguments is None or line.free_names() & self.hidden:
            return node
        if any(isinstance(part, INTERRUPTING) for part in ast.walk(node)):
            return node
        return self.expression(line.lets(arguments), node, len(arguments)) or node

    def expression(self, lets: list[ast.expr], call: ast.AST, arguments: int) -> ast.expr | None:
        """Write steps as one expression that says it stands in the line of the call; None if that is noticeable."""
        size = written_size(lets)
        if size > LARGEST_EXPRESSION or self.growth + size > LARGEST_GROWTH or not same_effects(lets, self.steady):
            return None
        for step in lets[arguments:]:
            for part in ast.walk(step):
                if isinstance(part, ast.expr | ast.keyword):
                    ast.copy_location(part, call)
        expression = write_out(lets)
        if misplaces_literal(expression):
            return None
        self.growth += size
        return expression


def inline(tree: ast.Module) -> tuple[ast.Module, tuple[str, ...]]:
    """Replace calls by the expressions they compute, and say which functions have to be called and why."""
    tree = copy.deepcopy(tree)
    notes: dict[str, None] = {}
    growth = 0
    for _ in range(MOST_ROUNDS):
        program = Program.of(tree)
        read = {name: straight_line(node, program) for name, node in program.functions.items()}
        lines = {name: line for name, line in read.items() if isinstance(line, StraightLine)}
        notes.update((f"{name} stays a function: {line}", None) for name, line in read.items() if isinstance(line, str))
        walk = _Inline(program, lines)
        walk.growth = growth
        tree.body = walk.block(tree.body)
        if walk.growth == growth:
            break
        growth = walk.growth
    return tree, tuple(notes)
