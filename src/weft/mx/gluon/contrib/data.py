"""Visit samples in strides: `gluon.contrib.data`."""

from __future__ import annotations

from collections.abc import Iterator

from weft.mx.gluon.data import Sampler

__all__ = ["IntervalSampler"]


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
