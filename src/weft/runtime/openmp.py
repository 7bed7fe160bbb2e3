"""The OpenMP library of PyTorch's operators -> the addresses by which lanes can run on the same threads."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

import torch

# In the order in which a crew's block has them; see weft.codegen.threads.crew_layout.
FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads")


@cache
def openmp_functions() -> tuple[int, ...]:
    """Give the addresses of the functions; none where PyTorch has no OpenMP library of this kind in the process."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return ()
    bundled = sorted(map(str, (Path(torch.__file__).parent / "lib").glob("libgomp*.so*")))
    for name in (*bundled, "libgomp.so.1"):
        try:
            library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            found = [getattr(library, function) for function in FUNCTIONS]
        except (OSError, AttributeError):
            continue
        return tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in found)
    return ()
