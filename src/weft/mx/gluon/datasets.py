"""Take examples one by one: `gluon.data`'s datasets and samplers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.mx.arrays.ndarray import NDArray
from weft.mx.training.recordio import MXIndexedRecordIO


class Dataset:
    """Examples by their numbers."""

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def filter(self, fn: Callable[[Any], Any]) -> SimpleDataset:
        """Those examples for which a function gives something true."""
        return SimpleDataset([self[place] for place in range(len(self)) if fn(self[place])])

    def shard(self, num_shards: int, index: int) -> SimpleDataset:
        """One of several parts of about the same length."""
        if not 0 <= index < num_shards:
            raise AssertionError(f"Shard index of out bound: {index} out of {num_shards}")
        short, longer = divmod(len(self), num_shards)
        start = short * index + min(index, longer)
        return SimpleDataset([self[place] for place in range(start, start + short + (index < longer))])

    def take(self, count: int | None) -> SimpleDataset:
        """The first examples."""
        last = len(self) if count is None else min(count, len(self))
        return SimpleDataset([self[place] for place in range(last)])

    def sample(self, sampler: Any) -> SimpleDataset:
        """The examples whose numbers a sampler gives."""
        if not isinstance(sampler, Sampler):
            raise TypeError(f"Invalid sampler type: {type(sampler)}")
        return SimpleDataset([self[place] for place in sampler])

    def transform(self, fn: Callable[..., Any], lazy: bool = True) -> Any:
        """Examples as a function gives them: when they are taken, or all at once."""
        found = _Transformed(self, fn)
        return found if lazy else SimpleDataset([found[place] for place in range(len(found))])

    def transform_first(self, fn: Callable[..., Any], lazy: bool = True) -> Any:
        """Examples whose first part is as a function gives it."""

        def first(example: Any, *rest: Any) -> Any:
            return (fn(example), *rest) if rest else fn(example)

        return self.transform(first, lazy)


class SimpleDataset(Dataset):
    """A list of examples."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        return self._data[index]


class _Transformed(Dataset):
    """Examples as a function gives them."""

    def __init__(self, data: Dataset, fn: Callable[..., Any]) -> None:
        self._data, self._fn = data, fn

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        example = self._data[index]
        return self._fn(*example) if isinstance(example, tuple) else self._fn(example)


class ArrayDataset(Dataset):
    """Arrays, or datasets, side by side: an example has one entry of each."""

    def __init__(self, *args: Any) -> None:
        if not args:
            raise AssertionError("Needs at least 1 arrays")
        for place, data in enumerate(args):
            if len(data) != len(args[0]):
                raise AssertionError(
                    f"All arrays must have the same length; array[0] has length {len(args[0])} "
                    f"while array[{place + 1}] has {len(data)}."
                )
        self._length = len(args[0])
        # One entry at a time would be a task each of a small array: NumPy's rows are at hand.
        self._data = [data.asnumpy() if isinstance(data, NDArray) and data.ndim == 1 else data for data in args]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if len(self._data) == 1:
            return self._data[0][index]
        return tuple(data[index] for data in self._data)


class RecordFileDataset(Dataset):
    """The records of a file that has an index beside it."""

    def __init__(self, filename: str) -> None:
        self.filename, self.idx_file = filename, str(Path(filename).with_suffix(".idx"))
        self._record = MXIndexedRecordIO(self.idx_file, filename, "r")

    def __getitem__(self, index: Any) -> Any:
        return self._record.read_idx(self._record.keys[index])

    def __len__(self) -> int:
        return len(self._record.keys)


class Sampler:
    """Numbers of examples, in an order."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError


class SequentialSampler(Sampler):
    """One after the other."""

    def __init__(self, length: int, start: int = 0) -> None:
        self._length, self._start = length, start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._start, self._start + self._length))

    def __len__(self) -> int:
        return self._length


class RandomSampler(Sampler):
    """In an order that NumPy's generator gives, as `np.random.seed` decides."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Iterator[int]:
        order = np.arange(self._length)
        np.random.shuffle(order)  # the generator that programs of MXNet seed
        return iter(order.tolist())

    def __len__(self) -> int:
        return self._length


class FilterSampler(Sampler):
    """Those for which a function gives something true."""

    def __init__(self, fn: Callable[[Any], Any], dataset: Dataset) -> None:
        self._places = [place for place in range(len(dataset)) if fn(dataset[place])]

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class IntervalSampler(Sampler):
    """Every n-th place, then perhaps those between, beginning one place later each time."""

    def __init__(self, length: int, interval: int, rollover: bool = True) -> None:
        if interval > length:
            raise AssertionError(f"Interval {interval} must be smaller than or equal to length {length}")
        self._length, self._interval, self._rollover = length, interval, rollover

    def __iter__(self) -> Iterator[int]:
        for begin in range(self._interval if self._rollover else 1):
            yield from range(begin, self._length, self._interval)

    def __len__(self) -> int:
        return self._length  # MXNet's, without rollover too


class BatchSampler(Sampler):
    """Numbers in batches; the last one, if it is short, is kept, dropped, or begins the next round."""

    def __init__(self, sampler: Any, batch_size: int, last_batch: str = "keep") -> None:
        if last_batch not in ("keep", "discard", "rollover"):
            raise ValueError(f"last_batch must be one of 'keep', 'discard', or 'rollover', but got {last_batch}")
        self._sampler, self._batch_size, self._last_batch = sampler, batch_size, last_batch
        self._left: list[int] = []

    def __iter__(self) -> Iterator[Sequence[int]]:
        batch, self._left = self._left, []
        for number in self._sampler:
            batch.append(number)
            if len(batch) == self._batch_size:
                yield batch
                batch = []
        if batch and self._last_batch == "keep":
            yield batch
        elif batch and self._last_batch == "rollover":
            self._left = batch

    def __len__(self) -> int:
        count = len(self._sampler)
        if self._last_batch == "keep":
            return math.ceil(count / self._batch_size)
        return (count + (len(self._left) if self._last_batch == "rollover" else 0)) // self._batch_size
