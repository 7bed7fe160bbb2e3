"""Run random symbols with the real MXNet: run by the oracle's Python; `FIRST LAST FILE [JSON]` for others than CI's.

With a file of JSON that weft.mx wrote (a list of texts), each symbol is read from there.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import mxnet as mx

HERE = Path(__file__).resolve().parents[1]


def symbols() -> Any:
    """The module next door that has this one's name."""
    spec = importlib.util.spec_from_file_location("symbols", HERE / "random_symbols.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["symbols"] = module
    spec.loader.exec_module(module)
    return module


def main(words: list[str]) -> None:
    """Write the fixture, or the answers of a slice."""
    module = symbols()
    first, last = (int(words[0]), int(words[1])) if words else (0, module.IN_CI)
    path = Path(words[2]) if words else HERE / "fixtures" / module.FIXTURE
    texts = json.loads(Path(words[3]).read_text()) if len(words) > 3 else None
    found = []
    for number in range(first, last):
        mx.name.NameManager._current.value = mx.name.NameManager()
        symbol, shapes = module.draw(mx.sym, number)
        text = symbol.tojson()
        if texts is not None:
            symbol = mx.sym.load_json(texts[number - first])
        found.append([text, module.answer(mx, symbol, shapes)])
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(json.dumps([first, found]).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
