"""Give what a `DataLoader` gives as batches for modules: `mx.contrib.io`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray
from weft.mx.training.data_iter import DataDesc, DataIter

__all__ = ["DataLoaderIter"]


class DataLoaderIter(DataIter):
    """Batches of a loader of data with labels; the last one is filled up to the size of the first."""

    def __init__(
        self, loader: Any, data_name: str = "data", label_name: str = "softmax_label", dtype: Any = "float32"
    ) -> None:
        data, label = next(iter(loader))
        super().__init__(data.shape[0])
        self._loader, self.dtype = loader, dtype
        self.provide_data = [DataDesc(data_name, data.shape, dtype)]
        self.provide_label = [DataDesc(label_name, label.shape, dtype)]
        self._batch: Any = None
        self._rest: Iterator[Any] = iter(())
        self.reset()

    def reset(self) -> None:
        """Begin a new round."""
        self._rest = iter(self._loader)

    def iter_next(self) -> bool:
        """Go to the next batch, if there is one."""
        self._batch = next(self._rest, None)
        return self._batch is not None

    def _filled(self, array: NDArray) -> list[NDArray]:
        given, missing = array.astype(self.dtype), self.getpad()
        if missing:
            given = nd.concat(given, nd.zeros((missing, *given.shape[1:]), dtype=self.dtype), dim=0)
        return [given]

    def getdata(self) -> list[NDArray]:
        """The data of the batch."""
        return self._filled(self._batch[0])

    def getlabel(self) -> list[NDArray]:
        """The labels of the batch."""
        return self._filled(self._batch[1])

    def getpad(self) -> int:
        """How many examples the batch lacks."""
        return self.batch_size - int(self._batch[0].shape[0])

    def getindex(self) -> None:
        """Loaders do not tell which examples they give."""
