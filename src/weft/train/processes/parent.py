"""End this process when the one that started it ends, however that ended.

`python -m weft.train.processes.parent PARENT MODULE ...` runs a module so from the start: PyTorch takes seconds to
import, and a process that loses its parent meanwhile is adopted by another, and would not know.
"""

from __future__ import annotations

import ctypes
import os
import runpy
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


if __name__ == "__main__":
    end_with_parent(int(sys.argv.pop(1)))
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
