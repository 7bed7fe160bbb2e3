"""Say where MXNet's library would be, which is not there, and which version's dialect this is: `mx.libinfo`."""

from __future__ import annotations

from typing import NoReturn

__version__ = "1.9.1"  # of MXNet, whose dialect this is


def find_lib_path(prefix: str = "libmxnet") -> NoReturn:
    """Say that no library of MXNet's is there, as MXNet does where it is not found."""
    raise RuntimeError(f"Cannot find the files: {prefix}.so. weft.mx runs MXNet's dialect without MXNet's library")


def find_include_path() -> NoReturn:
    """Say that no headers of MXNet's are there."""
    raise RuntimeError("Cannot find the folder include: weft.mx runs MXNet's dialect without MXNet's library")
