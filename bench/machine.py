"""Describe this machine, the commit and the versions, and how busy others keep the machine meanwhile."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "llvmlite", "onnxruntime", "onnx", "openvino", "jax", "numpy")
NOISY_CORES = 0.1
PEAK_SIZE = 1536


def describe(threads: int) -> dict[str, Any]:
    """Say on what, with which versions and at which commit something was measured."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": threads,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "changed_files": len(_git("status", "--porcelain", "--", "src", "bench").splitlines()),
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "peak_gflops": round(peak_gflops(threads), 1),
    }


def short_name() -> str:
    """Name this machine for a file: its processor, core count and nothing that identifies a person."""
    words = re.sub(r"\((R|TM|r|tm)\)|CPU|Processor|@.*", " ", _processor())
    name = "-".join(re.findall(r"[A-Za-z0-9]+", words)).lower() or platform.machine()
    return f"{name}-{os.cpu_count()}-cores"


def peak_gflops(threads: int) -> float:
    """Measure the arithmetic this machine can do in float32: the best of several large products."""
    torch.set_num_threads(threads)
    left, right = torch.randn(2, PEAK_SIZE, PEAK_SIZE)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        torch.mm(left, right)
        best = min(best, time.perf_counter() - start)
    return 2 * PEAK_SIZE**3 / best / 1e9


@dataclass(frozen=True, slots=True)
class Load:
    """Processor seconds used so far: by everyone, by some processes of ours, and taken by the host."""

    at: float
    everyone: float
    ours: float
    stolen: float


def load(processes: Sequence[int]) -> Load | None:
    """Read the seconds from /proc; None where there is no /proc."""
    if not Path("/proc/stat").exists():
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, nice, system, _, _, interrupt, soft_interrupt, steal = fields[:8]
    busy = user + nice + system + interrupt + soft_interrupt
    ours = sum(map(_process_ticks, (os.getpid(), *processes)))
    return Load(time.monotonic(), busy / ticks, ours / ticks, steal / ticks)


def foreign_cores(before: Load | None, after: Load | None) -> float | None:
    """Give how many cores others used, or the host took away, on average between two readings."""
    if before is None or after is None or after.at <= before.at:
        return None
    others = (after.everyone - before.everyone) - (after.ours - before.ours) + (after.stolen - before.stolen)
    return max(0.0, others / (after.at - before.at))


def _process_ticks(process: int) -> int:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:  # it has ended: what it used no longer grows
        return 0
    fields = text.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    try:
        found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()
