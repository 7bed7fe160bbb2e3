"""A program's tree -> text that reads back as exactly this tree."""

import ast
import copy

LEVELS: tuple[tuple[type[ast.operator], ...], ...] = (
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult),
    (ast.BitOr,),
    (ast.BitXor,),
    (ast.BitAnd,),
)


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
        left, right = node.left, node.right
        if isinstance(left, ast.BinOp) and isinstance(right, ast.BinOp):
            operators = (type(node.op), type(left.op), type(right.op))
            if any(all(op in level for op in operators) for level in LEVELS):
                text = f"({ast.unparse(left)})"
                node.left = ast.Name(_mark(len(self.groups)), ast.Load())
                self.groups.append(text)
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
