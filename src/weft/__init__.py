"""Weft: ordinary imperative PyTorch, run as whole compiled programs.

To add a public name, add it in three places: the block for type checkers, `__all__` and `HOMES`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from weft.errors import CheckpointError, ExecutionError, InternalError, UnsupportedError, UsageError, WeftError

if TYPE_CHECKING:
    from weft.api.explain import explain
    from weft.api.hybrid import hybridize, program
    from weft.api.program_file import load_program
    from weft.api.source import compile_source
    from weft.api.step import step
    from weft.train.checkpoint import load, save
    from weft.train.checkpoint_folder import Checkpoints

__version__ = "0.1.0.dev0"

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "ExecutionError",
    "InternalError",
    "UnsupportedError",
    "UsageError",
    "WeftError",
    "compile_source",
    "explain",
    "hybridize",
    "load",
    "load_program",
    "program",
    "save",
    "step",
]

# Where each name comes from: imported at its first use, because `weft --version` must not wait for PyTorch.
HOMES = {
    "Checkpoints": "weft.train.checkpoint_folder",
    "compile_source": "weft.api.source",
    "explain": "weft.api.explain",
    "hybridize": "weft.api.hybrid",
    "load": "weft.train.checkpoint",
    "load_program": "weft.api.program_file",
    "program": "weft.api.hybrid",
    "save": "weft.train.checkpoint",
    "step": "weft.api.step",
}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that this function knows

    def __getattr__(name: str) -> object:
        home = HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'weft' has no attribute {name!r}")
        found = getattr(importlib.import_module(home), name)
        globals()[name] = found  # so that the next use is a plain attribute
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *HOMES})
