"""Mutate `.params` files and JSON of symbols: each is read or refused, within the memory that its size allows.

python -m tests.mx.fuzz 20000
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import tracemalloc
from pathlib import Path

from weft.errors import CheckpointError
from weft.mx.base.errors import MXNetError
from weft.mx.symbols.symbol import load_json
from weft.params_file import read_arrays

EXPORTED = Path(__file__).parent / "fixtures" / "exported"
SPARE = 20_000  # bytes that Python's own objects take, however small a file is
OBJECTS = 40  # times the text, that Python's objects of a JSON take
VALUES = (
    0,
    1,
    -1,
    2**31,
    2**63,
    1e400,
    "",
    "x",
    "(1, 2)",
    "(9999999999, 9999999999)",
    None,
    [],
    {},
    True,
    "[[",
    "9" * 40,
)


def mutated_bytes(content: bytes, chance: random.Random) -> bytes:
    """Change, cut, repeat or drop a few bytes."""
    made = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        kind, place = chance.randrange(5), chance.randrange(len(made))
        if kind < 3:
            made[place] = chance.choice((0, 1, 127, 255, chance.randrange(256)))
        elif kind == 3:
            del made[place : place + chance.randint(1, 9)]
        else:
            made[place:place] = made[place : place + chance.randint(1, 9)]
        if not made:
            return b""
    return bytes(made[: chance.randrange(len(made))]) if chance.random() < 0.2 else bytes(made)


def mutated_graph(text: str, chance: random.Random) -> str:
    """Change a few values of a JSON, wherever they lie, or its text."""
    if chance.random() < 0.3:
        return mutated_bytes(text.encode(), chance).decode("utf-8", "replace")
    graph = json.loads(text)
    for _ in range(chance.randint(1, 3)):
        here = graph
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not keys:
                break
            key = chance.choice(keys)
            if isinstance(here[key], (dict, list)) and here[key] and chance.random() < 0.85:
                here = here[key]
                continue
            if chance.random() < 0.2:
                del here[key]
            elif isinstance(here[key], int) and chance.random() < 0.5:
                here[key] = chance.randrange(-3, 20)
            else:
                here[key] = chance.choice(VALUES)
            break
    return json.dumps(graph)


def fuzz_params(count: int, seed: int) -> tuple[int, int]:
    """Read mutated parameters; gives how many were read and how many refused."""
    chance, read = random.Random(seed), 0
    content = (EXPORTED / "net-0000.params").read_bytes()
    read_arrays(content, "x")  # what a process holds from its first reading on is no file's
    tracemalloc.start()
    for _ in range(count):
        given = mutated_bytes(content, chance)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            arrays, names = read_arrays(given, "x")
            read += 1
            held = sum(array.numel() * array.itemsize for array in arrays) + sum(map(len, names))
            assert held <= len(given)
        except CheckpointError:
            pass
        assert tracemalloc.get_traced_memory()[1] - before < 4 * len(given) + SPARE
    tracemalloc.stop()
    return read, count - read


def fuzz_symbols(count: int, seed: int) -> tuple[int, int]:
    """Read mutated symbols, write those that were read, and infer their sizes; only MXNet's error is raised."""
    chance, read = random.Random(seed), 0
    texts = [(EXPORTED / f"{name}-symbol.json").read_text() for name in ("net", "old")]
    for text in texts:  # what a process holds from its first reading on is no file's
        _read(text)
    tracemalloc.start()
    for _ in range(count):
        given = mutated_graph(chance.choice(texts), chance)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        read += _read(given)
        assert tracemalloc.get_traced_memory()[1] - before < OBJECTS * len(given) + 100 * SPARE
    tracemalloc.stop()
    return read, count - read


def _read(given: str) -> bool:
    """Whether a symbol can be read, which then can be written and be asked for its sizes."""
    try:
        symbol = load_json(given)
        again = load_json(symbol.tojson())
    except MXNetError:
        return False
    assert again.tojson() == symbol.tojson()
    if "data" in symbol.list_arguments():
        with contextlib.suppress(MXNetError):
            symbol.infer_shape(data=(2, 1, 8, 8))
    return True


if __name__ == "__main__":
    TIMES = int(sys.argv[1])
    print("params: read, refused:", fuzz_params(TIMES // 2, 1))
    print("symbols: read, refused:", fuzz_symbols(TIMES // 2, 2))
