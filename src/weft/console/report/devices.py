"""Report what this machine has to compute with, and how fast it is: `weft devices`."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import importlib.util
import mmap
import os
import platform
import random
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from weft.codegen.measure_module import can_flush, latency_module, measure_module
from weft.config import config
from weft.console.outcome import Outcome
from weft.console.report.environment import bytes_text
from weft.console.terminal import Progress, show, style_of
from weft.devices import Device, all_devices
from weft.document.blocks import Document, Paragraph, Table
from weft.errors import UsageError
from weft.runtime.machine import machine_model
from weft.runtime.shared_code import shared_library
from weft.target import Target, host_target

LINE, PAGE, BLOCK = 64, 4096, 1 << 20
STEPS, TRIES = 1 << 16, 5
MEMORY_BYTES = 64 << 20
MOST_CACHE_BYTES = 8 << 20
FILE_BLOCKS, TRIES = 32, 40
BLOCKS = range(FILE_BLOCKS)
READ, READ_TOLD = "read 4 KB of the disk", "120 µs NVMe, 8 ms turning"
DISK, DISK_TOLD = "disk, in order", "1 to 3 GB/s SSD, 8 NVMe"
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
    yield MachineNumber("read from memory", _memory_latency(target, chase, out), False, "46 to 120 ns")
    wait = machine_model(target).wait if target.cores > 1 else None
    yield MachineNumber("hand over, core to core", wait, False, "25 to 29 ns, a line")


def _memory_latency(target: Target, chase: Callable[..., None], out: Any) -> float | None:
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


def _best(run: Callable[[], None], before: Callable[[], None] | None = None, repeats: int = TRIES) -> float:
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


PROCESSORS, MEMORY = Path("/proc/cpuinfo"), Path("/proc/meminfo")
PRODUCT, REPEATS = 4096, 4
UNKNOWN = "-"
SECONDS = 2.0
CLEAR = "\033[H\033[2J"


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device: memory in bytes, speed in floating-point operations a second, share as a part of 1."""

    name: str
    hardware: str
    used: str | None
    memory_used: int | None
    memory: int | None
    processes: int | None
    speed: float | None
    share: float


@dataclass(frozen=True, slots=True)
class Survey:
    """All devices."""

    rows: tuple[DeviceRow, ...]

    def as_dict(self) -> dict[str, Any]:
        """Give it as data."""
        return {"devices": [dataclasses.asdict(row) for row in self.rows]}

    def document(self) -> Document:
        """Give it to read."""
        columns = ("device", "use", "memory", "proc", "speed", "share", "hardware")
        rows = tuple(
            (
                row.name,
                row.used or UNKNOWN,
                _memory_text(row),
                UNKNOWN if row.processes is None else str(row.processes),
                UNKNOWN if row.speed is None else f"{row.speed / 1e9:.0f} GFLOP/s",
                f"{row.share:.0%}",
                row.hardware,
            )
            for row in self.rows
        )
        told = "speed: float32 products, measured here; share: of a batch, for all to end together"
        return Document((Table(columns, rows, frozenset({1, 2, 3, 4, 5})), Paragraph(told, "faint")))

    def __str__(self) -> str:
        return str(self.document())


def survey(*, speed: bool = True) -> Survey:
    """Look at every device; with `speed` each is also measured, which takes a moment."""
    devices = all_devices()
    rates = [_speed(device) if speed else None for device in devices]
    shares = _shares(devices, rates)
    gpus = {row.name: row for row in _gpu_rows([device for device in devices if device.kind == "cuda"])}
    found = [
        dataclasses.replace(gpus.get(str(device)) or _cpu_row(device), speed=rate, share=share)
        for device, rate, share in zip(devices, rates, shares, strict=True)
    ]
    return Survey(tuple(found))


def _shares(devices: Sequence[Device], rates: Sequence[float | None]) -> list[float]:
    """What each should get of a batch; where nothing was measured, GPUs share it evenly, else the cores do."""
    known = [rate or 0.0 for rate in rates]
    if not any(known):
        best = devices[-1].kind
        known = [1.0 if device.kind == best else 0.0 for device in devices]
    return [rate / sum(known) for rate in known]


def _speed(device: Device) -> float:
    if device.kind == "cpu":
        return 2 * machine_model(host_target()).multiply_adds
    left, right = torch.randn(2, PRODUCT, PRODUCT, device=device.torch_device)
    torch.mm(left, right)
    torch.cuda.synchronize(device.torch_device)
    start = time.perf_counter()
    for _ in range(REPEATS):
        torch.mm(left, right)
    torch.cuda.synchronize(device.torch_device)
    return REPEATS * 2 * PRODUCT**3 / (time.perf_counter() - start)


def _cpu_row(device: Device) -> DeviceRow:
    """A logical device, a core: memory is that of the machine, which all of them share."""
    sizes = _memory()
    load = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else None
    return DeviceRow(
        str(device),
        processor_name(),
        None if load is None else f"{min(load, 1):.0%}",
        None if sizes is None else sizes[0],
        None if sizes is None else sizes[1],
        None,
        None,
        0.0,
    )


def processor_name() -> str:
    """Name the processor as its maker does."""
    if PROCESSORS.exists():
        for line in PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def _memory() -> tuple[int, int] | None:
    """Bytes in use, and in all."""
    if not MEMORY.exists():
        return None
    lines = (line.split() for line in MEMORY.read_text(encoding="ascii").splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1}
    return sizes["MemTotal"] - sizes["MemAvailable"], sizes["MemTotal"]


def _gpu_rows(devices: Sequence[Device]) -> list[DeviceRow]:
    """GPUs as PyTorch knows them; with nvidia-ml-py also how busy they are."""
    library = importlib.import_module("pynvml") if devices and importlib.util.find_spec("pynvml") else None
    if library is not None:
        library.nvmlInit()
    rows = []
    for device in devices:
        about = torch.cuda.get_device_properties(device.torch_device)
        free, total = torch.cuda.mem_get_info(device.torch_device)
        used, processes = None, None
        if library is not None:
            # By its identity: PyTorch counts only the devices that this process may see.
            handle = library.nvmlDeviceGetHandleByUUID(f"GPU-{about.uuid}")
            used = f"{library.nvmlDeviceGetUtilizationRates(handle).gpu}%"
            processes = len(library.nvmlDeviceGetComputeRunningProcesses(handle))
        rows.append(DeviceRow(str(device), about.name, used, total - free, total, processes, None, 0.0))
    return rows


def _memory_text(row: DeviceRow) -> str:
    if row.memory is None or row.memory_used is None:
        return UNKNOWN
    return f"{bytes_text(row.memory_used)} / {bytes_text(row.memory)}"


def devices_call(given: Namespace) -> str:
    """Give the Python call that does the same."""
    call = f"print(survey({'speed=False' if given.no_speed else ''}))"
    if given.watch:
        again = f"while True:\n    {call}\n    time.sleep({SECONDS})"
        return f"import time\n\nfrom weft.console.report.devices import survey\n\n{again}"
    if given.probe:
        hardware = "from weft.console.report.devices import probe"
        return f"from weft.console.report.devices import survey\n{hardware}\n\n{call}\nprint(probe())"
    return f"from weft.console.report.devices import survey\n\n{call}"


def devices_run(given: Namespace, progress: Progress) -> Outcome:
    """Survey the devices; while somebody watches, again and again until Ctrl-C."""
    if given.probe and (given.watch or given.no_speed):
        raise UsageError("--probe measures once", fix="leave out --watch and --no-speed")
    if given.watch and (given.once or given.json):
        raise UsageError("--watch goes on, --once and --json give one result", fix="leave one of them out")
    progress.stage("looking at the devices" if given.no_speed else "measuring the devices")
    found = survey(speed=not given.no_speed)
    if given.watch:
        progress.end()
    nobody = threading.Event()  # nobody sets it: only Ctrl-C ends the wait
    while given.watch:
        if sys.stdout.isatty():
            print(CLEAR, end="")
        show(found.document(), style_of(ascii_only=given.ascii))
        nobody.wait(SECONDS)
        # Speed does not change; what is measured again would disturb what is watched.
        found = survey(speed=not given.no_speed)
    if not given.probe:
        return Outcome(found.document(), found.as_dict())
    progress.stage("measuring caches, memory and the disk")
    hardware = probe()
    blocks = (*found.document().blocks, *hardware.document().blocks)
    return Outcome(Document(blocks), {**found.as_dict(), **hardware.as_dict()})
