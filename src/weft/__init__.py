"""Weft: ordinary imperative PyTorch, run as whole compiled programs."""

from weft.api.explain import explain
from weft.api.hybrid import hybridize, program
from weft.api.program_file import load_program
from weft.api.source import compile_source
from weft.errors import ExecutionError, InternalError, UnsupportedError, UsageError, WeftError

__version__ = "0.1.0.dev0"

__all__ = [
    "ExecutionError",
    "InternalError",
    "UnsupportedError",
    "UsageError",
    "WeftError",
    "compile_source",
    "explain",
    "hybridize",
    "load_program",
    "program",
]
