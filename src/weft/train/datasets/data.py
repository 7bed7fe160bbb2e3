"""Images and labels -> minibatches in an order that a seed decides; Fashion-MNIST, and a synthetic set in its shape."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft.config import config
from weft.errors import UsageError
from weft.train.datasets.download import download
from weft.train.datasets.idx_file import read_idx
from weft.train.datasets.sample_order import sample_order
from weft.train.datasets.synthetic_images import synthetic_images

__all__ = ["Batches", "Images", "fashion_mnist", "load_fashion_mnist", "sample_order", "synthetic_fashion_mnist"]

SOURCE = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
FILES = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
TEXT_LABELS = (
    "t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
TRAIN, TEST = 60_000, 10_000


@dataclass(frozen=True)
class Images:
    """A data set: images as bytes (count, 28, 28), their labels, and what it is called wherever it is shown."""

    images: torch.Tensor
    labels: torch.Tensor
    name: str

    def __len__(self) -> int:
        return len(self.labels)


def fashion_mnist(folder: str | Path | None = None) -> tuple[Images, Images]:
    """Give the training and the test set of Fashion-MNIST, downloaded at the first use."""
    root = Path(folder) if folder else (config().cache_dir or Path.cwd()) / "fashion-mnist"
    arrays = [read_idx(download(SOURCE + name, root / name, md5)) for name, md5 in FILES.items()]
    return Images(arrays[0], arrays[1], "Fashion-MNIST"), Images(arrays[2], arrays[3], "Fashion-MNIST")


def synthetic_fashion_mnist(train: int = TRAIN, test: int = TEST) -> tuple[Images, Images]:
    """Give a made-up training and test set in the shape of Fashion-MNIST."""
    return (
        Images(*synthetic_images(train, seed=1), "SYNTHETIC data (not Fashion-MNIST)"),
        Images(*synthetic_images(test, seed=2), "SYNTHETIC data (not Fashion-MNIST)"),
    )


class Batches:
    """Minibatches of a data set: each loop over it is an epoch, in another order.

    The order is a pure function of seed, epoch and position. `state_dict()` says where it stands, so that what is
    saved in the middle of an epoch goes on there.
    """

    def __init__(self, data: Images, batch_size: int, *, seed: int = 0, shuffle: bool = True) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size is {batch_size}")
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self.position = 0

    def __len__(self) -> int:
        return math.ceil(len(self.data) / self.batch_size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Give the rest of the epoch: images of (count, 1, 28, 28) between 0 and 1, and labels."""
        epoch = self.epoch
        while self.epoch == epoch and self.position < len(self.data):
            batch = self.batch(self.epoch, self.position)
            self.position += len(batch[1])
            if self.position >= len(self.data):  # said before the last batch is used: saved after it, a new epoch
                self.epoch, self.position = epoch + 1, 0
            yield batch

    def batch(self, epoch: int, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Give the minibatch that begins at a position of an epoch."""
        stop = min(position + self.batch_size, len(self.data))
        if self.shuffle:
            chosen = sample_order(len(self.data), self.seed, epoch, position, stop)
            images, labels = self.data.images[chosen], self.data.labels[chosen]
        else:
            images, labels = self.data.images[position:stop], self.data.labels[position:stop]
        return images.unsqueeze(1).float() / 255, labels.long()

    def state_dict(self) -> dict[str, Any]:
        """Say where the iteration stands."""
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position, "samples": len(self.data)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another iteration over the same data stood."""
        if state["samples"] != len(self.data):
            raise UsageError(f"the position is one in {state['samples']} samples, and there are {len(self.data)}")
        self.seed, self.epoch, self.position = state["seed"], state["epoch"], state["position"]


def load_fashion_mnist(
    batch_size: int, *, synthetic: bool = False, folder: str | Path | None = None, seed: int = 0
) -> tuple[Batches, Batches]:
    """Give the minibatches for training, shuffled, and those for testing; a line says if the data is synthetic."""
    train, test = synthetic_fashion_mnist() if synthetic else fashion_mnist(folder)
    if synthetic:
        print(f"weft: {train.name}", file=sys.stderr)  # noqa: T201 - must be seen wherever figures are
    return Batches(train, batch_size, seed=seed), Batches(test, batch_size, shuffle=False)
