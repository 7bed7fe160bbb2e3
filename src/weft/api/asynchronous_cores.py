"""The thread of a task -> how many cores PyTorch's operators in it may use."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from weft import devices


@cache
def _openmp() -> ctypes.CDLL | None:
    """The OpenMP that PyTorch computes with. `torch.set_num_threads` would also bind threads that begin later."""
    folder = Path(torch.__file__).parent / "lib"
    for path in sorted(folder.glob("lib*omp*.so*")):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "omp_set_num_threads"):
            return library
    return None


@contextmanager
def cores(count: int) -> Iterator[None]:
    """Let operators of this thread, and what it compiles, use so many cores in the block."""
    openmp = _openmp()
    before = torch.get_num_threads()
    with devices.cores(count):
        if openmp is None or before == count:
            yield
            return
        openmp.omp_set_num_threads(count)
        try:
            yield
        finally:
            openmp.omp_set_num_threads(before)
