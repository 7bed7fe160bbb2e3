"""Blocks of memory go to one call at a time, are used again, and go when no program of their size is left."""

import gc
import random
import threading
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


MEGABYTE = 1 << 20


@pytest.fixture
def no_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "_pools", weakref.WeakValueDictionary())


@pytest.mark.usefixtures("no_pools")
def test_a_call_takes_the_smallest_larger_block_that_is_idle_rather_than_a_new_one() -> None:
    small, middle, large = (block_pool(size * MEGABYTE) for size in (2, 4, 8))
    blocks = large.take(), middle.take()
    for pool, block in zip((large, middle), blocks, strict=True):
        pool.give_back(block)
    first, second, third = small.take(), small.take(), small.take()
    assert (first, second) == (blocks[1], blocks[0])
    assert len(third.memory) == 2 * MEGABYTE
    small.give_back(first)
    assert middle.take() is first
    assert not small.idle


@pytest.mark.usefixtures("no_pools")
def test_smaller_idle_blocks_go_before_a_new_one_is_made_and_small_ones_stay() -> None:
    tiny, small, large = (block_pool(size) for size in (100_000, 2 * MEGABYTE, 8 * MEGABYTE))
    for pool in (tiny, small):
        pool.give_back(pool.take())
    large.give_back(large.take())
    assert [len(pool.idle) for pool in (tiny, small, large)] == [1, 0, 1]
    assert len(tiny.take().memory) < MEGABYTE


@pytest.mark.usefixtures("no_pools")
def test_a_block_whose_programs_have_gone_goes_too() -> None:
    small, large = block_pool(2 * MEGABYTE), block_pool(8 * MEGABYTE)
    large.give_back(large.take())
    block = small.take()
    del large
    gc.collect()
    small.give_back(block)
    gone = weakref.ref(block)
    del block
    gc.collect()
    assert gone() is None
    assert not small.idle


@pytest.mark.usefixtures("no_pools")
def test_threads_that_take_blocks_of_many_sizes_never_have_the_same_one() -> None:
    pools = [block_pool(size * MEGABYTE) for size in (1, 2, 3, 5, 8)]
    in_use: set[int] = set()
    twice: list[int] = []

    def work(seed: int) -> None:
        chosen = random.Random(seed)
        for _ in range(300):
            pool = chosen.choice(pools)
            block = pool.take()
            if block.address in in_use or len(block.memory) < pool.size:
                twice.append(block.address)
            in_use.add(block.address)
            block.memory[pool.size - 1] = 1
            in_use.discard(block.address)
            pool.give_back(block)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not twice
