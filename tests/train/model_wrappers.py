"""Eleven ways to hold one model, and Weft's own: what people save from, and load into."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import weft


def model() -> nn.Module:
    """A model with a nested part, a buffer, a tie and a child that is called like a wrapper's."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4)), nn.Linear(4, 3))
    net.add_module("module", nn.Linear(3, 2))
    net[2].weight = net[0].weight
    return net


def compiled(net: nn.Module) -> nn.Module:
    return torch.compile(net, backend="eager")


def compiled_in_place(net: nn.Module) -> nn.Module:
    net.compile(backend="eager")
    return net


def data_parallel(net: nn.Module) -> nn.Module:
    return nn.DataParallel(net)


def distributed(net: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(net)


def regional(net: nn.Module) -> nn.Module:
    net[1] = compiled(net[1])
    return net


def weft_parallel(net: nn.Module) -> nn.Module:
    return weft.DataParallel(net, ["cpu:0", "cpu:1"])


def hybridized(net: nn.Module) -> nn.Module:
    return weft.hybridize(net)


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda net: net,
    "data parallel": data_parallel,
    "distributed": distributed,
    "compiled": compiled,
    "compiled in place": compiled_in_place,
    "data parallel of compiled": lambda net: data_parallel(compiled(net)),
    "compiled data parallel": lambda net: compiled(data_parallel(net)),
    "distributed compiled": lambda net: distributed(compiled(net)),
    "compiled distributed": lambda net: compiled(distributed(net)),
    "regional": regional,
    "distributed regional": lambda net: distributed(regional(net)),
    "hybridized": hybridized,
    "data parallel of hybridized": lambda net: data_parallel(hybridized(net)),
    "Weft's data parallel": weft_parallel,
    "Weft's data parallel of regional": lambda net: weft_parallel(regional(net)),
    "distributed Weft's data parallel": lambda net: distributed(weft_parallel(net)),
}
