"""A function's definition -> the steps that can stand in place of its call, or the reason why it has to be called.

Such a function is a straight line: each step gives a name to an expression, and the last one is returned.
"""

import ast
import copy
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from weft.trace.source.effects import RULES, reference
from weft.trace.source.names import Names, loaded_names

# Calls that cannot look at the frame they are called from, so they do not notice that it is another one.
PLAIN_BUILTINS = frozenset("abs bool complex divmod float int len max min pow print range repr round str sum".split())  # noqa: SIM905
PLAIN_MODULES = frozenset(("math", "cmath", "operator", "torch"))
PARTS = (*RULES, ast.keyword, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)


@dataclass(frozen=True)
class StraightLine:
    """A function whose call can be replaced by its steps."""

    name: str
    line: int
    parameters: ast.arguments
    steps: tuple[tuple[str | None, ast.expr], ...]

    def locals(self) -> frozenset[str]:
        """Give the names that belong to the function: parameters and results of steps."""
        return frozenset(self.parameter_names()) | {name for name, _ in self.steps if name is not None}

    def parameter_names(self) -> list[str]:
        """Give the parameters in the order of the definition."""
        given = self.parameters
        return [parameter.arg for parameter in (*given.posonlyargs, *given.args, *given.kwonlyargs)]

    def free_names(self) -> frozenset[str]:
        """Give the names that the steps read from the program or from Python."""
        used = {part.id for _, value in self.steps for part in ast.walk(value) if isinstance(part, ast.Name)}
        return frozenset(used) - self.locals()

    def lets(self, arguments: Mapping[str, ast.expr]) -> list[ast.expr]:
        """Give arguments and steps one after the other, each name replaced by a reference to what it means there."""
        lets = list(arguments.values())
        meaning = {name: reference(index) for index, name in enumerate(arguments)}
        for name, value in self.steps:
            lets.append(_Refer(meaning).visit(copy.deepcopy(value)))
            if name is not None:
                meaning[name] = reference(len(lets) - 1)
        return lets


class _Refer(ast.NodeTransformer):
    def __init__(self, meaning: Mapping[str, str]) -> None:
        self.meaning = meaning

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self.meaning.get(node.id, node.id), node.ctx), node)


@dataclass(frozen=True)
class Program:
    """What a function needs to know about the program around it."""

    names: Names
    functions: Mapping[str, ast.FunctionDef]
    modules: frozenset[str]
    recursive: frozenset[str]

    @classmethod
    def of(cls, tree: ast.Module) -> "Program":
        """Read the functions and the modules that a program binds at its top level, once."""
        names = Names.of(tree)

        def once(name: str) -> bool:
            return names.bindings[name] == 1 and name not in names.unsteady

        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and once(node.name)}
        imported = {
            alias.asname or alias.name.partition(".")[0]
            for node in tree.body
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name.partition(".")[0] in PLAIN_MODULES
        }
        modules = frozenset(name for name in imported if once(name))
        return cls(names, functions, modules, frozenset(_recursive(functions)))


def straight_line(node: ast.FunctionDef, program: Program) -> StraightLine | str:
    """Read a function as a straight line, or say in half a sentence why it stays a call."""
    reason = _reason_in_signature(node) or _reason_in_calls(node, program)
    if reason is not None:
        return reason
    steps: list[tuple[str | None, ast.expr]] = []
    for statement in node.body:
        match statement:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                continue
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                steps.append((name, value))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value, simple=1):
                steps.append((name, value))
            case ast.Return(value=value) if statement is node.body[-1]:
                steps.append((None, value or ast.copy_location(ast.Constant(None), statement)))
            case _:
                return f"line {statement.lineno} is more than naming a value"
    if not steps or steps[-1][0] is not None:
        return "it does not end by returning a value"
    line = StraightLine(node.name, node.lineno, node.args, tuple(steps))
    return _reason_in_steps(line) or line


def _reason_in_signature(node: ast.FunctionDef) -> str | None:
    defaults = [*node.args.defaults, *(default for default in node.args.kw_defaults if default is not None)]
    if node.decorator_list:
        return "it is decorated"
    if vars(node).get("type_params"):
        return "it has type parameters"
    if node.args.vararg or node.args.kwarg:
        return "it takes any number of arguments"
    if not all(isinstance(default, ast.Constant) for default in defaults):
        return "a default of it is more than a constant"
    return None


def _reason_in_calls(node: ast.FunctionDef, program: Program) -> str | None:
    if node.name in program.recursive:
        return "it is recursive"
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and not _plain(part.func, program):
            return f"it calls {ast.unparse(part.func)}, which could see from where"
    return None


def _plain(function: ast.expr, program: Program) -> bool:
    if isinstance(function, ast.Name):
        plain = function.id in PLAIN_BUILTINS and not program.names.bindings[function.id]
        return plain or function.id in program.functions
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id in program.modules


def _recursive(functions: Mapping[str, ast.FunctionDef]) -> Iterator[str]:
    """Give the functions that mention themselves, directly or through others."""
    mentions = {name: set(loaded_names(node)) & functions.keys() for name, node in functions.items()}
    for name in functions:
        found: set[str] = set()
        waiting = {name}
        while waiting:
            new = mentions[waiting.pop()] - found
            found |= new
            waiting |= new
        if name in found:
            yield name


def _reason_in_steps(line: StraightLine) -> str | None:
    known: AbstractSet[str] = frozenset(line.parameter_names())
    for name, value in line.steps:
        for part in ast.walk(value):
            if not isinstance(part, PARTS):
                return f"it contains {_kind(part)}"
            if isinstance(part, ast.Name) and part.id in line.locals() - known:
                return f"it reads {part.id} before giving it a value"
        if name is not None:
            known = known | {name}
    return None


def _kind(part: ast.AST) -> str:
    return f"a part of the kind {type(part).__name__}"


def matched_arguments(call: ast.Call, line: StraightLine) -> dict[str, ast.expr] | None:
    """Give the value of each parameter in the order of evaluation, or None if the call may not fit."""
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    given = line.parameters
    by_position = [parameter.arg for parameter in (*given.posonlyargs, *given.args)]
    by_keyword = {parameter.arg for parameter in (*given.args, *given.kwonlyargs)}
    if len(call.args) > len(by_position):
        return None
    arguments = dict(zip(by_position, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg not in by_keyword or keyword.arg in arguments:
            return None
        arguments[keyword.arg] = keyword.value
    for name, default in _defaults(given):
        arguments.setdefault(name, default)
    return arguments if arguments.keys() == set(line.parameter_names()) else None


def _defaults(given: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    positional = [*given.posonlyargs, *given.args]
    for parameter, value in zip(positional[len(positional) - len(given.defaults) :], given.defaults, strict=True):
        yield parameter.arg, value
    for parameter, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        if default is not None:
            yield parameter.arg, default
