"""Run random programs with the real MXNet: run by the oracle's Python; `FIRST LAST FILE` for others than CI's."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mxnet import autograd, nd

HERE = Path(__file__).resolve().parents[1]


def programs() -> Any:
    """The module next door that has this one's name."""
    spec = importlib.util.spec_from_file_location("programs", HERE / "random_programs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["programs"] = module
    spec.loader.exec_module(module)
    return module


def main(words: list[str]) -> None:
    """Write the fixture, or the answers of a slice."""
    module = programs()
    first, last = (int(words[0]), int(words[1])) if words else (0, module.IN_CI)
    path = Path(words[2]) if words else HERE / "fixtures" / module.FIXTURE
    np.seterr(all="ignore")
    found = [module.run(module.program(number), nd, autograd) for number in range(first, last)]
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(json.dumps([first, found]).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
