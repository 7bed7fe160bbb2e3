"""What sizes are made of is found once for a trace, as code asks for the same ones again and again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sympy
from torch.fx.experimental.symbolic_shapes import FloorDiv  # type: ignore[attr-defined]
from torch.utils._sympy.functions import Max, Min

from weft.ir.graph import Value
from weft.ir.types import NumberType
from weft.trace.interception.size_expressions import decided, made_of


class Shapes(SimpleNamespace):
    """A table of symbols that counts what it is asked."""

    def __init__(self, *symbols: Any) -> None:
        super().__init__(sizes={symbol: Value("input", (), NumberType("int")) for symbol in symbols}, asked=[])

    def evaluate_expr(self, expression: Any) -> bool:
        self.asked.append(expression)
        return bool(expression.subs(dict.fromkeys(self.sizes, 12)))


def test_a_size_is_decided_once() -> None:
    rows = sympy.Symbol("rows", integer=True, positive=True)
    shapes = Shapes(rows)
    first = made_of(sympy.Max(rows, 4), shapes)
    assert len(shapes.asked) == 1
    assert made_of(sympy.Max(rows, 4), shapes) is first
    assert made_of(sympy.Integer(7), shapes) == 7
    assert len(shapes.asked) == 1


def test_what_needs_no_size_to_be_decided_is_decided_right() -> None:
    """PyTorch's table gives sympy's own truths back as they are."""
    rows = sympy.Symbol("rows", integer=True, positive=True)
    shapes = Shapes(rows)
    shapes.evaluate_expr = lambda expression: expression
    for sizes in ((rows, rows + 1), (rows + 1, rows)):
        assert decided(Min(*sizes, evaluate=False), shapes) == rows
        assert decided(Max(*sizes, evaluate=False), shapes) == rows + 1


def test_a_quotient_by_a_number_has_no_parts_to_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sympy.Symbol("rows", integer=True, positive=True)
    monkeypatch.setattr(sympy.Expr, "cancel", lambda *_: pytest.fail("it takes longer than all else"))
    assert str(made_of(FloorDiv(rows - 1, 3), Shapes(rows))).count("3")
