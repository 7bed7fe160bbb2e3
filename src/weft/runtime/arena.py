"""Give calls in flight blocks of memory: taken at a call's start, given back at its end, shared by all programs.

Blocks come in few sizes, so that programs of about the same size use the same warm memory. An idle block costs memory
and nothing else: as many as there are cores stay, and all go when the last program of their size goes.

Large blocks are shared between sizes, too: a call takes an idle one that is larger than it needs rather than a new one,
and idle ones that are too small go before a new one is made. So programs for many sizes, of which one runs at a time,
take as much memory as the largest alone.
"""

import ctypes
import mmap
import weakref
from operator import attrgetter

from weft.errors import OutOfMemoryError
from weft.target import usable_cores

STEPS = 4  # sizes between two powers of two
HUGE_PAGE = 2 * 1024 * 1024
LEAST_SHARED = 1024 * 1024  # bytes: to look for another block takes some microseconds, which a call of so much does not


class ArenaBlock:
    """Memory that belongs to one call at a time."""

    __slots__ = ("__weakref__", "address", "memory")

    def __init__(self, size: int) -> None:
        # Private, or a forked child would compute in its parent's memory.
        try:
            self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise OutOfMemoryError(
                f"there is no memory for what a program computes in between: {size:,} bytes",
                why=error.strerror,
                fix='give it smaller batches, or make its step with memory="low"',
            ) from error
        if size >= HUGE_PAGE:
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        # SAFETY: the mapping is as long as this object lives, and whoever computes in it holds this object.
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))


class BlockPool:
    """The idle blocks of one size."""

    __slots__ = ("__weakref__", "idle", "most_idle", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.idle: list[ArenaBlock] = []
        self.most_idle = usable_cores()

    def take(self) -> ArenaBlock:
        """Give an idle block, or a new one; it is the caller's until it is given back."""
        block = self._idle_one()
        if block is None and self.size >= LEAST_SHARED:
            block = self._larger_one()
        return ArenaBlock(self.size) if block is None else block

    def give_back(self, block: ArenaBlock) -> None:
        """Let other calls have a block; one of another size goes to those of its size, if there still are programs."""
        size = len(block.memory)
        pool = self if size == self.size else _pools.get(size)
        if pool is not None and len(pool.idle) < pool.most_idle:
            pool.idle.append(block)

    def _idle_one(self) -> ArenaBlock | None:
        # Taking from a list is one step under Python's lock: concurrent callers never get the same block.
        try:
            return self.idle.pop()
        except IndexError:
            return None

    def _larger_one(self) -> ArenaBlock | None:
        """Take the smallest larger block that is idle; where there is none, the smaller ones that are idle go."""
        pools = [pool for each in _pools.valuerefs() if (pool := each()) is not None and pool.size >= LEAST_SHARED]
        for pool in sorted(pools, key=_size):
            if pool.size > self.size and (block := pool._idle_one()) is not None:
                return block
        for pool in pools:
            if pool.size < self.size:
                pool.idle.clear()
        return None


_size = attrgetter("size")
_pools: "weakref.WeakValueDictionary[int, BlockPool]" = weakref.WeakValueDictionary()


def block_pool(size: int) -> BlockPool:
    """Give the pool of blocks that hold so many bytes; it lives as long as somebody keeps it."""
    size = block_size(size)
    # Two threads may make the same pool at once: then one of them has a pool of its own, which is harmless.
    pool = _pools.get(size)
    if pool is None:
        pool = _pools[size] = BlockPool(size)
    return pool


def block_size(size: int) -> int:
    """Round a number of bytes up to a size that blocks have: a power of two, or one of three steps between two."""
    size = max(size, mmap.PAGESIZE * STEPS)
    step = (1 << (size - 1).bit_length()) // (2 * STEPS)
    return -(-size // step) * step
