"""Replace calls of straight-line functions by the arithmetic they compute, wherever nothing could notice.

A straight line names results of arithmetic on its parameters and on constants, step by step, and returns the last one.
It reads no other names, so that its expressions mean the same wherever they stand. What could notice is what an
operator runs, a lookup that fails, a call among the arguments: in place of the call all of these must happen once each,
in the order in which the call makes them happen.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from weft.trace.source.fold import Rewriter, number
from weft.trace.source.names import bound_names, loaded_names

LARGEST_EXPRESSION = 100
LARGEST_GROWTH = 5000
ARITHMETIC = (ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
# An argument with one of these can bind a name, or let the rest of the program go on, in the middle of the call.
INTERRUPTING = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await, ast.Starred)


@dataclass(frozen=True)
class StraightLine:
    """A function whose call can be replaced by its steps: a name for each, none for the one that is returned."""

    parameters: tuple[str, ...]
    steps: tuple[tuple[str | None, ast.expr], ...]

    def written_out(
        self, arguments: list[ast.expr], settled: AbstractSet[str], call: ast.expr | None = None
    ) -> ast.expr | None:
        """Give one expression for all steps; None if it is too large, or does not do what they do one by one.

        It stands in the line of the call, if there is one.
        """
        meaning: dict[str | None, ast.expr] = dict(zip(self.parameters, arguments, strict=True))
        events = [part for argument in arguments for part in _events(argument, settled)]
        for place, part in enumerate(events):
            vars(part)["event"] = place  # which copies take along
        count = len(events)
        for name, value in self.steps:
            step = copy.deepcopy(value)
            own = {id(part): part for part in ast.walk(step) if isinstance(part, ast.expr)}
            for part in own.values():
                ast.copy_location(part, call or part)
            meaning[name] = _Substitute(meaning).visit(step)
            if sum(1 for _ in ast.walk(meaning[name])) > LARGEST_EXPRESSION:
                return None
            for part in _events(meaning[name], settled):
                if id(part) in own:
                    vars(part)["event"] = count
                    count += 1
        found = [vars(part)["event"] for part in _events(meaning[None], settled)]
        return meaning[None] if found == list(range(count)) else None


class _Substitute(ast.NodeTransformer):
    """Replace names by what they mean."""

    def __init__(self, meaning: Mapping[str | None, ast.expr]) -> None:
        self.meaning = meaning

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self.meaning[node.id])


def _events(node: ast.expr, settled: AbstractSet[str]) -> Iterator[ast.expr]:
    """Give the parts of an expression whose evaluation something could notice, in Python's order."""
    if isinstance(node, ast.Constant) or number(node) is not None:
        return
    if isinstance(node, ast.Name) and node.id in settled:
        return
    if isinstance(node, ast.BinOp):
        yield from _events(node.left, settled)
        yield from _events(node.right, settled)
    if isinstance(node, ast.UnaryOp):
        yield from _events(node.operand, settled)
    yield node  # an expression of another kind is evaluated as it stands


def straight_line(node: ast.FunctionDef) -> StraightLine | str:
    """Read a function as a straight line, or say in half a sentence why it stays a call."""
    given = node.args
    parameters = tuple(parameter.arg for parameter in (*given.posonlyargs, *given.args))
    if node.decorator_list:
        return "it is decorated"
    if given.vararg or given.kwarg or given.kwonlyargs or given.defaults or vars(node).get("type_params"):
        return "its parameters are more than names"
    if node.name in loaded_names(node):
        return "it is recursive"
    steps: list[tuple[str | None, ast.expr]] = []
    for statement in node.body:
        match statement:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                continue
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                steps.append((name, value))
            case ast.Return(value=ast.expr() as value) if statement is node.body[-1]:
                steps.append((None, value))
            case _:
                return f"line {statement.lineno} is more than naming a value"
    if not steps or steps[-1][0] is not None:
        return "it does not end by returning a value"
    return _reason_in_steps(parameters, steps) or StraightLine(parameters, tuple(steps))


def _reason_in_steps(parameters: Iterable[str], steps: Iterable[tuple[str | None, ast.expr]]) -> str | None:
    known: set[str | None] = set(parameters)
    for name, value in steps:
        for part in ast.walk(value):
            if isinstance(part, ast.Call):
                return f"it calls {ast.unparse(part.func)}"
            if not isinstance(part, ARITHMETIC):
                return f"line {value.lineno} is more than arithmetic"
            if isinstance(part, ast.Name) and part.id not in known:
                return f"it reads {part.id}, which is no earlier name of its own"
        known.add(name)
    return None


class _Inline(Rewriter):
    """Walk a program in the order in which it runs, knowing which functions and names are there for good."""

    def __init__(self, tree: ast.Module) -> None:
        self.bindings = Counter(bound_names(tree))
        self.lines: dict[str, StraightLine] = {}
        self.notes: list[str] = []
        self.settled: AbstractSet[str] = frozenset()  # names that keep the value that they have here
        self.growth = 0

    def program(self, body: list[ast.stmt]) -> None:
        """Visit the statements of a program; a name that is bound in one place alone stays from there on."""
        for statement in body:
            names: list[str] = []
            if isinstance(statement, ast.FunctionDef) and self.bindings[statement.name] == 1:
                self.definition(statement)
                names = [statement.name]
            else:
                self.visit(statement)
            if isinstance(statement, ast.Assign):
                names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            self.settled |= {name for name in names if self.bindings[name] == 1}

    def definition(self, node: ast.FunctionDef) -> None:
        """Visit a function, and make it one expression if it is a straight line."""
        self.visit(node)
        line = straight_line(node)
        if isinstance(line, str):
            self.notes.append(f"{node.name} stays a function: {line}")
            return
        self.lines[node.name] = line
        expression = line.written_out([ast.Name(name, ast.Load()) for name in line.parameters], set(line.parameters))
        if len(line.steps) > 1 and expression is not None:
            docstring = node.body[:1] if ast.get_docstring(node, clean=False) is not None else []
            node.body = [*docstring, ast.copy_location(ast.Return(expression), node.body[-1])]

    def replaced(self, node: ast.expr) -> ast.expr:
        """Give what a call computes, if nothing could notice."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
            return node
        line = self.lines.get(node.func.id)
        if line is None or len(node.args) != len(line.parameters) or self.growth > LARGEST_GROWTH:
            return node
        if any(isinstance(part, INTERRUPTING) for part in ast.walk(node)):
            return node
        expression = line.written_out(node.args, self.settled, node)
        self.growth += 0 if expression is None else sum(1 for _ in ast.walk(expression))
        return node if expression is None else expression


def inline(tree: ast.Module) -> tuple[ast.Module, list[str]]:
    """Replace calls by the expressions they compute, and say which functions have to be called and why."""
    tree = copy.deepcopy(tree)
    walk = _Inline(tree)
    walk.program(tree.body)
    return tree, walk.notes


def prune(tree: ast.Module) -> ast.Module:
    """Remove straight lines that nothing mentions any more, if nothing is evaluated to define them."""
    bindings = Counter(bound_names(tree))
    plain = [node for node in tree.body if isinstance(node, ast.FunctionDef) and bindings[node.name] == 1]
    plain = [node for node in plain if isinstance(straight_line(node), StraightLine) and not _is_annotated(node)]
    # They read no names but their own.
    used = {name for node in tree.body if node not in plain for name in loaded_names(node)}
    return ast.Module([node for node in tree.body if node not in plain or node.name in used], tree.type_ignores)


def _is_annotated(node: ast.FunctionDef) -> bool:
    return bool(node.returns) or any(isinstance(part, ast.arg) and part.annotation for part in ast.walk(node))
