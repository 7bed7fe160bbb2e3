"""What code of a backward may read is what users' code may, and nothing of what symbols are computed with."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
import sympy
import torch

from weft.trace.python_state.backward_code import BackwardCode, OfCalls
from weft.trace.python_state.containers import Touched

FACTORS = [2.0]


def hook(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * FACTORS[0]


def test_a_hook_reads_its_names_and_arithmetic_of_symbols_reads_nothing() -> None:
    code = BackwardCode()
    size = sympy.Symbol("size", integer=True)
    with code.noting():
        sympy.expand((size + 1) * (size + 2))
    assert code.read(OfCalls(), Touched(), {}) is None
    with code.noting():
        hook(torch.ones(2))
    found = code.read(OfCalls(), Touched(), {})
    assert found is not None
    assert found.holds()
    FACTORS[0] = 3.0
    assert not found.holds()
    FACTORS[0] = 2.0


def test_what_finds_modules_is_no_code_of_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        @staticmethod
        def find_spec(_name: str, _path: Any = None, _target: Any = None) -> None:
            return None

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    code = BackwardCode()
    with code.noting():
        importlib.import_module("colorsys")
    assert code.read(OfCalls(), Touched(), {}) is None
