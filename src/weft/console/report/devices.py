"""Report what this machine has to compute with, and how fast it is: `weft devices`."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import platform
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft.console.outcome import Outcome
from weft.console.report.environment import bytes_text
from weft.console.report.hardware import probe
from weft.console.terminal import Progress, show, style_of
from weft.devices import Device, all_devices
from weft.document.blocks import Document, Paragraph, Table
from weft.errors import UsageError
from weft.runtime.machine import machine_model
from weft.target import host_target

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
        hardware = "from weft.console.report.hardware import probe"
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
