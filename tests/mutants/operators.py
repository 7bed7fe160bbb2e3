"""List the mutants of a source file: small changes that a test should notice, each with the place and the new text.

What only people read is left as it is: docstrings, annotations, f-strings, what a raised error or a log line says,
`__repr__`, decorators. Everything else of a file is fair game, a row of a table as well as a line of a function.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.FloorDiv: (ast.Mult,),
    ast.Div: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitAnd: (ast.BitOr,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}
OPERANDS_MATTER = (ast.Sub, ast.FloorDiv, ast.Div, ast.Mod, ast.LShift, ast.RShift, ast.Pow)
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "issubset": "issuperset", "issuperset": "issubset"}
# Calls whose arguments say something to people or to the type checker; `range` and `zip` swapped is another program.
SPEECH = {"cast", "TypeVar", "getLogger", "debug", "info", "warning", "isinstance", "print"}
# `strict` of a zip is an assertion.
UNTOUCHED_KEYWORDS = {"strict", "stacklevel"}
UNTOUCHED_FUNCTIONS = {"__repr__", "__str__", "__format__"}
SILENT = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)
UNTOUCHED_NAMES = {"__all__", "__slots__", "log", "TYPE_CHECKING"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file: bytes `start` to `end` become `text`. `function` is empty for what a module says."""

    path: str
    kind: str
    function: str
    first_line: int
    last_line: int
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """Give the file with the change in it."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def difference(self, source: bytes) -> str:
        """Give the change as lines with - and +."""
        before, after = source.decode().splitlines(), self.apply(source).decode().splitlines()
        lines = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]
        return "\n".join(line for line in lines if not line.startswith("@@"))


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """List the mutants of a file; a few may not be Python, or say the same as the file: see `is_worth_judging`."""
    found = Finder(path, source)
    found.statements(ast.parse(source).body, "", in_function=False, top=True)
    return found.mutants


def is_worth_judging(mutant: Mutant, source: bytes) -> bool:
    """Ask whether a mutant is a program, and another one."""
    try:
        return ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


class Finder:
    """Walks the statements of a file, and notes what may be changed."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.mutants: list[Mutant] = []
        self.offsets = [0]
        for line in source.splitlines(keepends=True):
            self.offsets.append(self.offsets[-1] + len(line))

    def note(self, node: ast.AST, kind: str, function: str, text: str) -> None:
        """Note that a node may become a text."""
        self.note_span(node, node, kind, function, text)

    def note_span(self, first: ast.AST, last: ast.AST, kind: str, function: str, text: str) -> None:
        """Note that what lies from the begin of one node to the end of another may become a text."""
        start = self.offsets[first.lineno - 1] + first.col_offset
        end = self.offsets[last.end_lineno - 1] + last.end_col_offset
        self.mutants.append(Mutant(self.path, kind, function, first.lineno, last.end_lineno, start, end, text))

    def statements(self, body: list[ast.stmt], function: str, in_function: bool, top: bool = False) -> None:
        """Note what may be changed in the statements of one block."""
        for statement in body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            self.statement(statement, function, in_function, top)

    def statement(self, statement: ast.stmt, function: str, in_function: bool, top: bool) -> None:
        """Note what may be changed in one statement, and in those below it."""
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            self.function(statement, function)
        elif isinstance(statement, ast.ClassDef):
            self.statements(statement.body, f"{function}.{statement.name}".lstrip("."), in_function=False)
        elif not (isinstance(statement, SILENT) or _names(statement) & UNTOUCHED_NAMES or _is_speech(statement)):
            self.whole(statement, function, in_function, top)
            self.parts(statement, function, in_function)

    def whole(self, statement: ast.stmt, function: str, in_function: bool, top: bool) -> None:
        """Note what may become of a statement as a whole."""
        if in_function:
            self.dropped(statement, function, top)
        elif top:
            self.table(statement)
        if isinstance(statement, ast.If | ast.While):
            self.condition(statement.test, function, loop=isinstance(statement, ast.While))
        if isinstance(statement, ast.AugAssign):
            self.augmented(statement, function)

    def parts(self, statement: ast.stmt, function: str, in_function: bool) -> None:
        """Note what may be changed in the blocks and expressions of a statement."""
        for field, value in ast.iter_fields(statement):
            if field in {"body", "orelse", "finalbody"}:
                self.statements(value, function, in_function)
            elif field in {"handlers", "cases"}:
                for part in value:
                    self.statements(part.body, function, in_function)
            elif field not in {"annotation", "targets", "target"} and not isinstance(statement, ast.Raise | ast.Assert):
                for node in value if isinstance(value, list) else [value]:
                    if isinstance(node, ast.AST):
                        self.expression(node, function)

    def function(self, statement: ast.FunctionDef | ast.AsyncFunctionDef, outer: str) -> None:
        """Note what may be changed in a function: it may also do nothing at all, or always say the same."""
        if statement.name in UNTOUCHED_FUNCTIONS:
            return
        name = f"{outer}.{statement.name}".lstrip(".")
        for default in (*statement.args.defaults, *statement.args.kw_defaults):
            if default is not None:
                self.expression(default, name)
        body = statement.body
        documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        body = body[1:] if documented else body
        returns = ast.unparse(statement.returns) if statement.returns is not None else ""
        early = {"None": ["return"], "bool": ["return True", "return False"]}.get(returns, [])
        if body and not (len(body) == 1 and isinstance(body[0], ast.Return | ast.Pass)):
            for text in early:
                first = self.source[self.offsets[body[0].lineno - 1] :][: body[0].col_offset].decode()
                kept = self.text(body[0])
                if not isinstance(body[0], ast.FunctionDef | ast.ClassDef):
                    self.note(body[0], "early return", name, f"{text}\n{first}{kept}")
        self.statements(body, name, in_function=True, top=True)

    def text(self, node: ast.AST) -> str:
        """Give the text of a node."""
        start = self.offsets[node.lineno - 1] + node.col_offset
        return self.source[start : self.offsets[node.end_lineno - 1] + node.end_col_offset].decode()

    def dropped(self, statement: ast.stmt, function: str, top: bool) -> None:
        """Note a statement that may be left out: one that acts, or one in a branch."""
        acts = ast.Raise | ast.AugAssign | ast.Delete | ast.Continue | ast.Break
        effect = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call | ast.Await)
        stores = isinstance(statement, ast.Assign) and not all(isinstance(to, ast.Name) for to in statement.targets)
        branch = not top and isinstance(statement, ast.Assign | ast.Return)
        if isinstance(statement, acts) or effect or stores or branch:
            self.note(statement, "statement dropped", function, "pass")
        if isinstance(statement, ast.With) and all(item.optional_vars is None for item in statement.items):
            last = statement.items[-1].context_expr
            self.note_span(statement, last, "with dropped", function, "if True")

    def condition(self, test: ast.expr, function: str, loop: bool = False) -> None:
        """Note what may become of a condition."""
        text = ast.unparse(test)
        for new in ("False",) if loop else ("True", "False", f"not ({text})"):
            if new != text:
                self.note(test, "condition", function, new)

    def augmented(self, statement: ast.AugAssign, function: str) -> None:
        """Note another operator for `x += y`."""
        for other in ARITHMETIC.get(type(statement.op), ()):
            new = ast.AugAssign(statement.target, other(), statement.value)
            self.note(statement, "arithmetic", function, ast.unparse(new))

    def table(self, statement: ast.stmt) -> None:
        """Note the rows of a table of the module that may be missing."""
        value = getattr(statement, "value", None)
        for node in ast.walk(value) if isinstance(value, ast.expr) else ():
            if isinstance(node, ast.Tuple | ast.List | ast.Set) and len(node.elts) > 1 and node is value:
                for number in range(len(node.elts)):
                    rest = [*node.elts[:number], *node.elts[number + 1 :]]
                    self.note(node, "row missing", "", ast.unparse(type(node)(rest, *_context(node))))

    def expression(self, node: ast.AST, function: str) -> None:
        """Note what may be changed in an expression and in those below it."""
        if isinstance(node, ast.JoinedStr) or _is_speech(node):
            return
        if isinstance(node, ast.keyword) and node.arg in UNTOUCHED_KEYWORDS:
            return
        for kind, text in _changes(node):
            self.note(node, kind, function, text)
        if isinstance(node, ast.IfExp):
            self.condition(node.test, function)
        if isinstance(node, ast.comprehension):
            for test in node.ifs:
                self.condition(test, function)
        for child in ast.iter_child_nodes(node):
            if not (isinstance(node, ast.arguments) and child in node.posonlyargs + node.args + node.kwonlyargs):
                self.expression(child, function)


def _context(node: ast.AST) -> tuple[ast.expr_context, ...]:
    return () if isinstance(node, ast.Set) else (ast.Load(),)


def _names(statement: ast.stmt) -> set[str]:
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    named = {target.id for target in targets if isinstance(target, ast.Name)}
    return named | (
        {statement.test.id} if isinstance(statement, ast.If) and isinstance(statement.test, ast.Name) else set()
    )


def _is_speech(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else node
    name = _called(call)
    return name is not None and (name in SPEECH or name.endswith(("Error", "Warning")))


def _called(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    called = node.func
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else None


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    for kind, rule in RULES.items():
        yield from rule(node) if isinstance(node, kind) else ()


def _constant(node: ast.Constant) -> Iterator[tuple[str, str]]:
    if isinstance(node.value, bool):
        yield "constant", str(not node.value)
    elif isinstance(node.value, int):
        yield "constant", str(node.value + 1)
        yield "constant", str(node.value - 1) if node.value else "-1"
    elif isinstance(node.value, float):
        yield "constant", repr(node.value * 2 or 1.0)


def _comparison(node: ast.Compare) -> Iterator[tuple[str, str]]:
    for number, operator in enumerate(node.ops):
        for other in COMPARISONS[type(operator)]:
            new = ast.Compare(node.left, [*node.ops[:number], other(), *node.ops[number + 1 :]], node.comparators)
            yield "comparison", f"({ast.unparse(new)})"


def _boolean(node: ast.BoolOp) -> Iterator[tuple[str, str]]:
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield "and/or", f"({ast.unparse(ast.BoolOp(other, node.values))})"
    for number in range(len(node.values)):
        rest = [*node.values[:number], *node.values[number + 1 :]]
        yield "operand missing", f"({ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))})"


def _unary(node: ast.UnaryOp) -> Iterator[tuple[str, str]]:
    if not isinstance(node.operand, ast.Constant):
        yield "operator dropped", f"({ast.unparse(node.operand)})"


def _binary(node: ast.BinOp) -> Iterator[tuple[str, str]]:
    sides = (node.left, node.right)
    if any(isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", None), str | bytes) for side in sides):
        return
    for other in ARITHMETIC.get(type(node.op), ()):
        yield "arithmetic", f"({ast.unparse(ast.BinOp(node.left, other(), node.right))})"
    if isinstance(node.op, OPERANDS_MATTER):
        yield "operands swapped", f"({ast.unparse(ast.BinOp(node.right, node.op, node.left))})"


def _call(node: ast.Call) -> Iterator[tuple[str, str]]:
    name = _called(node)
    if isinstance(node.func, ast.Name) and name in NAMES:
        new = ast.Call(ast.Name(NAMES[name], ast.Load()), node.args, node.keywords)
        yield "other function", ast.unparse(new)
    plain = not any(isinstance(argument, ast.Starred) for argument in node.args)
    for number in range(len(node.args) - 1 if plain else 0):
        swapped = [*node.args]
        swapped[number : number + 2] = reversed(swapped[number : number + 2])
        yield "arguments swapped", ast.unparse(ast.Call(node.func, swapped, node.keywords))
    for number, keyword in enumerate(node.keywords):
        if keyword.arg is not None and keyword.arg not in UNTOUCHED_KEYWORDS:
            rest = [*node.keywords[:number], *node.keywords[number + 1 :]]
            yield "argument missing", ast.unparse(ast.Call(node.func, node.args, rest))


def _dictionary(node: ast.Dict) -> Iterator[tuple[str, str]]:
    for number in range(len(node.keys) if len(node.keys) > 1 else 0):
        keys, values = [*node.keys], [*node.values]
        del keys[number], values[number]
        yield "row missing", ast.unparse(ast.Dict(keys, values))
        if number and None not in node.keys[number - 1 : number + 1]:
            values = [*node.values]
            values[number - 1 : number + 1] = reversed(values[number - 1 : number + 1])
            yield "rows swapped", ast.unparse(ast.Dict(node.keys, values))


def _set(node: ast.Set) -> Iterator[tuple[str, str]]:
    for number in range(len(node.elts) if len(node.elts) > 1 else 0):
        yield "row missing", ast.unparse(ast.Set([*node.elts[:number], *node.elts[number + 1 :]]))


def _slice(node: ast.Slice) -> Iterator[tuple[str, str]]:
    for field in ("lower", "upper", "step"):
        if getattr(node, field) is not None:
            yield "slice", ast.unparse(ast.Slice(**{**_bounds(node), field: None}))


def _bounds(node: ast.Slice) -> dict[str, ast.expr | None]:
    return {"lower": node.lower, "upper": node.upper, "step": node.step}


RULES = {
    ast.Constant: _constant,
    ast.Compare: _comparison,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Call: _call,
    ast.Dict: _dictionary,
    ast.Set: _set,
    ast.Slice: _slice,
}
