"""Compile a program given as text: `weft.compile_source(text)`.

The three steps of symbolic programming: the text *defines* a program, `compile_source` *compiles* it knowing all of
it, and `run` *executes* it.
"""

import ast
import hashlib
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from weft.api.hybridize import hybridize, program
from weft.errors import LONGEST_CODE, UsageError
from weft.ir.graph import Graph
from weft.trace.source import Optimised, optimise
from weft.tracebacks import shows_less

# What Python adds to the names of a program on its own account.
OWN_NAMES = ("__builtins__", "__name__", "__doc__", "__annotations__")


@dataclass(frozen=True)
class _Executable:
    """A compiled program: the statements, and the expression in which it ends, if it does."""

    statements: CodeType
    result: CodeType | None

    @classmethod
    def of(cls, tree: ast.Module, filename: str) -> "_Executable":
        """Compile a program; its lines keep their numbers."""
        body, result = tree.body, None
        if body and isinstance(body[-1], ast.Expr):
            result = compile(ast.Expression(body[-1].value), filename, "eval", dont_inherit=True)
            body = body[:-1]
        statements = ast.Module(body, tree.type_ignores)
        return cls(compile(statements, filename, "exec", dont_inherit=True), result)


class CompiledSource:
    """A program compiled from text: what it was, what it became, and ways to execute it."""

    def __init__(self, text: str, filename: str, optimised: Optimised) -> None:
        self.source = text
        """The program as it was given."""
        self.notes = optimised.notes
        """Why some calls stay calls, a sentence each."""
        self._filename = filename
        self._stages = optimised.stages
        self._program = _Executable.of(optimised.stages[-1].tree, filename)
        self._definitions = _Executable.of(optimised.definitions, filename)
        self._functions = tuple(
            node.name
            for node in optimised.definitions.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        )

    @property
    def stages(self) -> tuple[tuple[str, str], ...]:
        """The program after each pass that changed it, as pairs of a name and a text."""
        return tuple((stage.name, stage.text) for stage in self._stages)

    @property
    def optimised(self) -> str:
        """The text of the program that `run` executes."""
        return self._stages[-1].text

    def run(self, /, **names: Any) -> Any:
        """Execute the program, with these names bound at its start.

        Returns the value of the expression in which the program ends; of a program that ends otherwise, the names it
        has bound, as a dictionary.
        """
        namespace = {"__name__": "__main__", **names}
        exec(self._program.statements, namespace)
        if self._program.result is not None:
            return eval(self._program.result, namespace)
        return {name: value for name, value in namespace.items() if name not in OWN_NAMES}

    def function(self, name: str, /, **names: Any) -> Callable[..., Any]:
        """Give a function of the program, optimised, after executing all but the expression in which it ends."""
        namespace = {"__name__": "weft_source", **names}
        exec(self._definitions.statements, namespace)
        function: object = namespace.get(name)
        if not callable(function):
            known = ", ".join(self._functions) or "none: define one with `def`"
            raise UsageError(
                f"the program has no function {name}",
                where=self._filename,
                why="the name is not bound" if name not in namespace else f"{name} is a {type(function).__name__}",
                fix=f"ask for one of the program's functions ({known})",
            )
        return function

    def hybridize(self, name: str, /, **names: Any) -> Callable[..., Any]:
        """Give a function of the program, hybridized: on tensors it runs as one program of Weft."""
        hybridized: Callable[..., Any] = hybridize(self.function(name, **names))
        return hybridized

    def graph(self, name: str, /, *examples: Any, **names: Any) -> Graph:
        """Give the Graph that a function of the program becomes on tensors like these; its lines are the text's."""
        return program(self.function(name, **names), *examples).graph

    def __str__(self) -> str:
        return self.source

    def __repr__(self) -> str:
        return f"<weft.Source of {len(self.source.splitlines())} lines: {', '.join(n for n, _ in self.stages)}>"


@shows_less
def compile_source(text: str) -> CompiledSource:
    r"""Compile a program given as text: parse it, check it and optimise it as a whole.

    Only the text is used: nothing is read from a file, and nothing runs until `run` or `function` of what this gives.

        program = weft.compile_source("def add(a, b): return a + b\nprint(add(1, 2))")
        program.optimised    # 'print(3)'
        program.run()        # prints 3
    """
    if not isinstance(text, str):
        raise UsageError(
            f"compile_source got {type(text).__name__} and takes the text of a program",
            why="nothing is read from files, and no function is taken apart",
            fix="pass a str; for a file of your own: compile_source(Path(...).read_text())",
        )
    # A name of its own for each text, so that a traceback shows lines of the right one.
    digest = hashlib.blake2s(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    filename = f"<source {digest}>"
    tree = _checked(text, filename)
    # Without a time of change an entry is never looked up on disk.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return CompiledSource(text, filename, optimise(text, tree))


def _checked(text: str, filename: str) -> ast.Module:
    """Parse a program and let Python refuse what is no program."""
    try:
        tree = ast.parse(text, filename)
        compile(tree, filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise UsageError(
            f"the text is not a Python program: {error.msg}",
            where=_place(text, error.lineno or text.partition("\0")[0].count("\n") + 1),
            why=f"Python stops reading at column {error.offset}" if error.offset else "Python refuses this statement",
            fix="correct this line, or the one before it where something may be left open",
        ) from error
    except ValueError as error:
        raise UsageError(
            f"the text is not a Python program: {error}",
            where=_place(text, 1),
            why="it contains a character that no program contains",
            fix="remove NUL characters and lone surrogates from the text",
        ) from error
    except (RecursionError, MemoryError) as error:
        raise UsageError(
            "the text is nested too deeply for Python's own compiler",
            where=_place(text, 1),
            why=str(error) or "the parser's stack is full",
            fix="give names to inner expressions, so that no statement is nested hundreds of levels deep",
        ) from error
    return tree


def _place(text: str, line: int) -> str:
    """Name a line of the program with its text: `<source>:3   return a +`."""
    lines = text.splitlines()
    code = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    if len(code) > LONGEST_CODE:
        code = code[: LONGEST_CODE - 3] + "..."
    return f"<source>:{line}   {code}".rstrip()
