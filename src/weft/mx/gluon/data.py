"""Load batches of a dataset, ahead of their use by threads if there are workers: `gluon.data`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray, array
from weft.mx.base.numpy_mode import is_np_array
from weft.mx.gluon import vision_data as vision
from weft.mx.gluon.datasets import (
    ArrayDataset,
    BatchSampler,
    Dataset,
    FilterSampler,
    IntervalSampler,
    RandomSampler,
    RecordFileDataset,
    Sampler,
    SequentialSampler,
    SimpleDataset,
)

__all__ = [
    "ArrayDataset",
    "BatchSampler",
    "DataLoader",
    "Dataset",
    "FilterSampler",
    "IntervalSampler",
    "RandomSampler",
    "RecordFileDataset",
    "Sampler",
    "SequentialSampler",
    "SimpleDataset",
    "default_batchify_fn",
    "vision",
]


def default_batchify_fn(data: Any) -> Any:
    """Examples as one batch: arrays are stacked, tuples give a batch of each of their parts."""
    if isinstance(data[0], NDArray):
        return nd.stack(*data, axis=0)
    if isinstance(data[0], tuple):
        return [default_batchify_fn(list(part)) for part in zip(*data, strict=True)]
    rows = np.asarray(data)
    made = array(rows, dtype=rows.dtype)
    return made.as_np_ndarray() if is_np_array() else made


class DataLoader:
    """Batches of a dataset. An exception of a worker is raised when its batch is asked for."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Any = None,
        last_batch: str | None = None,
        batch_sampler: Any = None,
        batchify_fn: Callable[[Any], Any] | None = None,
        num_workers: int = 0,
        **given: Any,
    ) -> None:
        for name in given:
            if name not in ("pin_memory", "pin_device_id", "prefetch", "thread_pool", "timeout", "auto_reload"):
                raise TypeError(f"DataLoader() got an unexpected keyword argument {name!r}")
        self._dataset = dataset
        if batch_sampler is None:
            if batch_size is None:
                raise ValueError("batch_size must be specified unless batch_sampler is specified")
            if sampler is None:
                sampler = RandomSampler(len(dataset)) if shuffle else SequentialSampler(len(dataset))
            elif shuffle:
                raise ValueError("shuffle must not be specified if sampler is specified")
            batch_sampler = BatchSampler(sampler, batch_size, last_batch or "keep")
        elif batch_size is not None or shuffle or sampler is not None or last_batch is not None:
            raise ValueError(
                "batch_size, shuffle, sampler and last_batch must not be specified if batch_sampler is specified."
            )
        self._batch_sampler = batch_sampler
        self._batchify = batchify_fn or default_batchify_fn
        self._workers = max(num_workers, 0)
        prefetch = given.get("prefetch")
        self._ahead = max(prefetch if prefetch is not None else 2 * self._workers, self._workers)

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def _batch(self, numbers: Any) -> Any:
        return self._batchify([self._dataset[number] for number in numbers])

    def __iter__(self) -> Iterator[Any]:
        if not self._workers:
            for numbers in self._batch_sampler:
                yield self._batch(numbers)
            return
        # On the other side of each wait is a worker that makes a batch; it waits for tasks of the engine alone.
        with ThreadPoolExecutor(self._workers, "weft.mx data") as pool:
            begun: deque[Future[Any]] = deque()
            try:
                for numbers in self._batch_sampler:
                    begun.append(pool.submit(self._batch, list(numbers)))
                    if len(begun) > self._ahead:
                        yield begun.popleft().result()
                while begun:
                    yield begun.popleft().result()
            finally:
                for future in begun:
                    future.cancel()
