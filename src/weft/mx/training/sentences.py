"""Give batches of sentences of about the same length: `mx.rnn.BucketSentenceIter`."""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.mx.arrays.ndarray import NDArray, array
from weft.mx.training.data_iter import DataBatch, DataDesc, DataIter


def encode_sentences(
    sentences: Sequence[Sequence[str]],
    vocab: dict[str, int] | None = None,
    invalid_label: int = -1,
    invalid_key: str = "\n",
    start_label: int = 0,
    unknown_token: str | None = None,
) -> tuple[list[list[int]], dict[str, int]]:
    """Words as numbers, and which is which: new words get new ones, or that of what is unknown."""
    number, grows = start_label, vocab is None
    vocab = {invalid_key: invalid_label} if vocab is None else vocab
    found = []
    for sentence in sentences:
        coded = []
        for word in sentence:
            known = word
            if known not in vocab:
                if not (grows or unknown_token):
                    raise AssertionError(f"Unknown token {word}")
                number += number == invalid_label
                known = unknown_token or word
                vocab[known] = number
                number += 1
            coded.append(vocab[known])
        found.append(coded)
    return found, vocab


class BucketSentenceIter(DataIter):
    """Batches of sentences that are filled up to a few lengths; labels are the words that come next."""

    def __init__(
        self,
        sentences: Sequence[Sequence[int]],
        batch_size: int,
        buckets: list[int] | None = None,
        invalid_label: int = -1,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: str = "float32",
        layout: str = "NT",
    ) -> None:
        super().__init__(batch_size)
        self.major_axis = layout.find("N")
        if self.major_axis not in (0, 1):
            raise ValueError(f"Invalid layout {layout}: Must by NT (batch major) or TN (time major)")
        lengths = [len(sentence) for sentence in sentences]
        counts = np.bincount(lengths) if not buckets else ()
        buckets = sorted(buckets or [length for length, count in enumerate(counts) if count >= batch_size])
        lines: list[list[Any]] = [[] for _ in buckets]
        for sentence in sentences:
            place = bisect.bisect_left(buckets, len(sentence))
            if place < len(buckets):
                line = np.full((buckets[place],), invalid_label, dtype=dtype)
                line[: len(sentence)] = sentence
                lines[place].append(line)
        longer = sum(length > max(buckets, default=0) for length in lengths)
        print(f"WARNING: discarded {longer} sentences longer than the largest bucket.")  # noqa: T201  # as MXNet does
        self.buckets = [length for length, each in zip(buckets, lines, strict=True) if each]
        self.data = [np.asarray(each, dtype=dtype) for each in lines if each]
        self.data_name, self.label_name, self.dtype, self.layout = data_name, label_name, dtype, layout
        self.invalid_label, self.default_bucket_key = invalid_label, max(self.buckets)
        self.provide_data, self.provide_label = (
            [self._described(name, self._turned((batch_size, self.default_bucket_key)))]
            for name in (data_name, label_name)
        )
        self.idx = [
            (bucket, place)
            for bucket, each in enumerate(self.data)
            for place in range(0, len(each) - batch_size + 1, batch_size)
        ]
        self.reset()

    def _turned(self, shape: tuple[int, int]) -> tuple[int, int]:
        return shape if self.major_axis == 0 else (shape[1], shape[0])

    def _described(self, name: str, shape: tuple[int, ...]) -> DataDesc:
        return DataDesc(name, shape, layout=self.layout)

    def reset(self) -> None:
        """Begin a new round, in another order."""
        self.curr_idx = 0
        random.shuffle(self.idx)
        for each in self.data:
            np.random.shuffle(each)

    def next(self) -> DataBatch:
        """The next batch."""
        if self.curr_idx == len(self.idx):
            raise StopIteration
        bucket, place = self.idx[self.curr_idx]
        self.curr_idx += 1
        rows = self.data[bucket][place : place + self.batch_size]
        after = np.concatenate([rows[:, 1:], np.full((len(rows), 1), self.invalid_label, rows.dtype)], 1)
        data, label = (self._array(each) for each in (rows, after))
        return DataBatch(
            [data],
            [label],
            pad=0,
            bucket_key=self.buckets[bucket],
            provide_data=[self._described(self.data_name, data.shape)],
            provide_label=[self._described(self.label_name, label.shape)],
        )

    def _array(self, rows: Any) -> NDArray:
        return array(rows if self.major_axis == 0 else rows.T, dtype=self.dtype)
