"""The chapter's training on several GPUs from scratch: LeNet from raw parameters, on devices that need not be there.

`python examples/chapter/multiple_gpus.py [--synthetic] [--epochs 4] [--samples 60000]`
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn import functional

import weft
from weft.train.data import Batches, ImageData

SCALE = 0.01


def initial_parameters() -> list[torch.Tensor]:
    """Give W1, b1, ..., W4, b4 of LeNet."""
    shapes = [(20, 1, 3, 3), (50, 20, 5, 5), (128, 800), (10, 128)]
    parameters = []
    for shape in shapes:
        parameters += [torch.randn(shape) * SCALE, torch.zeros(shape[0])]
    for parameter in parameters:
        parameter.requires_grad_()
    return parameters


def lenet(x: torch.Tensor, parameters: list[torch.Tensor]) -> torch.Tensor:
    """Classify images."""
    w1, b1, w2, b2, w3, b3, w4, b4 = parameters
    h1 = functional.avg_pool2d(functional.conv2d(x, w1, b1).relu(), 2)
    h2 = functional.avg_pool2d(functional.conv2d(h1, w2, b2).relu(), 2)
    h3 = functional.linear(h2.flatten(1), w3, b3).relu()
    return functional.linear(h3, w4, b4)


def sgd(parameters: list[torch.Tensor], lr: float, batch_size: int) -> None:
    """Take a step, and forget the gradients."""
    with torch.no_grad():
        for parameter in parameters:
            parameter -= lr * parameter.grad / batch_size
            parameter.grad.zero_()


def train_batch(
    x: torch.Tensor, y: torch.Tensor, device_parameters: list[list[torch.Tensor]], devices: list[str], lr: float
) -> None:
    """Train on one batch: each device its part, gradients summed over all of them."""
    xs, ys = weft.split_and_load(x, devices), weft.split_and_load(y, devices)
    losses = [
        functional.cross_entropy(lenet(part, parameters), labels, reduction="sum")
        for part, labels, parameters in zip(xs, ys, device_parameters, strict=True)
    ]
    for loss in losses:
        loss.backward()
    for index in range(len(device_parameters[0])):
        weft.allreduce([parameters[index].grad for parameters in device_parameters])
    for parameters in device_parameters:
        sgd(parameters, lr, x.shape[0])  # the whole batch's size


def train(num_gpus: int, batch_size: int, lr: float, data: tuple[ImageData, ImageData], epochs: int) -> float:
    """Train, and give the accuracy on the test data."""
    torch.manual_seed(0)
    train_iter, test_iter = Batches(data[0], batch_size), Batches(data[1], 1000, shuffle=False)
    gpus = torch.cuda.device_count() >= num_gpus
    devices = [f"cuda:{index}" if gpus else f"cpu:{index}" for index in range(num_gpus)]
    print("running on:", devices)
    device_parameters = weft.replicate(initial_parameters(), devices)
    accuracy = 0.0
    for epoch in range(epochs):
        start = time.time()
        for x, y in train_iter:
            train_batch(x, y, device_parameters, devices, lr)
            weft.waitall()
        seconds = time.time() - start
        accuracy = weft.evaluate(lambda x: lenet(x, device_parameters[0]), test_iter, devices[0])
        print(f"epoch {epoch + 1}, time {seconds:.1f} sec, test acc {accuracy:.2f}")
    return accuracy


def show_the_parts() -> None:
    """Print what the chapter prints of get_params, allreduce and split_and_load."""
    devices = ["cpu:0", "cpu:1"]
    parameters = weft.replicate(initial_parameters(), devices)[0]
    print("b1 weight:", parameters[1].detach())
    print("b1 grad:", parameters[1].grad)
    data = [torch.ones(1, 2) * (index + 1) for index in range(2)]
    print("before allreduce:", data)
    weft.allreduce(data)
    print("after allreduce:", data)
    batch = torch.arange(24).reshape(6, 4)
    print("input:", batch)
    print("load into", devices)
    print("output:", weft.split_and_load(batch, devices))


def main() -> None:
    """Run the section."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--synthetic", action="store_true", help="made-up data, where there is no network")
    arguments.add_argument("--epochs", type=int, default=4)
    arguments.add_argument("--samples", type=int, default=60_000, help="how many of the training samples")
    options = arguments.parse_args()
    show_the_parts()
    train_data, test_data = (
        weft.data.synthetic_fashion_mnist(options.samples, max(1, options.samples // 6))
        if options.synthetic
        else weft.data.fashion_mnist()
    )
    print("data:", train_data.name)
    kept = ImageData(train_data.images[: options.samples], train_data.labels[: options.samples], train_data.name)
    train(1, 256, 0.2, (kept, test_data), options.epochs)
    train(2, 256, 0.2, (kept, test_data), options.epochs)


if __name__ == "__main__":
    main()
