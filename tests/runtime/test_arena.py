"""Blocks of memory go to one call at a time, are used again, and go when no program of their size is left."""

import gc
import weakref

import pytest

from weft.runtime import arena
from weft.runtime.arena import block_pool, block_size


def test_a_block_is_used_again() -> None:
    pool = block_pool(100_000)
    block = pool.take()
    pool.give_back(block)
    assert pool.take() is block


def test_blocks_in_use_at_once_are_different() -> None:
    pool = block_pool(100_000)
    first, second = pool.take(), pool.take()
    assert abs(first.address - second.address) >= 100_000


def test_blocks_hold_what_was_asked_for_and_begin_on_a_page() -> None:
    for size in (1, 4096, 100_000, 5_000_000):
        block = block_pool(size).take()
        block.memory[size - 1] = 7
        assert block.address % 4096 == 0


def test_sizes_are_few_and_waste_at_most_a_quarter() -> None:
    sizes = {block_size(size) for size in range(1 << 16, 1 << 17, 64)}
    assert len(sizes) <= 5
    assert all(block_size(size) <= 1.25 * size for size in range(1 << 16, 1 << 17, 64))


def test_programs_of_about_one_size_share_a_pool() -> None:
    assert block_pool(100_000) is block_pool(100_001)


def test_idle_blocks_are_bounded_and_go_with_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "_pools", weakref.WeakValueDictionary())  # no program of other tests keeps this one
    pool = block_pool(3_000_000)
    blocks = [pool.take() for _ in range(pool.most_idle + 3)]
    for block in blocks:
        pool.give_back(block)
    assert len(pool.idle) == pool.most_idle
    gone = weakref.ref(pool.idle[0])
    del blocks, block, pool
    gc.collect()
    assert gone() is None
