"""The chapter's training runs by name, for `weft train examples.lenet`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from weft.train.checkpoints.folder import Checkpoints
from weft.train.datasets.data import TRAIN, Batches, Images, fashion_mnist, synthetic_fashion_mnist
from weft.train.devices.choose_devices import devices_of_rank
from weft.train.models import LeNet, mlp, resnet18
from weft.train.processes.peers import find_peers
from weft.train.trainer import Trainer

Parts = tuple[Trainer, Batches, Batches]


def _run(net: nn.Module, batch_size: int, lr: float, given: dict[str, Any]) -> Parts:
    """Train a network of the chapter by plain SGD on Fashion-MNIST."""
    count = given.get("samples") or TRAIN
    if given.get("synthetic"):
        train, test = synthetic_fashion_mnist(count, max(1, count // 6))
    else:
        train, test = fashion_mnist()
        train = Images(train.images[:count], train.labels[:count], train.name)
    checkpoints: Checkpoints | None = given.get("checkpoints")
    trainer = Trainer(
        net.to(_first(given.get("devices"))),
        torch.optim.SGD(net.parameters(), lr),
        nn.CrossEntropyLoss(),
        given.get("devices"),
        checkpoints=checkpoints,
    )
    return trainer, Batches(train, batch_size), Batches(test, 1000, shuffle=False)


def _named(make: Callable[[], nn.Module], rate: float, purpose: str) -> Callable[..., Parts]:
    """Make the run of a network: what may be told to it is the same for all."""

    def run(  # noqa: PLR0913 - what a run may be told, by keyword
        *,
        devices: Any = "all",
        checkpoints: Checkpoints | None = None,
        synthetic: bool = False,
        samples: int | None = None,
        batch_size: int = 256,
        lr: float = rate,
    ) -> Parts:
        given = {"devices": devices, "checkpoints": checkpoints, "synthetic": synthetic, "samples": samples}
        torch.manual_seed(0)
        return _run(make(), batch_size, lr, given)

    run.__doc__ = purpose
    return run


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), mlp(784, (256, 128), 10))


RUNS: dict[str, Callable[..., Parts]] = {
    "examples.lenet": _named(LeNet, 0.2, "Train the chapter's LeNet."),
    "examples.resnet18": _named(resnet18, 0.1, "Train the chapter's ResNet-18."),
    "examples.mlp": _named(_perceptron, 0.1, "Train a multilayer perceptron."),
}


def _first(devices: Any) -> torch.device:
    """Where the module itself has to be: on this process's first device."""
    return devices_of_rank(devices, find_peers())[0].torch_device
