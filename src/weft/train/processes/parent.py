"""A process that was started by another -> one that ends when the other ends, however that ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of Linux: <sys/prctl.h>


def end_with_parent(parent: int | None = None) -> None:
    """Have the kernel end this process when its parent ends; where it cannot, `parent_is_gone` has to be asked.

    `parent` is who started it: if that has ended already, this process ends at once.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and parent_is_gone(parent):
        os._exit(1)


def parent_is_gone(parent: int) -> bool:
    """Tell whether the process that started this one has ended: somebody else has adopted this one."""
    return os.getppid() != parent
