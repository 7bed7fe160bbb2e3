"""Ask for memory before LLVM does: where there is none LLVM ends the process, and an error can still be raised here."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from weft.errors import OutOfMemoryError

MIB = 2**20
# What a thread takes before it has compiled anything: its stack, and the address space that the C library sets aside
# for what each thread allocates.
A_THREAD = 160 * MIB
A_LETTER = 1500  # bytes that LLVM takes at most for a letter of a module's text: an estimate on the safe side
LOADING = 32 * MIB
# Limits of address space are what is asked about. Whether the system would find all these bytes in its memory at once
# is not: an estimate that is too high must not refuse a program on a small machine.
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE, which Python does not name before 3.13
FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE


class _Asked:
    """The bytes that all who compile now may still take; the lock is held for sums and one call of the system."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew in a forked child: of those who compiled, none is there."""
        self.lock = threading.Lock()
        self.size = 0


_asked = _Asked()
os.register_at_fork(after_in_child=_asked.renew)


@contextmanager
def memory_for(letters: int, least: int = A_THREAD) -> Iterator[None]:
    """See that there is memory to compile so many letters, beside all that is being compiled now."""
    size, asked = least + A_LETTER * letters, _asked
    with asked.lock:
        _try(asked.size + size)
        asked.size += size
    try:
        yield
    finally:
        with asked.lock:
            asked.size -= size


def _try(size: int) -> None:
    try:
        mmap.mmap(-1, size, flags=FLAGS).close()
    except OSError as error:
        raise OutOfMemoryError(
            f"there is no memory to compile a program: {size // MIB:,} MiB were asked for",
            why=error.strerror,
            fix="free memory, raise the limit (ulimit -v), or compile smaller programs: parts of the model",
        ) from error
