"""Make minibatches of images in an order that a seed decides: of files that are downloaded, or made up in their shape.

The order is a pure function of seed, epoch and position. A position is enciphered by a small Feistel network over the
next power of four, again and again until it is below the number of samples: that is one-to-one for any keys, so each
sample comes once an epoch; no state is kept, so training goes on at any position.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import math
import struct
import sys
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from weft.config import config
from weft.errors import ExecutionError, UsageError
from weft.files import open_regular, write_atomically

# The third byte of a file -> the type of its elements, big-endian.
ELEMENTS = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
LARGEST_ARRAY = 2**33  # bytes: a packed file may promise any size
TIMEOUT = 30  # seconds without a byte
DOWNLOAD_PIECE = 2**18
LARGEST_FILE = 2**30


def read_idx(path: Path) -> torch.Tensor:
    """Read a file; its sizes must be those of the bytes that are there."""
    try:
        with open_regular(path) as plain, gzip.open(plain) if path.suffix == ".gz" else plain as file:
            start = file.read(4)
            if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in ELEMENTS:
                raise ExecutionError(f"{path} is not an IDX file", why=f"it begins with {start!r}")
            elements = np.dtype(ELEMENTS[start[2]])
            sizes = struct.unpack(f">{start[3]}I", file.read(4 * start[3]))
            length = math.prod(sizes) * elements.itemsize
            content = file.read(min(length, LARGEST_ARRAY) + 1)
    except (OSError, EOFError, struct.error, zlib.error) as error:
        raise ExecutionError(f"{path} could not be read", why=str(error) or type(error).__name__) from error
    if len(content) != length:
        raise ExecutionError(f"{path} says that it has {length} bytes of elements, and has {len(content)} or more")
    array = np.frombuffer(content, dtype=elements).reshape(sizes)
    return torch.from_numpy(array.astype(elements.newbyteorder("=")))


def download(address: str, path: Path, md5: str) -> Path:
    """Give the file, fetched unless it is there; a file with another checksum is an error and is not kept."""
    with contextlib.suppress(FileNotFoundError), open_regular(path) as file:
        if checksum(file.read()) == md5:
            return path
    try:
        content = b"".join(_pieces(address, path.name))
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ExecutionError(
            f"{path.name} could not be downloaded",
            why=f"{address}: {reason}",
            fix=f"where there is no network, put the file at {path}, or train on made-up data:"
            " --synthetic (synthetic=True)",
        ) from error
    if checksum(content) != md5:
        raise ExecutionError(
            f"{path.name} came with another checksum than it must have",
            why=f"{address} gave {len(content):,} bytes with the MD5 {checksum(content)}; expected {md5}",
            fix="try again; if it stays so, somebody between you and the server answers in its place",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, [content])
    return path


def checksum(content: bytes) -> str:
    """Give the MD5 by which the data set's own page names its files: against damage, not against malice."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _pieces(address: str, name: str) -> Iterator[bytes]:
    with urllib.request.urlopen(address, timeout=TIMEOUT) as response:
        expected = int(response.headers.get("Content-Length") or 0)
        come = 0
        while piece := response.read(DOWNLOAD_PIECE):
            come += len(piece)
            if come > LARGEST_FILE:
                raise OSError(f"more than {LARGEST_FILE:,} bytes came")
            if sys.stderr.isatty():
                share = f"{100 * come / expected:3.0f} % of " if expected else ""
                sys.stderr.write(f"\r{name}: {share}{max(come, expected):,} bytes")
            yield piece
    if sys.stderr.isatty():
        sys.stderr.write("\n")


__all__ = ["Batches", "ImageData", "fashion_mnist", "load_fashion_mnist", "sample_order", "synthetic_fashion_mnist"]

ROUNDS = 6
# The constants of SplitMix64, a published mixer of 64 bits.
STEP, FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
S27, S30, S31 = np.uint64(27), np.uint64(30), np.uint64(31)
WORD = 2**64
CLASSES = 10
SIDE = 28
LARGEST_SHIFT = 4
LARGEST_SHARE = 0.62  # of another class: above a half it is the pattern that is seen more
NOISE = 0.35
PIECE = 4096
SOURCE = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
FILES = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
TRAIN, TEST = 60_000, 10_000


def sample_order(length: int, seed: int, epoch: int, start: int = 0, stop: int | None = None) -> torch.Tensor:
    """Give the samples at the positions from `start` to `stop` of an epoch: a part of a permutation of all."""
    stop = length if stop is None else stop
    if not 0 <= start <= stop <= length:
        raise UsageError(f"the positions {start} to {stop} are not among {length}")
    half = np.uint64(max(1, ((length - 1).bit_length() + 1) // 2))
    keys = _mix(np.array([seed % WORD], dtype=np.uint64))
    for number in (epoch % WORD, np.arange(ROUNDS, dtype=np.uint64)):
        keys = _mix(keys + np.asarray(number, dtype=np.uint64))
    samples = np.arange(start, stop, dtype=np.uint64)
    walking = np.ones(len(samples), dtype=bool)
    while walking.any():
        samples[walking] = _encipher(samples[walking], half, keys)
        walking = samples >= np.uint64(length)
    return torch.from_numpy(samples.astype(np.int64))


def _encipher(numbers: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    """Permute the numbers below four to the power of `half`."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half) | right


def _mix(numbers: np.ndarray) -> np.ndarray:
    numbers = numbers + STEP
    numbers = (numbers ^ (numbers >> S30)) * FIRST
    numbers = (numbers ^ (numbers >> S27)) * SECOND
    mixed: np.ndarray = numbers ^ (numbers >> S31)
    return mixed


def synthetic_images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Give images as bytes (count, 28, 28) and labels; the patterns are the same for every seed."""
    patterns = _patterns()
    generator = torch.Generator().manual_seed(seed)
    pieces = [_samples(patterns, min(PIECE, count - start), generator) for start in range(0, count, PIECE)]
    empty = (torch.empty(0, SIDE, SIDE, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8))
    images, labels = zip(*pieces, strict=True) if pieces else ((empty[0],), (empty[1],))
    return torch.cat(images), torch.cat(labels)


def _patterns() -> torch.Tensor:
    """Ten smooth random pictures, with a margin to be shifted in."""
    coarse = torch.randn(CLASSES, 1, 7, 7, generator=torch.Generator().manual_seed(20))
    side = SIDE + 2 * LARGEST_SHIFT
    return functional.interpolate(coarse, size=(side, side), mode="bicubic", align_corners=True)[:, 0]


def _samples(patterns: torch.Tensor, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(CLASSES, (count,), generator=generator)
    others = (labels + torch.randint(1, CLASSES, (count,), generator=generator)) % CLASSES
    share = torch.rand(count, 1, 1, generator=generator) * LARGEST_SHARE
    contrast = 0.6 + 0.8 * torch.rand(count, 1, 1, generator=generator)
    mixed = (1 - share) * _shifted(patterns, labels, generator) + share * _shifted(patterns, others, generator)
    noisy = contrast * mixed + NOISE * torch.randn(count, SIDE, SIDE, generator=generator)
    return ((noisy * 50 + 100).clamp(0, 255)).to(torch.uint8), labels.to(torch.uint8)


def _shifted(patterns: torch.Tensor, labels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    rows, columns = torch.randint(2 * LARGEST_SHIFT + 1, (2, len(labels), 1), generator=generator)
    steps = torch.arange(SIDE)
    return patterns[labels[:, None, None], (rows + steps)[:, :, None], (columns + steps)[:, None, :]]


@dataclass(frozen=True)
class ImageData:
    """A data set: images as bytes (count, 28, 28), their labels, and what it is called wherever it is shown."""

    images: torch.Tensor
    labels: torch.Tensor
    name: str

    def __len__(self) -> int:
        return len(self.labels)


def fashion_mnist(folder: str | Path | None = None) -> tuple[ImageData, ImageData]:
    """Give the training and the test set of Fashion-MNIST, downloaded at the first use."""
    root = Path(folder) if folder else (config().cache_dir or Path.cwd()) / "fashion-mnist"
    arrays = [read_idx(download(SOURCE + name, root / name, md5)) for name, md5 in FILES.items()]
    return ImageData(arrays[0], arrays[1], "Fashion-MNIST"), ImageData(arrays[2], arrays[3], "Fashion-MNIST")


def synthetic_fashion_mnist(train: int = TRAIN, test: int = TEST) -> tuple[ImageData, ImageData]:
    """Give a made-up training and test set in the shape of Fashion-MNIST."""
    return (
        ImageData(*synthetic_images(train, seed=1), "SYNTHETIC data (not Fashion-MNIST)"),
        ImageData(*synthetic_images(test, seed=2), "SYNTHETIC data (not Fashion-MNIST)"),
    )


class Batches:
    """Minibatches of a data set: each loop over it is an epoch, in another order.

    The order is a pure function of seed, epoch and position. `state_dict()` says where it stands, so that what is
    saved in the middle of an epoch goes on there.
    """

    def __init__(
        self, data: ImageData, batch_size: int, *, seed: int = 0, shuffle: bool = True, resize: int | None = None
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size is {batch_size}")
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.resize = resize  # pixels a side
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
        scaled = images.unsqueeze(1).float() / 255
        if self.resize is not None:
            scaled = functional.interpolate(scaled, size=(self.resize, self.resize), mode="bilinear", antialias=True)
        return scaled, labels.long()

    def state_dict(self) -> dict[str, Any]:
        """Say where the iteration stands."""
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position, "samples": len(self.data)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another iteration over the same data stood."""
        if state["samples"] != len(self.data):
            raise UsageError(f"the position is one in {state['samples']} samples, and there are {len(self.data)}")
        self.seed, self.epoch, self.position = state["seed"], state["epoch"], state["position"]


def load_fashion_mnist(
    batch_size: int,
    *,
    synthetic: bool = False,
    folder: str | Path | None = None,
    seed: int = 0,
    resize: int | None = None,
) -> tuple[Batches, Batches]:
    """Give the minibatches for training, shuffled, and those for testing; a line says if the data is synthetic."""
    train, test = synthetic_fashion_mnist() if synthetic else fashion_mnist(folder)
    if synthetic:
        print(f"weft: {train.name}", file=sys.stderr)  # noqa: T201 - must be seen wherever figures are
    return (
        Batches(train, batch_size, seed=seed, resize=resize),
        Batches(test, batch_size, shuffle=False, resize=resize),
    )
