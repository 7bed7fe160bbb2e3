"""Mutated files are read or refused by one kind of error, within the memory that their size allows: a slice."""

from __future__ import annotations

import pytest
from tests.mx.fuzz import fuzz_params, fuzz_symbols


@pytest.mark.slow
def test_mutated_parameters() -> None:
    read, refused = fuzz_params(2000, 0)
    assert read > 100
    assert refused > 100


@pytest.mark.slow
def test_mutated_symbols() -> None:
    read, refused = fuzz_symbols(400, 0)
    assert read > 40
    assert refused > 40
