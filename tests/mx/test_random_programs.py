"""Random programs of `nd` show what they show with the real MXNet: a slice here, others by hand.

build/mxnet-oracle/bin/python tests/mx/oracle/random_programs.py 1000 3000 answers.json.gz
python -m tests.mx.test_random_programs answers.json.gz
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.mx.random_programs import FIXTURE, IN_CI, program, run

from weft.mx import autograd, nd

SLICES = 10


def answers(path: Path) -> tuple[int, list[list[object]]]:
    with gzip.open(path) as file:
        first, found = json.loads(file.read())
    return first, found


def same(mine: object, its: object) -> bool:
    if isinstance(mine, str) or isinstance(its, str):
        return mine == its
    if mine[:2] != its[:2]:
        return False
    return np.allclose(mine[2], its[2], rtol=1e-4, atol=1e-4, equal_nan=True)


def difference(number: int, its: list[object]) -> str | None:
    """Where a program shows something else, if it does."""
    mine = run(program(number), nd, autograd)
    pairs = enumerate(zip(mine, its, strict=False))
    place = next((place for place, (one, other) in pairs if not same(one, other)), None)
    if place is None and len(mine) == len(its):
        return None
    shown = "" if place is None else f"\nhere {mine[place]}\nMXNet {its[place]}"
    return f"program {number}, place {place}:\n{program(number)}{shown}"


@pytest.mark.parametrize("part", range(SLICES))
def test_programs_show_what_they_show_with_mxnet(part: int) -> None:
    _, found = answers(Path(__file__).parent / "fixtures" / FIXTURE)
    assert len(found) == IN_CI
    each = IN_CI // SLICES
    for number in range(part * each, (part + 1) * each):
        assert difference(number, found[number]) is None


def main(path: str) -> None:
    """Compare another slice."""
    first, found = answers(Path(path))
    wrong = [told for place, its in enumerate(found) if (told := difference(first + place, its)) is not None]
    print("\n\n".join(wrong[:5]))
    print(f"{len(found)} programs, {len(wrong)} different")


if __name__ == "__main__":
    main(sys.argv[1])
