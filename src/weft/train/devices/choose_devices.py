"""Choose the devices to use, by name or by what the machine has."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from weft.devices import Device, cpu_count, parse
from weft.errors import UsageError, counted
from weft.train.processes.peers import Peers


def try_gpu(index: int = 0) -> torch.device:
    """Give the GPU with this number if there is one, else the CPU."""
    return torch.device("cuda", index) if torch.cuda.device_count() > index else torch.device("cpu")


def try_all_gpus() -> list[torch.device]:
    """Give all GPUs; where there is none, the CPU."""
    gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return gpus or [torch.device("cpu")]


def find_devices(devices: str | int | torch.device | Device | list[str] | None = "all") -> list[Device]:
    """Find devices by name: "all" means every GPU, or every core where there is none; "cpu:2" is one; or a list.

    A number means so many GPUs, or virtual CPU devices where there is none.
    """
    if isinstance(devices, int):
        return _first_devices(devices)
    if devices is None or devices == "all":
        gpus = [Device("cuda", index) for index in range(torch.cuda.device_count())]
        return gpus or [Device("cpu", index) for index in range(cpu_count())]
    if isinstance(devices, str | torch.device | Device):
        return [parse(devices)]
    found = [parse(device) for device in devices]
    if not found:
        raise UsageError("no device is named", fix='devices="all", or a list such as ["cpu:0", "cpu:1"]')
    return found


def _first_devices(count: int) -> list[Device]:
    if isinstance(count, bool) or count < 1:
        raise UsageError(f"devices={count!r}", why="a number says how many devices", fix='devices=2, or devices="all"')
    gpus = torch.cuda.device_count()
    if gpus and count > gpus:
        raise UsageError(
            f"devices={count}, and PyTorch sees {counted(gpus, 'GPU')}",
            fix=f'devices={gpus}, or virtual devices by name: devices=["cpu:0", "cpu:1"]',
        )
    return [Device("cuda" if gpus else "cpu", index) for index in range(count)]


def device_of(net: Any) -> Device:
    """Find the device that a module lies on; that of a function, or of a module without tensors, is the CPU."""
    if isinstance(net, nn.Module):
        for parameter in net.parameters():
            return parse(parameter.device)
    return Device("cpu", 0)


def devices_of_rank(devices: Any, net: nn.Module, peers: Peers | None) -> list[Device]:
    """Find the devices of this process: those named, by default the module's own; among others its GPU, or the CPU."""
    if peers is None and devices is None:
        return [device_of(net)]
    if peers is None or devices not in (None, "all"):
        return find_devices(devices)
    gpus = torch.cuda.device_count()
    return [Device("cuda", peers.local_rank % gpus)] if gpus else [Device("cpu", 0)]
