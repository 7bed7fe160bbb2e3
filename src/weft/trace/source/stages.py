"""Optimise the text of a program in stages: as written, functions inlined, constants folded.

Every stage is a program that does the same: it prints the same, ends in the same value and raises the same exceptions.
What an optimised program may not have is what the text cannot look at: calls as frames of a traceback, and
intermediate values that stay alive until a function returns.
"""

import ast
import copy
from dataclasses import dataclass

from weft.trace.source.fold import fold
from weft.trace.source.inline import inline, prune
from weft.trace.source.names import find_peek

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
        same = ast.dump(ast.parse(text)) == ast.dump(tree)
    except (ValueError, SyntaxError):  # some f-strings, and whole numbers of thousands of digits
        return None
    return text if same else None
