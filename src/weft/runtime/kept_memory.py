"""Let the C library keep freed memory for what comes next, as WEFT_KEPT_MEMORY says.

Of its own accord it gives memory of large tensors back to the system as soon as they are freed, and gets it again for
the next ones, page by page and each full of zeros: where some results are kept, that takes longer than to copy them.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

from weft.config import config
from weft.engine.limit import quarter_of_memory

MEGABYTE = 1 << 20
SHARE = 4  # of a quarter of the machine's memory: no more of it is kept, whatever the option says
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # parameters of mallopt(3)
LARGEST = 32 * MEGABYTE  # that MMAP_THRESHOLD may be: larger blocks are always pages of their own
PADDING = 64 * MEGABYTE  # as large as a heap of a thread, which is then not given back when it is empty


@cache
def keep_freed_memory() -> None:
    """Keep what is freed for what comes next, once in a process."""
    size = min(config().kept_memory * MEGABYTE, quarter_of_memory() // SHARE)
    if not size or sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return  # another C library, with rules of its own
    for name, value in ((TRIM_THRESHOLD, size), (TOP_PAD, min(PADDING, size)), (MMAP_THRESHOLD, min(LARGEST, size))):
        mallopt(name, value)
