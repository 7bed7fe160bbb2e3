"""The chapter's concise training on several devices: ResNet-18 in one line more than on one device, and checkpoints.

`python examples/chapter/multiple_gpus_concise.py [--synthetic] [--epochs 4] [--samples 60000] [--net resnet18|lenet]`
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

import weft
from weft.train.data import Batches, ImageData

NETS = {"resnet18": weft.models.resnet18, "lenet": weft.models.LeNet}


def init_weights(module: nn.Module) -> None:
    """Give a layer the chapter's initial values."""
    if type(module) in (nn.Linear, nn.Conv2d):
        nn.init.normal_(module.weight, std=0.01)


def train(net: nn.Module, data: tuple[Batches, Batches], devices: list[str], lr: float, epochs: int) -> float:
    """Train with the loop that one device would have, and give the accuracy."""
    train_iter, test_iter = data
    net.apply(init_weights)
    net = weft.DataParallel(net, device_ids=devices)
    trainer = torch.optim.SGD(net.parameters(), lr)
    loss = nn.CrossEntropyLoss()
    timer, animator = weft.Timer(), weft.Animator("epoch", "test acc", xlim=[1, epochs])
    first = net.devices[0].torch_device
    for epoch in range(epochs):
        net.train()
        timer.start()
        for x, y in train_iter:
            trainer.zero_grad()
            loss(net(x.to(first)), y.to(first)).backward()
            trainer.step()
        timer.stop()
        animator.add(epoch + 1, (weft.evaluate(net.module, test_iter, devices),))
    print(f"test acc: {animator.Y[0][-1]:.2f}, {timer.avg():.1f} sec/epoch on {devices}")
    return animator.Y[0][-1]


def train_with_trainer(
    net: nn.Module, data: tuple[Batches, Batches], devices: list[str], lr: float, epochs: int
) -> None:
    """Do the same with `weft.Trainer`, which also saves each epoch and can go on from there."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = weft.Trainer(
            net,
            torch.optim.SGD(net.parameters(), lr),
            nn.CrossEntropyLoss(),
            devices,
            checkpoints=weft.Checkpoints(folder),
        )
        trainer.fit(*data, epochs=epochs, resume="auto")


def linear() -> nn.Module:
    """Make the chapter's smallest network, where the first device is."""
    return nn.Linear(10, 1).to(weft.try_gpu())


def wrap() -> None:
    """Print a network, and the same on several devices: all there are, or those that are named by number."""
    net = linear()
    print(net)
    print(weft.DataParallel(net))
    numbers = [0, 3]  # of GPUs; where there are not so many, of shares of the cores
    gpus = torch.cuda.device_count() > max(numbers)
    named = weft.DataParallel(net.to("cuda:0" if gpus else "cpu"), device_ids=numbers if gpus else ["cpu:0", "cpu:3"])
    print("on", *named.devices)


def save_and_load() -> None:
    """Show the chapter's checkpoints: saved from a wrapper, loaded without it, which plain PyTorch refuses."""
    net, new_net = nn.DataParallel(linear()), linear()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "8.4_model.pt"
        torch.save(net.state_dict(), path)
        try:
            new_net.load_state_dict(torch.load(path, weights_only=True))
        except RuntimeError as error:
            print(f"torch: {error}")
        print(f"weft:\n{weft.load(path, new_net).report}")
        torch.save(net.module.state_dict(), path)  # the chapter's first way out: save without the wrapper
        new_net.load_state_dict(torch.load(path, weights_only=True))
        torch.save(net.state_dict(), path)  # the second: wrap before loading
        nn.DataParallel(new_net).load_state_dict(torch.load(path, weights_only=True))
        for holder in (net, weft.DataParallel(net.module)):  # with Weft's names neither is needed
            weft.save(path, holder)
            for loader in (linear(), nn.DataParallel(linear()), weft.DataParallel(linear())):
                weft.load(path, loader)
                same = torch.equal(next(iter(loader.parameters())), net.module.weight)
                print(f"saved from {type(holder).__name__}, loaded into {type(loader).__name__}: same values: {same}")


def main() -> None:
    """Run the section."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--synthetic", action="store_true", help="made-up data, where there is no network")
    arguments.add_argument("--epochs", type=int, default=4)
    arguments.add_argument("--samples", type=int, default=60_000, help="how many of the training samples")
    arguments.add_argument("--net", choices=NETS, default="resnet18")
    options = arguments.parse_args()
    wrap()
    save_and_load()
    train_data, test_data = (
        weft.data.synthetic_fashion_mnist(options.samples, max(1, options.samples // 6))
        if options.synthetic
        else weft.data.fashion_mnist()
    )
    print("data:", train_data.name)
    kept = ImageData(train_data.images[: options.samples], train_data.labels[: options.samples], train_data.name)
    for count, batch_size, lr in ((1, 256, 0.1), (2, 512, 0.2)):
        torch.manual_seed(0)
        devices = [f"cuda:{index}" if torch.cuda.device_count() >= count else f"cpu:{index}" for index in range(count)]
        data = Batches(kept, batch_size), Batches(test_data, 1000, shuffle=False)
        train(NETS[options.net]().to(devices[0].replace("cpu:0", "cpu")), data, devices, lr, options.epochs)
    train_with_trainer(NETS[options.net](), data, ["cpu:0", "cpu:1"], 0.1, options.epochs)


if __name__ == "__main__":
    main()
