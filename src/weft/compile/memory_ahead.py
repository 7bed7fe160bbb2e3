"""The large blocks of memory that the last program of the like took -> the same ones, got from the system meanwhile.

Memory that is touched for the first time may take the system longer to give than a program takes to fill it. How much
a program will need is known before it is traced, where a process has run the like: another core asks for it until it
is needed. A block may be in use while it is asked for, since asking changes nothing in it.
"""

from __future__ import annotations

import ctypes
import json
import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Self

from weft.codegen.objects.object_cache import ObjectCache
from weft.codegen.threads.crew_module import crew_module
from weft.config import config
from weft.devices import cpu_count
from weft.engine.limit import quarter_of_memory
from weft.errors import OutOfMemoryError, WeftError
from weft.runtime.arena import HUGE_PAGE, LEAST_OFFERED, Block, Ready, offered
from weft.runtime.shared_code import shared_library

MEMORY_FOLDER = "memory"
LARGEST_CACHE = 1024 * 1024
SHARE = 4  # of a quarter of the machine's memory: no more is asked for
MOST_BLOCKS = 4096
# A CFUNCTYPE releases the interpreter's lock.
TOUCH = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)

log = logging.getLogger("weft.runtime")


class MemoryAhead:
    """What a first call takes, while this is open; what was taken is kept for the next process."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._known: list[int] = []
        self._noted: list[int] = []
        self._ready: Ready = {}
        self._is_over = True
        self._stop = ctypes.c_int64(0)  # what the thread that asks looks at in native code
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._is_over = False
        return self

    @property
    def is_open(self) -> bool:
        """Whether a call is under way that runs what is traced for it."""
        return not self._is_over

    def find(self, name: str) -> None:
        """Offer blocks as the entry of this name has them, and ask the system for their memory; if this is open."""
        folder = config().cache_dir
        if folder is None or cpu_count() < 2 or self._name is not None or self._is_over:
            return
        self._name = name
        self._known = _sizes(_cache(folder).read(name), name)
        try:
            blocks = [Block(size) for size in self._known]
        except OutOfMemoryError as error:
            log.info("no memory is asked for ahead: %s", error)
            return
        for block in blocks:
            self._ready.setdefault(len(block.memory), []).append(block)
        self._open.enter_context(offered(self._ready, self._noted))
        if sum(self._known) >= HUGE_PAGE:  # or asking takes longer than it saves
            with suppress(RuntimeError):  # no memory for its stack: who needs the blocks asks for theirs
                threading.Thread(target=self._ask, args=(blocks,), name="weft memory ahead").start()

    def _ask(self, blocks: Sequence[Block]) -> None:
        try:
            touch = TOUCH(shared_library(crew_module).address("touch"))
        except WeftError as error:
            log.info("no memory is asked for ahead: %s", error)  # whoever needs it gets the same error
            return
        # In one call: who traces has the interpreter, and every turn of it is worth some megabytes.
        rows = (ctypes.c_int64 * (2 * len(blocks)))(
            *(row for block in blocks for row in (block.address, len(block.memory)))
        )
        # SAFETY: the blocks are as long as that, and held here, as the word is that tells when to stop.
        touch(ctypes.addressof(rows), len(blocks), ctypes.addressof(self._stop))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        folder, name = config().cache_dir, self._name
        if folder is None or name is None:
            return
        self._is_over = True
        self._stop.value = 1
        self._open.close()
        if kind is None and sorted(self._noted) != sorted(self._known):
            _cache(folder).write(name, name.encode() + json.dumps(self._noted).encode())


def _sizes(entry: bytes | None, name: str) -> list[int]:
    # An entry that was moved to another's place is whole, and says whose it is.
    if entry is None or not entry.startswith(name.encode()):
        return []
    try:
        found = json.loads(entry[len(name) :])
        if not all(type(size) is int and size >= LEAST_OFFERED for size in found) or len(found) > MOST_BLOCKS:
            return []
        return found if sum(found) <= quarter_of_memory() // SHARE else []
    except (ValueError, TypeError) as error:
        log.info("the kept sizes of blocks %s are not used: %s", name, error)
        return []


@cache
def _cache(folder: Path) -> ObjectCache:
    return ObjectCache(folder / MEMORY_FOLDER, LARGEST_CACHE)
