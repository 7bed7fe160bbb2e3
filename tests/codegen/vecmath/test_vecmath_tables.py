"""The tables of vector mathematics are what their derivation gives."""

import re
from pathlib import Path

import mpmath
import pytest
from tests.codegen.vecmath.derive_vecmath_tables import DIGITS, text, turns

from weft.codegen.vecmath import core as vecmath_tables
from weft.codegen.vecmath.functions import TURN_HIGH, TURN_LOW, TURN_MIDDLE

NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]\d+)?")


@pytest.mark.slow
def test_the_tables_are_what_the_derivation_gives() -> None:
    module = Path(vecmath_tables.__file__).read_text(encoding="utf-8")
    derived = text()
    begin = module.index(derived.splitlines()[0])
    written = module[begin : module.index("\n}\n", begin) + 3]
    assert NUMBER.sub("#", written) == NUMBER.sub("#", derived)
    for kept, found in zip(NUMBER.findall(written), NUMBER.findall(derived), strict=True):
        assert float(kept) == pytest.approx(float(found), rel=1e-7)


def test_the_parts_of_two_over_pi_are_exact() -> None:
    with mpmath.workdps(DIGITS):
        parts = turns()
    assert [list(part) for part in (TURN_HIGH, TURN_MIDDLE, TURN_LOW)] == list(parts.values())
