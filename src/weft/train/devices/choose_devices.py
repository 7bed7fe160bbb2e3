"""Choose the devices to use, by name or by what the machine has."""

from __future__ import annotations

from typing import Any

import torch

from weft.devices import Device, cpu_count, parse
from weft.errors import UsageError
from weft.train.processes.peers import Peers


def try_gpu(index: int = 0) -> torch.device:
    """Give the GPU with this number if there is one, else the CPU."""
    return torch.device("cuda", index) if torch.cuda.device_count() > index else torch.device("cpu")


def try_all_gpus() -> list[torch.device]:
    """Give all GPUs; where there is none, the CPU."""
    gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return gpus or [torch.device("cpu")]


def find_devices(devices: str | torch.device | Device | list[str] | None = "all") -> list[Device]:
    """Find devices by name: "all" means every GPU, or every core where there is none; "cpu:2" is one; or a list."""
    if devices is None or devices == "all":
        gpus = [Device("cuda", index) for index in range(torch.cuda.device_count())]
        return gpus or [Device("cpu", index) for index in range(cpu_count())]
    if isinstance(devices, str | torch.device | Device):
        return [parse(devices)]
    found = [parse(device) for device in devices]
    if not found:
        raise UsageError("no device is named", fix='devices="all", or a list such as ["cpu:0", "cpu:1"]')
    return found


def devices_of_rank(devices: Any, peers: Peers | None) -> list[Device]:
    """Find the devices of this process: alone, all that are named; among others, "all" is its own GPU, or the CPU."""
    if peers is None or devices not in (None, "all"):
        return find_devices(devices)
    gpus = torch.cuda.device_count()
    return [Device("cuda", peers.local_rank % gpus)] if gpus else [Device("cpu", 0)]
