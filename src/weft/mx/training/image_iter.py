"""Give batches of images that lie in files or records."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray, zeros
from weft.mx.base.errors import MXNetError
from weft.mx.training import recordio
from weft.mx.training.data_iter import DataBatch, DataIter
from weft.mx.training.image_augmenters import Augmenter, CreateAugmenter
from weft.mx.training.image_functions import imdecode

LABELS = ("int32", "float32", "int64", "float64")
Listed = dict[Any, tuple[NDArray, str]]


def _listed(path: str, dtype: str) -> Listed:
    """A list of `number<tab>labels<tab>file` lines."""
    found = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        key, *labels, name = line.strip().split("\t")
        found[int(key)] = (nd.array([float(label) for label in labels], dtype=dtype), name)
    return found


def _numbered(given: list[Any], dtype: str) -> Listed:
    """A list of labels, or lists of them, each with a file."""
    found = {}
    for place, (*labels, name) in enumerate(given):
        flat = labels if len(labels) > 1 or isinstance(labels[0], (int, float)) else labels[0]
        found[str(place + 1)] = (nd.array(flat, dtype=dtype), name)
    return found


class ImageIter(DataIter):
    """Batches of images of a file of records, or of a list of files."""

    def __init__(
        self,
        batch_size: int,
        data_shape: tuple[int, int, int],
        label_width: int = 1,
        path_imgrec: str | None = None,
        path_imglist: str | None = None,
        path_root: str | None = None,
        path_imgidx: str | None = None,
        shuffle: bool = False,
        part_index: int = 0,
        num_parts: int = 1,
        aug_list: list[Augmenter] | None = None,
        imglist: list[Any] | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: str = "float32",
        last_batch_handle: str = "pad",
        **given: Any,
    ) -> None:
        super().__init__(batch_size)
        if not (path_imgrec or path_imglist or isinstance(imglist, list)):
            raise AssertionError("images are given by path_imgrec, path_imglist or imglist")
        if dtype not in LABELS:
            raise AssertionError(f"{dtype} label not supported")
        self.check_data_shape(data_shape)
        self.imgrec: Any = None
        if path_imgrec and path_imgidx:
            self.imgrec = recordio.MXIndexedRecordIO(path_imgidx, path_imgrec, "r")
        elif path_imgrec:
            self.imgrec = recordio.MXRecordIO(path_imgrec, "r")
        self.imglist: Listed | None = None
        if path_imglist:
            self.imglist = _listed(path_imglist, dtype)
        elif isinstance(imglist, list):
            self.imglist = _numbered(imglist, dtype)
        self.path_root, self.data_shape, self.label_width = path_root, data_shape, label_width
        self.provide_data: list[Any] = [(data_name, (batch_size, *data_shape))]
        self.provide_label: list[Any] = [(label_name, (batch_size, label_width) if label_width > 1 else (batch_size,))]
        self.shuffle, self.last_batch_handle = shuffle, last_batch_handle
        self.seq = self._sequence(part_index, num_parts, indexed=bool(path_imgidx))
        self.num_image = None if self.seq is None else len(self.seq)
        self.auglist = CreateAugmenter(data_shape, **given) if aug_list is None else aug_list
        self.cur = 0
        self._is_at_end = False
        self._kept: tuple[NDArray, NDArray, int] | None = None  # of a round before: a batch that is not full
        self.reset()

    def _sequence(self, part: int, parts: int, *, indexed: bool) -> list[Any] | None:
        if self.imgrec is None:
            found = list(self.imglist or ())
        elif self.shuffle or parts > 1 or indexed:
            if not indexed:
                raise AssertionError("to shuffle or divide a file of records needs path_imgidx")
            found = list(self.imgrec.keys)
        else:
            return None
        if parts > 1:
            if part >= parts:
                raise AssertionError(f"there is no part {part} of {parts}")
            each = len(found) // parts
            found = found[part * each : (part + 1) * each]
        return found

    def reset(self) -> None:
        """Begin a new round."""
        if self.seq is not None and self.shuffle:
            random.shuffle(self.seq)
        if self.last_batch_handle != "roll_over" or self._kept is None:
            self._begin()

    def hard_reset(self) -> None:
        """Begin a new round, and forget what was left of the one before."""
        if self.seq is not None and self.shuffle:
            random.shuffle(self.seq)
        self._kept = None
        self._begin()

    def _begin(self) -> None:
        if self.imgrec is not None:
            self.imgrec.reset()
        self.cur, self._is_at_end = 0, False

    def next_sample(self) -> tuple[Any, bytes]:
        """The label and the file of the next image."""
        if self._is_at_end:
            raise StopIteration
        if self.seq is None:
            record = self.imgrec.read()
            if record is None:
                if self.last_batch_handle != "discard":
                    self.imgrec.reset()
                raise StopIteration
            header, data = recordio.unpack(record)
            return header.label, data
        if self.cur >= len(self.seq):
            if self.last_batch_handle != "discard":
                self.cur = 0
            raise StopIteration
        key = self.seq[self.cur]
        self.cur += 1
        if self.imgrec is not None:
            header, data = recordio.unpack(self.imgrec.read_idx(key))
            return (header.label if self.imglist is None else self.imglist[key][0]), data
        assert self.imglist is not None
        label, name = self.imglist[key]
        return label, self.read_image(name)

    def _fill(self, data: NDArray, labels: NDArray, place: int) -> int:
        """Put images into a batch from a place on; gives how many it has."""
        begin = place
        try:
            while place < self.batch_size:
                label, file = self.next_sample()
                image = self.imdecode(file)
                try:
                    self.check_valid_image(image)
                    image, label = self._changed(image, label)
                except RuntimeError as error:
                    if isinstance(error, MXNetError):
                        raise
                    logging.debug("Invalid image, skipping:  %s", error)  # noqa: LOG015  # where programs look for it
                    continue
                data[place] = self.postprocess_data(image)
                labels[place] = label
                place += 1
        except StopIteration:
            if place == begin == 0:
                raise
        return place

    def next(self) -> DataBatch:
        """The next batch."""
        if self._kept is not None:
            data, labels, count = self._kept
        else:
            data, labels = zeros(self.provide_data[0][1]), zeros(self.provide_label[0][1])
            count = self._fill(data, labels, 0)
        pad = self.batch_size - count
        if pad:
            if self.last_batch_handle == "discard":
                raise StopIteration
            if self.last_batch_handle == "roll_over" and self._kept is None:
                self._kept = data, labels, count
                raise StopIteration
            self._fill(data, labels, count)
            self._kept = None
            self._is_at_end = self.last_batch_handle == "pad"
        return DataBatch([data], [labels], pad=pad)

    def check_data_shape(self, data_shape: tuple[int, ...]) -> None:
        """Refuse what is no size of colour images."""
        if len(data_shape) != 3:
            raise ValueError("data_shape should have length 3, with dimensions CxHxW")
        if data_shape[0] != 3:
            raise ValueError("This iterator expects inputs to have 3 channels.")

    def check_valid_image(self, data: NDArray) -> None:
        """Refuse what is no image."""
        if data.ndim < 2:
            raise RuntimeError("Data shape is wrong")

    def imdecode(self, s: bytes) -> NDArray:
        """The image of a file; an error says which."""
        try:
            return imdecode(s)
        except MXNetError as error:
            key = self.seq[self.cur - 1] if self.seq is not None else self.cur - 1
            place = f"index: {key}" if self.imglist is None else f"filename: {self.imglist[key][1]}"
            raise RuntimeError(f"Broken image {place}, {error}") from error

    def read_image(self, fname: str) -> bytes:
        """The bytes of a file of the list."""
        return (Path(self.path_root or "") / fname).read_bytes()

    def _changed(self, image: NDArray, label: Any) -> tuple[NDArray, Any]:
        """An image, changed by chance, and its label."""
        return self.augmentation_transform(image), label

    def augmentation_transform(self, data: NDArray) -> NDArray:
        """Change an image."""
        for each in self.auglist:
            data = each(data)
        return data

    def postprocess_data(self, datum: NDArray) -> NDArray:
        """Channels first."""
        found: NDArray = datum.transpose((2, 0, 1))
        return found
