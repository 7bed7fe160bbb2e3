"""Give batches of what lies in files, and batches of other iterators ahead of time."""

from __future__ import annotations

import gzip
import queue
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.mx.arrays.ndarray import array, as_stored
from weft.mx.base.errors import MXNetError
from weft.mx.training.data_iter import DataBatch, DataDesc, DataIter, NDArrayIter
from weft.mx.training.image_augmenters import CastAug, CenterCropAug, HorizontalFlipAug, RandomCropAug, ResizeAug
from weft.mx.training.image_iter import ImageIter

AHEAD = 2  # batches that are made before they are asked for
Renamed = Sequence[dict[str, str]] | None


def _table(path: str, shape: Sequence[int]) -> Any:
    """The numbers of a file, a line for each example."""
    try:
        lines = np.loadtxt(path, delimiter=",", dtype=np.float32, ndmin=2)
    except (OSError, ValueError) as error:
        raise MXNetError(f"{path} cannot be read: {error}") from error
    if lines.shape[1] != int(np.prod(shape)):
        raise MXNetError(f"{path} has {lines.shape[1]} numbers a line, and {tuple(shape)} were asked for")
    return lines.reshape(-1, *shape)


def CSVIter(
    data_csv: str,
    data_shape: Sequence[int],
    batch_size: int,
    label_csv: str | None = None,
    label_shape: Sequence[int] = (1,),
    round_batch: bool = True,
    **_given: Any,
) -> NDArrayIter:
    """Batches of the lines of files of numbers."""
    data = _table(data_csv, data_shape)
    label = np.zeros((len(data), *label_shape), np.float32) if label_csv is None else _table(label_csv, label_shape)
    _ = round_batch  # the last batch is filled in any case, and tells so
    return NDArrayIter(data, label.reshape(-1) if tuple(label_shape) == (1,) else label, batch_size)


def LibSVMIter(
    data_libsvm: str,
    data_shape: Sequence[int],
    batch_size: int,
    label_libsvm: str | None = None,
    label_shape: Sequence[int] = (1,),
    round_batch: bool = True,
    **_given: Any,
) -> NDArrayIter:
    """Batches of the lines of a file of LibSVM: a label, then `column:number` for each number that is not 0."""
    _ = round_batch  # as in CSVIter
    label, data = _sparse_table(data_libsvm, int(np.prod(data_shape)))
    if label_libsvm is not None:
        label = _sparse_table(label_libsvm, int(np.prod(label_shape)))[1]
    return NDArrayIter(as_stored(array(data), "csr"), label, batch_size)


def _sparse_table(path: str, width: int) -> tuple[Any, Any]:
    """The labels and the rows of a file of LibSVM."""
    labels, rows = [], []
    try:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            parts = line.partition("#")[0].split()
            if not parts:
                continue
            row = np.zeros(width, np.float32)
            first = 0 if ":" in parts[0] else 1  # files of labels have none before the numbers
            labels.append(float(parts[0]) if first else 0.0)
            for part in parts[first:]:
                place, _, number = part.partition(":")
                row[_column(int(place), width)] = float(number)
            rows.append(row)
    except (OSError, ValueError) as error:
        raise MXNetError(f"{path} cannot be read: {error}") from error
    return np.array(labels, np.float32), np.stack(rows) if rows else np.zeros((0, width), np.float32)


def _column(place: int, width: int) -> int:
    if not 0 <= place < width:
        raise ValueError(f"column {place} is not one of {width}")
    return place


def _idx(path: str) -> Any:
    """The array of a file of MNIST: its sizes are checked before memory is asked for."""
    name = path if Path(path).exists() else f"{path}.gz"
    try:
        content = Path(name).read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except OSError as error:
        raise MXNetError(f"Open {path}: {error}") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise MXNetError(f"{path} is no file of MNIST")
    begin = 4 + 4 * content[3]
    if len(content) < begin:
        raise MXNetError(f"{path} is damaged: it has no sizes")
    sizes = struct.unpack(f">{content[3]}I", content[4:begin])
    if len(content) - begin != int(np.prod(sizes, dtype=object)):
        raise MXNetError(f"{path} is damaged: it has {len(content) - begin} bytes for {sizes}")
    return np.frombuffer(content, np.uint8, offset=begin).reshape(sizes)


def MNISTIter(
    image: str,
    label: str,
    batch_size: int = 128,
    shuffle: bool = True,
    flat: bool = False,
    seed: int = 0,
    num_parts: int = 1,
    part_index: int = 0,
    **_given: Any,
) -> NDArrayIter:
    """Batches of MNIST's files: numbers between 0 and 1."""
    images, labels = _idx(image).astype(np.float32) / 256, _idx(label).astype(np.float32)
    order = np.random.RandomState(seed).permutation(len(images)) if shuffle else np.arange(len(images))
    order = order[part_index * len(order) // num_parts : (part_index + 1) * len(order) // num_parts]
    images = images.reshape(len(images), -1) if flat else images[:, None]
    return NDArrayIter(images[order], labels[order], batch_size, last_batch_handle="discard", label_name="label")


class _ScaledImages(ImageIter):
    """Images whose channels lose a mean, and are scaled."""

    means: Any = 0.0
    scales: Any = 1.0

    def postprocess_data(self, datum: Any) -> Any:
        """Channels first, scaled."""
        return (super().postprocess_data(datum) - self.means) * self.scales


def ImageRecordIter(
    path_imgrec: str,
    data_shape: Sequence[int],
    batch_size: int,
    resize: int = -1,
    rand_crop: bool = False,
    rand_mirror: bool = False,
    shuffle: bool = False,
    path_imgidx: str | None = None,
    path_imglist: str | None = None,
    label_width: int = 1,
    mean_r: float = 0.0,
    mean_g: float = 0.0,
    mean_b: float = 0.0,
    std_r: float = 1.0,
    std_g: float = 1.0,
    std_b: float = 1.0,
    scale: float = 1.0,
    num_parts: int = 1,
    part_index: int = 0,
    round_batch: bool = True,
    data_name: str = "data",
    label_name: str = "softmax_label",
    **given: Any,
) -> DataIter:
    """Batches of the images of a file of records; what else MXNet can change by chance is refused by name."""
    ignored = {"preprocess_threads", "prefetch_buffer", "verbose", "device_id", "ctx", "seed", "seed_aug", "aug_seq"}
    for name in given:
        if name not in ignored:
            raise NotImplementedError(f"ImageRecordIter({name}=...) is not in weft.mx: give augmenters to ImageIter")
    size = data_shape[2], data_shape[1]
    changes: list[Any] = [ResizeAug(resize, 1)] if resize > 0 else []
    changes.append((RandomCropAug if rand_crop else CenterCropAug)(size, 1))
    changes += [HorizontalFlipAug(0.5)] if rand_mirror else []
    made = _ScaledImages(
        batch_size,
        (int(data_shape[0]), int(data_shape[1]), int(data_shape[2])),
        label_width,
        path_imgrec,
        path_imglist or None,
        None,
        path_imgidx or None,
        shuffle,
        part_index,
        num_parts,
        [*changes, CastAug()],
        data_name=data_name,
        label_name=label_name,
        last_batch_handle="pad" if round_batch else "discard",
    )
    channel = (-1, 1, 1)
    made.means = array(np.array([mean_r, mean_g, mean_b]).reshape(channel))
    made.scales = array(scale / np.array([std_r, std_g, std_b]).reshape(channel))
    return made


class PrefetchingIter(DataIter):
    """The batches of iterators, side by side, made by a thread before they are asked for."""

    def __init__(self, iters: Any, rename_data: Renamed = None, rename_label: Renamed = None) -> None:
        self.iters = list(iters) if isinstance(iters, (list, tuple)) else [iters]
        if not self.iters:
            raise AssertionError("PrefetchingIter needs an iterator")
        self._names = rename_data, rename_label
        super().__init__(self.provide_data[0].shape[0])
        self.current_batch: Any = None
        self._begin()

    def _described(self, which: int, attribute: str) -> list[DataDesc]:
        names, found = self._names[which], []
        for place, each in enumerate(self.iters):
            for given in getattr(each, attribute):
                desc = given if isinstance(given, DataDesc) else DataDesc(*given)
                name = desc.name if names is None else names[place][desc.name]
                found.append(DataDesc(name, desc.shape, desc.dtype))
        return found

    @property
    def provide_data(self) -> list[DataDesc]:
        """What data of a batch is."""
        return self._described(0, "provide_data")

    @property
    def provide_label(self) -> list[DataDesc]:
        """What labels of a batch are."""
        return self._described(1, "provide_label")

    def _begin(self) -> None:
        self._made: queue.Queue[Any] = queue.Queue(AHEAD)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._make, args=(self._made, self._stop), daemon=True)
        self._thread.start()

    def _make(self, made: queue.Queue[Any], stop: threading.Event) -> None:
        """Make batches until there are no more; an error is a batch that is raised."""
        found: Any = None
        while not stop.is_set() and not isinstance(found, BaseException):
            try:
                found = [each.next() for each in self.iters]
            except Exception as error:  # noqa: BLE001  # whoever asks for the batch is told
                found = error
            while not stop.is_set():  # whoever takes them may have gone: `reset` tells
                try:
                    made.put(found, timeout=0.05)
                    break
                except queue.Full:
                    continue

    def reset(self) -> None:
        """Begin a new round."""
        self._stop.set()
        self._thread.join()
        for each in self.iters:
            each.reset()
        self._begin()

    def iter_next(self) -> bool:
        """Go on to the next batch, if there is one."""
        found = self._made.get()
        if isinstance(found, BaseException):
            self._made.put(found)  # for whoever asks again
            if isinstance(found, StopIteration):
                return False
            raise found
        if any(batch.pad != found[0].pad for batch in found):
            raise AssertionError("Number of entry mismatches between iterators")
        data = [x for batch in found for x in batch.data]
        label = [x for batch in found for x in batch.label or ()]
        self.current_batch = DataBatch(
            data, label, found[0].pad, found[0].index, provide_data=self.provide_data, provide_label=self.provide_label
        )
        return True

    def next(self) -> DataBatch:
        """The next batch."""
        if not self.iter_next():
            raise StopIteration
        found: DataBatch = self.current_batch
        return found

    def getdata(self) -> Any:
        """The arrays of this batch."""
        return self.current_batch.data

    def getlabel(self) -> Any:
        """The labels of this batch."""
        return self.current_batch.label

    def getindex(self) -> Any:
        """The numbers of the examples."""
        return self.current_batch.index

    def getpad(self) -> int:
        """How many examples at the end fill the batch."""
        pad: int = self.current_batch.pad
        return pad
