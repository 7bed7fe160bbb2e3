"""Text of a program -> its stages: as written, functions inlined, constants folded.

Every stage is a program that does the same: it prints the same, ends in the same value and raises the same exceptions.
What an optimised program may not have is what the text cannot look at: calls as frames of a traceback, and
intermediate values that stay alive until a function returns.
"""

import ast
import copy
from collections.abc import Callable
from dataclasses import dataclass

from weft.trace.source.fold import fold
from weft.trace.source.inline import inline
from weft.trace.source.names import find_peek
from weft.trace.source.prune import prune
from weft.trace.source.text import text_of

# Beyond these a program runs as written: passes over trees are recursive, and Python itself gives up not much later.
DEEPEST = 60
MOST_NODES = 20_000
MOST_BITS = 4_000
MOST_CYCLES = 10


@dataclass(frozen=True)
class Stage:
    """A program between two passes: its name, its text, and its tree with the lines of the original."""

    name: str
    text: str
    tree: ast.Module


@dataclass(frozen=True)
class Optimised:
    """What became of a program."""

    stages: tuple[Stage, ...]
    definitions: ast.Module
    """The last stage with every function still in it, for whoever asks for one by name."""
    notes: tuple[str, ...]
    """Why what could have been expected did not happen, a sentence each."""


def optimise(text: str, tree: ast.Module) -> Optimised:
    """Optimise a program that has been parsed from this text."""
    stages = [Stage("source", text, tree)]
    reason = _too_large(tree)
    if reason is not None:
        return Optimised(tuple(stages), tree, (f"the program runs as written: {reason}",))
    peek = find_peek(tree)
    notes: tuple[str, ...] = ()
    ends_in_value = bool(tree.body) and isinstance(tree.body[-1], ast.Expr)

    def inlined(current: ast.Module) -> ast.Module:
        nonlocal notes
        current, found = inline(current)
        notes = tuple(dict.fromkeys((*notes, *found)))
        return current

    passes: tuple[tuple[str, Callable[[ast.Module], ast.Module]], ...] = (("inlined", inlined), ("folded", fold))
    if peek is not None:
        notes = (f"functions stay as they are: line {peek.line} uses {peek.what}, which could look at them",)
        passes = (("folded", fold),)
    definitions = tree
    for _ in range(MOST_CYCLES):
        before = stages[-1]
        for name, one_pass in passes:
            after = ast.fix_missing_locations(one_pass(definitions))
            definitions = after
            shown = prune(after) if ends_in_value and peek is None else after
            if ast.dump(shown) == ast.dump(stages[-1].tree):
                continue
            shown_text = text_of(shown)
            if shown_text is None:
                notes = (*notes, f"not {name}: Python cannot write the result as text")
                return Optimised(tuple(stages), definitions, notes)
            stages.append(Stage(name, shown_text, shown))
        if stages[-1] is before:
            break
    return Optimised(tuple(stages), copy.deepcopy(definitions), notes)


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
