"""Large blocks that a first call took are asked for ahead in the next process; nothing but time depends on it."""

import ctypes
import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from weft.codegen.objects.object_cache import SUFFIX, ObjectCache
from weft.codegen.threads.crew_module import crew_module
from weft.compile.memory_ahead import MEMORY_FOLDER, TOUCH, MemoryAhead
from weft.config import overrides
from weft.devices import cores
from weft.engine.limit import quarter_of_memory
from weft.runtime import arena
from weft.runtime.arena import HUGE_PAGE, Block, new_block, offered
from weft.runtime.shared_code import shared_library

WIDTH = 1024  # a weight of 4 MB


@pytest.fixture(autouse=True)
def two_cores(tmp_path: Path) -> Iterator[None]:
    with overrides(cache_dir=tmp_path), cores(2):
        yield
    assert not arena._offers
    assert not arena._notes


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the large blocks that were made as they were needed."""
    found: list[int] = []

    def block(size: int) -> Block:
        found.extend([size] if size >= HUGE_PAGE else [])
        return Block(size)

    monkeypatch.setattr(arena, "Block", block)
    return found


def run() -> None:
    """As a new process would: nothing is left of the last one."""
    net, x = nn.Linear(WIDTH, WIDTH), torch.ones(64, WIDTH)
    with torch.no_grad():
        expected = net(x)
        torch.testing.assert_close(weft.hybridize(net)(x), expected)
    del net
    gc.collect()


def entry(folder: Path) -> Path:
    (found,) = (folder / MEMORY_FOLDER).glob(f"*{SUFFIX}")
    return found


def test_what_a_first_call_took_is_asked_for_ahead_of_the_next(made: list[int], tmp_path: Path) -> None:
    run()
    assert sum(made) >= 4 * WIDTH * WIDTH
    before = entry(tmp_path).stat().st_mtime_ns, entry(tmp_path).read_bytes()
    made.clear()
    run()
    assert not made
    assert before[1] == entry(tmp_path).read_bytes()


def test_with_one_core_nothing_is_asked_for(made: list[int], tmp_path: Path) -> None:
    with cores(1):
        run()
        run()
    assert made
    assert not (tmp_path / MEMORY_FOLDER).exists()


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"3", b'["big"]', b"[-4194304]", b"[4096]", json.dumps([quarter_of_memory()]).encode(), b"[[4194304]]"],
)
def test_an_entry_that_is_none_is_written_anew(body: bytes, made: list[int], tmp_path: Path) -> None:
    run()
    name = entry(tmp_path).name.removesuffix(SUFFIX)
    whole, made[:] = entry(tmp_path).read_bytes(), []
    ObjectCache(tmp_path / MEMORY_FOLDER).write(name, name.encode() + body)
    run()
    assert made
    assert entry(tmp_path).read_bytes() == whole


def test_an_entry_in_the_place_of_another_is_not_used(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / MEMORY_FOLDER)
    cache.write("a" * 64, b"b" * 64 + b"[4194304]")
    with MemoryAhead() as memory:
        memory.find("a" * 64)
        assert not memory._ready


def test_memory_may_be_in_use_while_it_is_asked_for() -> None:
    block = Block(HUGE_PAGE)
    content = bytes(range(256)) * (HUGE_PAGE // 256)
    block.memory[:] = content
    touch = TOUCH(shared_library(crew_module).address("touch"))
    fresh, other, stop = Block(HUGE_PAGE), Block(HUGE_PAGE), ctypes.c_int64(0)
    rows = (ctypes.c_int64 * 6)(*(word for one in (block, fresh, other) for word in (one.address, HUGE_PAGE)))
    touch(ctypes.addressof(rows), 2, ctypes.addressof(stop))
    assert block.memory[:] == content
    assert not any(fresh.memory[:])
    assert _resident(fresh) == _resident(block)
    stop.value = 1
    touch(ctypes.addressof(rows), 3, ctypes.addressof(stop))
    assert _resident(other) == 0


def _resident(block: Block) -> int:
    """The pages of a block that are in memory."""
    pages = (ctypes.c_ubyte * (HUGE_PAGE // 4096))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(block.address), ctypes.c_size_t(HUGE_PAGE), pages) == 0
    return sum(page & 1 for page in pages)


def test_a_call_that_fails_leaves_nothing_and_keeps_nothing(tmp_path: Path) -> None:
    run()
    name = entry(tmp_path).name.removesuffix(SUFFIX)
    whole = entry(tmp_path).read_bytes()
    with pytest.raises(ValueError, match="wrong"):
        _fail(name)
    assert entry(tmp_path).read_bytes() == whole


def _fail(name: str) -> None:
    with MemoryAhead() as memory:
        memory.find(name)
        new_block(2 * HUGE_PAGE)
        raise ValueError("wrong")


def test_an_offered_block_goes_to_one_taker() -> None:
    ready, taken = {HUGE_PAGE: [Block(HUGE_PAGE) for _ in range(8)]}, list[int]()
    blocks = {id(block) for block in ready[HUGE_PAGE]}
    got: list[Block] = []
    with offered(ready, taken):
        threads = [
            threading.Thread(target=lambda: got.extend(new_block(HUGE_PAGE) for _ in range(4))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({id(block) for block in got}) == len(got) == len(taken) == 16
    assert blocks < {id(block) for block in got}


def test_a_program_that_is_only_made_takes_nothing(made: list[int]) -> None:
    run()
    made.clear()
    with torch.no_grad():
        weft.program(nn.Linear(WIDTH, WIDTH), torch.ones(64, WIDTH))
    assert not made
    assert not arena._offers
