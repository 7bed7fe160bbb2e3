"""Random symbols: JSON as MXNet writes it, read on both sides, the same sizes, values and gradients; others by hand.

python -m tests.mx.test_random_symbols texts 0 500 ours.json
build/mxnet-oracle/bin/python tests/mx/oracle/random_symbols.py 0 500 answers.json.gz ours.json
python -m tests.mx.test_random_symbols answers.json.gz
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.mx.random_symbols import FIXTURE, IN_CI, answer, draw

from weft import mx
from weft.mx.symbols.names import NameManager, naming

SLICES = 12


def drawn(number: int) -> tuple[Any, dict[str, tuple[int, ...]]]:
    naming.managers[:] = [NameManager()]
    return draw(mx.sym, number)


def close(mine: Any, its: Any) -> bool:
    if isinstance(mine, float) or isinstance(its, float):
        return abs(mine - its) <= 2e-3 * max(1, abs(mine), abs(its)) or (math.isnan(mine) and math.isnan(its))
    if isinstance(mine, dict):
        return mine.keys() == its.keys() and all(close(mine[name], its[name]) for name in mine)
    if isinstance(mine, (list, tuple)):
        return len(mine) == len(its) and all(map(close, mine, its))
    return bool(mine == its)


def difference(number: int, text: str, its: Any) -> str | None:
    """What differs of a symbol: its JSON, or what it computes when MXNet's JSON is read."""
    symbol, shapes = drawn(number)
    if json.loads(symbol.tojson()) != json.loads(text):
        return f"symbol {number}: other JSON\n{symbol.tojson()}\nMXNet {text}"
    mine = json.loads(json.dumps(answer(mx, mx.sym.load_json(text), shapes)))
    wrong = [part for part in its if not close(mine[part], its[part])]
    return f"symbol {number}: {wrong[0]}\nhere {mine[wrong[0]]}\nMXNet {its[wrong[0]]}\n{text}" if wrong else None


def answers(path: Path) -> tuple[int, list[Any]]:
    with gzip.open(path) as file:
        first, found = json.loads(file.read())
    return first, found


@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.slow
def test_symbols_are_written_read_and_computed_as_by_mxnet(part: int) -> None:
    _, found = answers(Path(__file__).parent / "fixtures" / FIXTURE)
    assert len(found) == IN_CI
    each = IN_CI // SLICES
    for number in range(part * each, (part + 1) * each):
        assert difference(number, *found[number]) is None


def main(words: list[str]) -> None:
    """Write the JSON of a slice for MXNet, or compare its answers."""
    if words[0] == "texts":
        texts = [drawn(number)[0].tojson() for number in range(int(words[1]), int(words[2]))]
        Path(words[3]).write_text(json.dumps(texts))
        return
    first, found = answers(Path(words[0]))
    told = [difference(first + place, *its) for place, its in enumerate(found)]
    wrong = [each for each in told if each is not None]
    print("\n\n".join(wrong[:5]))
    print(f"{len(found)} symbols, {len(wrong)} different")


if __name__ == "__main__":
    main(sys.argv[1:])
