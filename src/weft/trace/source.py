"""Optimise the text of a program in stages: as written, functions inlined, constants folded.

Every stage is a program that does the same: it prints the same, ends in the same value and raises the same exceptions.
What an optimised program may not have is what the text cannot look at: calls as frames of a traceback, and
intermediate values that stay alive until a function returns.

A straight line names results of arithmetic on its parameters and on constants, step by step, and returns the last one.
It reads no other names, so that its expressions mean the same wherever they stand. What could notice is what an
operator runs, a lookup that fails, a call among the arguments: in place of the call all of these must happen once each,
in the order in which the call makes them happen.
"""

from __future__ import annotations

import ast
import copy
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from weft.ir.size_text import parsed

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


PEEKING_NAMES = frozenset(
    "globals locals vars dir eval exec compile getattr setattr delattr hasattr breakpoint help".split()  # noqa: SIM905
)
PEEKING_MODULES = frozenset(
    "sys inspect traceback gc importlib builtins ast dis types ctypes linecache logging warnings pdb bdb code "  # noqa: SIM905
    "trace tracemalloc profile cProfile faulthandler runpy pickle copyreg pandas numexpr weft".split()
)
PEEKING_ATTRIBUTES = frozenset(
    "f_globals f_locals f_back f_code f_builtins f_trace gi_frame gi_code cr_frame cr_code ag_frame ag_code "  # noqa: SIM905
    "tb_frame tb_next _getframe".split()
)
ORDINARY_DUNDERS = frozenset(
    "__init__ __post_init__ __new__ __call__ __class__ __len__ __iter__ __next__ __enter__ __exit__ __version__".split()  # noqa: SIM905
)


def is_dunder(name: str) -> bool:
    """Say whether a name is one of Python's own, such as `__name__`."""
    return name.startswith("__") and name.endswith("__")


def bound_names(node: ast.AST) -> Iterator[str]:
    """Give every name that is bound, unbound or declared anywhere inside, in any scope, once for each place."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            if not isinstance(part.ctx, ast.Load):
                yield part.id
        elif isinstance(part, ast.alias):
            yield part.asname or part.name.partition(".")[0]
        elif isinstance(part, ast.arg):
            yield part.arg
        elif isinstance(part, ast.Global | ast.Nonlocal):
            yield from part.names
        elif isinstance(part, ast.MatchMapping):
            if part.rest:
                yield part.rest
        elif isinstance(name := vars(part).get("name"), str):
            yield name  # functions, classes, handlers, captures of match, type parameters


def loaded_names(node: ast.AST) -> Iterator[str]:
    """Give every name that is read anywhere inside, once for each place."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            yield part.id


def _peek(part: ast.AST) -> str | None:
    match part:
        case ast.Name(id=name) if name in PEEKING_NAMES or is_dunder(name):
            return name
        case ast.Attribute(attr=name) if name in PEEKING_ATTRIBUTES:
            return name
        case ast.Attribute(attr=name) if is_dunder(name) and name not in ORDINARY_DUNDERS:
            return name
        case ast.Import(names=aliases):
            roots = [alias.name.partition(".")[0] for alias in aliases]
            return next((f"import {root}" for root in roots if root in PEEKING_MODULES), None)
        case ast.ImportFrom(module=module, names=aliases, level=level):
            root = (module or "").partition(".")[0]
            if level or root in PEEKING_MODULES or any(alias.name == "*" for alias in aliases):
                return f"from {'.' * level}{module or ''} import {', '.join(alias.name for alias in aliases)}"
    return None


def find_peek(tree: ast.Module) -> str | None:
    """Say where the program could see that a function of its own is gone or was not called: `line 3 uses globals`."""
    peeks = ((part, _peek(part)) for part in ast.walk(tree))
    return next((f"line {getattr(part, 'lineno', 1)} uses {what}" for part, what in peeks if what is not None), None)


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


# Beyond these a program runs as written: passes over trees are recursive, and Python itself gives up not much later.
DEEPEST = 60
MOST_NODES = 20_000
MOST_BITS = 4_000
# Operators of one level that a reader takes one after the other.
LEVELS = ((ast.Add, ast.Sub), (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult))


@dataclass(frozen=True)
class Stage:
    """A program between two passes: its name, its text, and its tree with the lines of the original."""

    name: str
    text: str
    tree: ast.Module


@dataclass(frozen=True)
class Optimised:
    """What became of a program: its stages, and why what could have been expected did not happen, a sentence each."""

    stages: tuple[Stage, ...]
    definitions: ast.Module  # the last stage with every function still in it, for whoever asks for one by name
    notes: tuple[str, ...]


def optimise(text: str, tree: ast.Module) -> Optimised:
    """Optimise a program that has been parsed from this text."""
    stages = [Stage("source", text, tree)]
    reason = _too_large(tree)
    if reason is not None:
        return Optimised(tuple(stages), tree, (f"the program runs as written: {reason}",))
    peek = find_peek(tree)
    inlined, notes = (tree, [f"functions stay as they are: {peek}, which could look at them"]) if peek else inline(tree)
    ends_in_value = bool(tree.body) and isinstance(tree.body[-1], ast.Expr)
    definitions = tree
    for name, after in (("inlined", inlined), ("folded", fold(inlined))):
        definitions = ast.fix_missing_locations(after)
        shown = prune(definitions) if ends_in_value and not peek else definitions
        if ast.dump(shown) == ast.dump(stages[-1].tree):
            continue
        shown_text = text_of(shown)
        if shown_text is None:
            notes.append(f"not {name}: Python cannot write the result as text")
            break
        stages.append(Stage(name, shown_text, shown))
    return Optimised(tuple(stages), copy.deepcopy(definitions), tuple(notes))


def _too_large(tree: ast.Module) -> str | None:
    """Say why a program is left alone, or None; without recursion, which a deep tree would not survive."""
    count = 0
    pending: list[tuple[ast.AST, int]] = [(tree, 1)]
    while pending:
        node, depth = pending.pop()
        count += 1
        if count > MOST_NODES:
            return f"it has more than {MOST_NODES} parts"
        if depth > DEEPEST:
            return f"line {getattr(node, 'lineno', 1)} is nested more than {DEEPEST} deep"
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value.bit_length() > MOST_BITS:
            return f"line {node.lineno} has a number of more than {MOST_BITS} bits"
        pending.extend((child, depth + 1) for child in ast.iter_child_nodes(node))
    return None


class _Group(ast.NodeTransformer):
    """Put marks where a left operand should have parentheses, so that it looks like the right one.

    `ast.unparse` writes `1 + 2 + (3 + 4)`: correct, but `(1 + 2) + (3 + 4)` shows what was put in place of what.
    """

    def __init__(self) -> None:
        self.groups: list[str] = []

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node  # the quotes inside would have to be chosen anew

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.left, ast.BinOp) and isinstance(node.right, ast.BinOp):
            operators = (type(node.op), type(node.left.op), type(node.right.op))
            if any(all(op in level for op in operators) for level in LEVELS):
                self.groups.append(f"({ast.unparse(node.left)})")
                node.left = ast.Name(_mark(len(self.groups) - 1), ast.Load())
        return node


def _mark(index: int) -> str:
    return f"\0{index}\0"  # a character that no program's text contains


def text_of(tree: ast.Module) -> str | None:
    """Write a program, or give None where Python cannot write it so that it reads back as the same tree."""
    group = _Group()
    marked = group.visit(copy.deepcopy(tree))
    try:
        text = ast.unparse(marked)
        for index, grouped in reversed(list(enumerate(group.groups))):
            text = text.replace(_mark(index), grouped)
        same = ast.dump(parsed(text, "exec")) == ast.dump(tree)
    except (ValueError, SyntaxError):  # some f-strings, and whole numbers of thousands of digits
        return None
    return text if same else None
