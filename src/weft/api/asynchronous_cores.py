"""The thread of a task -> how many cores PyTorch's operators in it may use."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from weft import devices


@cache
def _openmp() -> ctypes.PyDLL | None:
    """The OpenMP that PyTorch computes with. `torch.set_num_threads` would also bind threads that begin later.

    Its functions keep the interpreter's lock: to have it back would take longer than all that they do.
    """
    folder = Path(torch.__file__).parent / "lib"
    for path in sorted(folder.glob("lib*omp*.so*")):
        library = ctypes.PyDLL(str(path))
        if hasattr(library, "omp_set_num_threads"):
            return library
    return None


class cores(devices.cores):  # noqa: N801  # called like a function
    """A block in which operators of this thread, and what it compiles, use so many cores."""

    def __enter__(self) -> None:
        super().__enter__()
        before = torch.get_num_threads()
        self._openmp = _openmp() if before != self.count else None
        self._before = before
        if self._openmp is not None:
            self._openmp.omp_set_num_threads(self.count)

    def __exit__(self, *error: object) -> None:
        if self._openmp is not None:
            self._openmp.omp_set_num_threads(self._before)
        super().__exit__(*error)
