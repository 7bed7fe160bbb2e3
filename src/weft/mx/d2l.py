"""The functions that the chapter's programs take from its package `d2lzh`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from weft.errors import UsageError
from weft.mx.arrays import autograd
from weft.mx.arrays.ndarray import NDArray, array
from weft.mx.base.context import Context, cpu, gpu, num_gpus
from weft.mx.gluon import nn, splitting
from weft.mx.gluon.vision_data import FILES, read_idx

FASHION = Path("~/.mxnet/datasets/fashion-mnist")


class TimedBlock:
    """Print how long a `with` block took."""

    def __init__(self, prefix: str | None = None) -> None:
        self.prefix = prefix + " " if prefix else ""

    def __enter__(self) -> None:
        self.start = time.time()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        print(f"{self.prefix}time: {time.time() - self.start:.4f} sec")  # noqa: T201  # its purpose


Benchmark = TimedBlock  # its name in the chapter's package


def try_gpu() -> Context:
    """The first GPU, or the processor where there is none."""
    return gpu(0) if num_gpus() else cpu()


def try_all_gpus() -> list[Context]:
    """All GPUs, or the processor where there is none."""
    return [gpu(number) for number in range(num_gpus())] or [cpu()]


def sgd(params: Sequence[NDArray], lr: float, batch_size: float) -> None:
    """Go down the gradients of a batch."""
    for parameter in params:
        parameter[:] = parameter - lr * parameter.grad / batch_size


class Minibatches:
    """Images with their labels, a batch after the other."""

    def __init__(self, images: Any, labels: Any, batch_size: int, shuffle: bool) -> None:
        self._images, self._labels = images, labels
        self._batch_size, self._shuffle = batch_size, shuffle

    def __len__(self) -> int:
        return math.ceil(len(self._labels) / self._batch_size)

    def __iter__(self) -> Iterator[tuple[NDArray, NDArray]]:
        count = len(self._labels)
        order = np.random.default_rng().permutation(count) if self._shuffle else np.arange(count)
        for start in range(0, count, self._batch_size):
            chosen = order[start : start + self._batch_size]
            images = self._images[chosen].astype(np.float32)[:, None] / 255
            yield array(images), array(self._labels[chosen], dtype="int32")


def load_data_fashion_mnist(
    batch_size: int, resize: int | None = None, root: str | Path = FASHION
) -> tuple[Minibatches, Minibatches]:
    """Training and test batches of Fashion-MNIST, from its files."""
    folder = Path(root).expanduser()
    if resize is not None:
        raise UsageError("load_data_fashion_mnist(resize=...) is not in weft.mx.d2l")
    parts = [
        Minibatches(read_idx(folder, FILES[train][0], 3), read_idx(folder, FILES[train][1], 1), batch_size, train)
        for train in (True, False)
    ]
    return parts[0], parts[1]


def _get_batch(batch: Any, ctx: Sequence[Context]) -> tuple[list[NDArray], list[NDArray], int]:
    features, labels = batch
    labels = labels if labels.dtype == features.dtype else labels.astype(features.dtype)
    loaded = [splitting.split_and_load(part, ctx, even_split=False) for part in (features, labels)]
    return loaded[0], loaded[1], features.shape[0]


def evaluate_accuracy(data_iter: Any, net: Callable[[NDArray], Any], ctx: Any = None) -> float:
    """The share of examples whose class is found, on one device or several."""
    contexts = [cpu()] if ctx is None else [ctx] if isinstance(ctx, Context) else list(ctx)
    total, count = array([0]), 0
    for batch in data_iter:
        features, labels, _ = _get_batch(batch, contexts)
        for X, y in zip(features, labels, strict=True):
            total += (net(X).argmax(axis=1) == y.astype("float32")).sum().copyto(cpu())
            count += y.size
        total.wait_to_read()
    return float(total.asscalar()) / count


class Residual(nn.HybridBlock):
    """Two convolutions whose result is added to what went in."""

    def __init__(self, num_channels: int, use_1x1conv: bool = False, strides: int = 1, **given: Any) -> None:
        super().__init__(**given)
        self.conv1 = nn.Conv2D(num_channels, kernel_size=3, padding=1, strides=strides)
        self.conv2 = nn.Conv2D(num_channels, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2D(num_channels, kernel_size=1, strides=strides) if use_1x1conv else None
        self.bn1, self.bn2 = nn.BatchNorm(), nn.BatchNorm()

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Compute it."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.conv3 is None else self.conv3(x)))


def resnet18(num_classes: int) -> nn.HybridSequential:
    """The residual network of the chapter, for small images."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(64, kernel_size=3, strides=1, padding=1), nn.BatchNorm(), nn.Activation("relu"))
    for place, channels in enumerate((64, 128, 256, 512)):
        stage = nn.HybridSequential()
        stage.add(Residual(channels, use_1x1conv=place > 0, strides=2 if place else 1), Residual(channels))
        net.add(stage)
    net.add(nn.GlobalAvgPool2D(), nn.Dense(num_classes))
    return net


def train(train_iter: Any, test_iter: Any, net: Any, loss: Any, trainer: Any, ctx: Any, num_epochs: int) -> None:
    """Train, and print how it goes, epoch by epoch."""
    contexts = [ctx] if isinstance(ctx, Context) else list(ctx)
    print("training on", contexts)  # noqa: T201  # as the chapter's does
    for epoch in range(num_epochs):
        lost, right, count, start = 0.0, 0.0, 0, time.time()
        for batch in train_iter:
            features, labels, size = _get_batch(batch, contexts)
            with autograd.record():
                found = [net(X) for X in features]
                losses = [loss(y_hat, y) for y_hat, y in zip(found, labels, strict=True)]
            for each in losses:
                each.backward()
            trainer.step(size)
            lost += sum(float(each.sum().asscalar()) for each in losses)
            right += sum(
                float((y_hat.argmax(axis=1) == y).sum().asscalar()) for y_hat, y in zip(found, labels, strict=True)
            )
            count += size
        accuracy = evaluate_accuracy(test_iter, net, contexts)
        print(  # noqa: T201  # as the chapter's does
            f"epoch {epoch + 1}, loss {lost / count:.4f}, train acc {right / count:.3f}, test acc {accuracy:.3f}, "
            f"time {time.time() - start:.1f} sec"
        )
