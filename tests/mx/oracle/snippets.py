"""Run every program of tests/mx/snippets.py with the real MXNet: run by the oracle's Python."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

MOST_SECONDS = 30
HERE = Path(__file__).resolve().parents[1]


def programs() -> Any:
    """The module next door that has this one's name."""
    spec = importlib.util.spec_from_file_location("programs", HERE / "snippets.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def apart(module: Any, code: str) -> str | None:
    """What a program prints in a process of its own: some end MXNet's."""
    scope = {
        "mx": mx,
        "nd": mx.nd,
        "sym": mx.sym,
        "autograd": mx.autograd,
        "gluon": mx.gluon,
        "nn": mx.gluon.nn,
        "rnn": mx.gluon.rnn,
        "np": np,
        "files": str(HERE / "fixtures" / "images"),
    }
    mine, its = multiprocessing.Pipe()
    process = multiprocessing.Process(target=lambda: its.send(module.printed(code, scope)))
    process.start()
    its.close()
    try:
        return mine.recv() if mine.poll(MOST_SECONDS) else None
    except EOFError:
        print("the real MXNet ended at", code, flush=True)
        return None
    finally:
        process.kill()
        process.join()


def main() -> None:
    """Write the fixture; with `--new` keep the answers that it has."""
    module = programs()
    path = HERE / "fixtures" / module.FIXTURE
    kept = json.loads(path.read_text(encoding="utf-8")) if "--new" in sys.argv else {}
    found = {code: kept[code] if code in kept else apart(module, code) for code in module.snippets()}
    text = json.dumps(found, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
