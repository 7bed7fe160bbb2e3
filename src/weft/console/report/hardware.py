"""Measure what the chapter's tables of hardware tell: latencies of caches, memory, cores and the disk, and rates."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from weft.codegen.measure_module import can_flush, latency_module, measure_module
from weft.config import config
from weft.document.blocks import Document, Paragraph, Table
from weft.runtime.machine import machine_model
from weft.runtime.shared_code import shared_library
from weft.target import Target, host_target

LINE, PAGE, BLOCK = 64, 4096, 1 << 20
STEPS, REPEATS = 1 << 16, 5
MEMORY_BYTES = 64 << 20
MOST_CACHE_BYTES = 8 << 20
FILE_BLOCKS, TRIES = 32, 40
BLOCKS = range(FILE_BLOCKS)
READ, READ_TOLD = "read 4 KB of the disk", "120 µs NVMe, 8 ms turning"
DISK, DISK_TOLD = "disk, in order", "1 to 3 GB/s SSD, 8 NVMe"
UNKNOWN = "-"
UNITS = ((1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


@dataclass(frozen=True, slots=True)
class MachineNumber:
    """One thing that was measured: in seconds or in bytes a second; None where it cannot be measured here."""

    name: str
    measured: float | None
    is_rate: bool
    chapter: str

    def text(self) -> str:
        """Give it as the chapter's table has it."""
        if self.measured is None:
            return UNKNOWN
        if self.is_rate:
            return f"{self.measured / 1e9:.3g} GB/s"
        unit, name = next((row for row in UNITS if row[0] <= self.measured), UNITS[-1])
        return f"{self.measured / unit:.3g} {name}"


@dataclass(frozen=True, slots=True)
class Hardware:
    """All figures, with the sizes of the caches, and where the disk was measured."""

    figures: tuple[MachineNumber, ...]
    folder: str

    def as_dict(self) -> dict[str, Any]:
        """Give it as data."""
        return {"probe": [dataclasses.asdict(figure) for figure in self.figures], "disk": self.folder}

    def document(self) -> Document:
        """Give it to read."""
        rows = tuple((figure.name, figure.text(), figure.chapter) for figure in self.figures)
        told = (
            "the best or the middle of several measurements; caches and memory by loads in disorder that wait for each "
            f"other, tables of pages included; the disk past the system's cache, in {self.folder}"
        )
        table = Table(("hardware", "here", "the chapter's table"), rows, frozenset({1, 2}))
        return Document((table, Paragraph(told, "faint")))

    def __str__(self) -> str:
        return str(self.document())


def probe() -> Hardware:
    """Measure this machine's hardware; others that use it make figures worse, never better."""
    target = host_target()
    folder = config().cache_dir or Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    figures = (*_latencies(target), *_rates(target), *_disk(folder))
    return Hardware(tuple(figures), str(folder))


def _latencies(target: Target) -> Iterator[MachineNumber]:
    library = shared_library(latency_module)
    # SAFETY: the kinds are those of the module's functions; shared libraries stay until the process ends.
    chase = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(library.address("chase"))
    chain = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(library.address("chain"))
    out = ctypes.create_string_buffer(LINE)
    yield MachineNumber("multiply-add, after another", _best(lambda: chain(STEPS, out)) / STEPS, False, "1.5 ns")
    l3 = min(target.l3_bytes // 2, MOST_CACHE_BYTES)
    caches = (
        ("L1 cache", target.l1_bytes // 2, "1.5 ns"),
        ("L2 cache", target.l2_bytes // 2, "5 ns"),
        ("L3 cache", l3 if l3 > 2 * target.l2_bytes else 0, "16 ns"),
    )
    for name, size, told in caches:
        taken = None
        if size:
            ring = _ring(size)
            # SAFETY: each word of the ring is the address of another one; `ring` lives until the call is over.
            steps = max(STEPS, len(ring))
            taken = _best(lambda ring=ring, steps=steps: chase(ring.data_ptr(), steps, out)) / steps  # type: ignore[misc]
        yield MachineNumber(f"read from {name}", taken, False, told)
    yield MachineNumber("read from memory", _memory(target, chase, out), False, "46 to 120 ns")
    wait = machine_model(target).wait if target.cores > 1 else None
    yield MachineNumber("hand over, core to core", wait, False, "25 to 29 ns, a line")


def _memory(target: Target, chase: Callable[..., None], out: Any) -> float | None:
    """The seconds of a read of what is in no cache."""
    if not can_flush(target):
        return None
    # SAFETY: the kinds are those of the module's function; the ring is as long as what is flushed.
    flush = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(shared_library(measure_module).address("flush"))
    ring = _ring(MEMORY_BYTES)
    steps = MEMORY_BYTES // LINE // 4  # each line once: what has been read is in a cache

    def before() -> None:
        flush(ring.data_ptr(), MEMORY_BYTES)

    return _best(lambda: chase(ring.data_ptr(), steps, out), before, 2) / steps


def _ring(size: int) -> torch.Tensor:
    """Memory in which the first word of each line is the address of another line: a circle through all in disorder."""
    lines = max(size // LINE, 2)
    ring = torch.zeros(lines, LINE // 8, dtype=torch.int64)
    order = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(lines - 1, generator=torch.Generator())])
    ring[order, 0] = ring.data_ptr() + LINE * order.roll(-1)
    return ring


def _best(run: Callable[[], None], before: Callable[[], None] | None = None, repeats: int = REPEATS) -> float:
    best = float("inf")
    for _ in range(repeats):
        if before is not None:
            before()
        begin = perf_counter()
        run()
        best = min(best, perf_counter() - begin)
    return best


def _rates(target: Target) -> Iterator[MachineNumber]:
    model = machine_model(target)
    for name, told in (("l1", "-"), ("l2", "-"), ("l3", "-"), ("memory", "20 to 25 GB/s a module")):
        where = "memory" if name == "memory" else f"{name.upper()} cache"
        yield MachineNumber(f"{where}, in order", getattr(model, name), True, told)


def _disk(folder: Path) -> Iterator[MachineNumber]:
    """Reads and writes past the system's cache, where the file system lets programs do that."""
    with suppress(OSError), _file(folder) as number:
        block, page = mmap.mmap(-1, BLOCK), mmap.mmap(-1, PAGE)  # memory as such files ask for: in pages
        places = random.Random(0).sample(range(FILE_BLOCKS * BLOCK // PAGE), TRIES)
        reads = [_timed(lambda at=at: os.preadv(number, [page], at * PAGE)) for at in places]  # type: ignore[misc]
        writes = [_timed(lambda at=at: _written(number, page, at * PAGE)) for at in places]  # type: ignore[misc]
        blocks = [_timed(lambda at=at: os.preadv(number, [block], at * BLOCK)) for at in BLOCKS]  # type: ignore[misc]
        yield MachineNumber(READ, median(reads), False, READ_TOLD)
        yield MachineNumber("write 4 KB to the disk", median(writes), False, "30 µs NVMe, 500 µs SATA")
        yield MachineNumber("read 1 MB of the disk", median(blocks), False, "208 µs NVMe, 2 ms SATA")
        yield MachineNumber(DISK, BLOCK / median(blocks), True, DISK_TOLD)
        return
    yield MachineNumber(READ, None, False, READ_TOLD)
    yield MachineNumber(DISK, None, True, DISK_TOLD)


@contextmanager
def _file(folder: Path) -> Iterator[int]:
    """Open a file of FILE_BLOCKS blocks past the system's cache, which is gone afterwards."""
    direct = getattr(os, "O_DIRECT", None)
    if direct is None:
        raise OSError
    handle, name = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(os.urandom(BLOCK) * FILE_BLOCKS)
            file.flush()
            os.fsync(handle)
        number = os.open(name, os.O_RDWR | direct)
        try:
            yield number
        finally:
            os.close(number)
    finally:
        Path(name).unlink()


def _written(number: int, page: mmap.mmap, place: int) -> None:
    os.pwritev(number, [page], place)
    os.fdatasync(number)


def _timed(run: Callable[[], object]) -> float:
    begin = perf_counter()
    run()
    return perf_counter() - begin
