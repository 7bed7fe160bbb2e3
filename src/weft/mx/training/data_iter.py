"""Give batches of arrays that lie in memory: `mx.io`."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray, array, as_stored
from weft.mx.arrays.sparse import SparseNDArray


class DataDesc(namedtuple("DataDesc", ["name", "shape"])):  # noqa: PYI024, SLOT002  # MXNet's: two fields, two attributes
    """What a batch has under a name."""

    dtype: Any
    layout: str

    def __new__(cls, name: str, shape: Any, dtype: Any = np.float32, layout: str = "NCHW") -> DataDesc:  # noqa: PYI034
        """Make one."""
        made = super().__new__(cls, name, tuple(shape))
        made.dtype, made.layout = dtype, layout
        return made

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        """Which axis counts examples."""
        return 0 if layout is None else layout.find("N")


class DataBatch:
    """Arrays and labels of one batch; the last `pad` examples are there to fill it."""

    def __init__(
        self,
        data: Any,
        label: Any = None,
        pad: int | None = None,
        index: Any = None,
        bucket_key: Any = None,
        provide_data: Any = None,
        provide_label: Any = None,
    ) -> None:
        for name, given in (("Data", data), ("Label", label)):
            if given is not None and not isinstance(given, (list, tuple)):
                raise AssertionError(f"{name} must be list of NDArrays")  # MXNet's
        self.data, self.label, self.pad, self.index = data, label, pad, index
        self.bucket_key, self.provide_data, self.provide_label = bucket_key, provide_data, provide_label

    def __str__(self) -> str:
        shapes = [[x.shape for x in part] if part else None for part in (self.data, self.label)]
        return f"{type(self).__name__}: data shapes: {shapes[0]} label shapes: {shapes[1]}"


class DataIter:
    """Batches, one after the other, again after `reset`."""

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> DataBatch:
        return self.next()

    def reset(self) -> None:
        """Begin anew."""

    def next(self) -> DataBatch:
        """The next batch."""
        if not self.iter_next():
            raise StopIteration
        return DataBatch(self.getdata(), self.getlabel(), self.getpad(), self.getindex())

    def iter_next(self) -> bool:
        """Go on to the next batch, if there is one."""
        raise NotImplementedError

    def getdata(self) -> Any:
        """The arrays of this batch."""
        raise NotImplementedError

    def getlabel(self) -> Any:
        """The labels of this batch."""
        raise NotImplementedError

    def getpad(self) -> int:
        """How many examples at the end fill the batch."""
        return 0

    def getindex(self) -> Any:
        """The numbers of the examples."""
        return None


def _named(given: Any, otherwise: str, *, may_be_empty: bool) -> list[tuple[str, Any]]:
    if given is None:
        given = []
    if isinstance(given, (np.ndarray, NDArray)):
        given = [given]
    if isinstance(given, (list, tuple)):
        if not given and not may_be_empty:
            raise AssertionError("NDArrayIter needs at least one array")
        names = [otherwise] if len(given) == 1 else [f"_{place}_{otherwise}" for place in range(len(given))]
        given = dict(zip(names, given, strict=True))
    if not isinstance(given, Mapping):
        raise TypeError("Input must be NDArray, numpy.ndarray, a list of them or dict with them as values")
    return [(name, _elements(x)) for name, x in given.items()]


def _elements(given: Any) -> Any:
    if isinstance(given, SparseNDArray):
        return _StoredRows(given)
    return given.asnumpy() if isinstance(given, NDArray) else np.asarray(given, dtype=np.float32)


class _StoredRows:
    """The elements of a sparse array, whose parts are sparse too."""

    def __init__(self, source: SparseNDArray) -> None:
        self._elements, self.stype = source.asnumpy(), source.stype
        self.shape, self.dtype = self._elements.shape, self._elements.dtype

    def __len__(self) -> int:
        return len(self._elements)

    def __getitem__(self, rows: Any) -> NDArray:
        return as_stored(array(self._elements[rows], dtype=self.dtype), self.stype)


class NDArrayIter(DataIter):
    """Batches of arrays. The last one, if it is short, is filled, dropped, or begins the next round."""

    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
        layout: str = "NCHW",
    ) -> None:
        super().__init__(batch_size)
        if last_batch_handle not in ("pad", "discard", "roll_over"):
            raise NotImplementedError("Please specify last_batch_handle: pad, discard or roll_over")
        self.data = _named(data, data_name, may_be_empty=False)
        self.label = _named(label, label_name, may_be_empty=True)
        self.num_data = len(self.data[0][1])
        for name, x in (*self.data, *self.label):
            if len(x) != self.num_data:
                raise AssertionError(f"{name} has {len(x)} examples, others have {self.num_data}")
        self._shuffle, self._handle, self._layout = shuffle, last_batch_handle, layout
        self._left: list[int] = []  # what the round before left for this one
        self._batch: Any = None
        self._begin()

    def _begin(self) -> None:
        order = np.arange(self.num_data)
        if self._shuffle:
            np.random.shuffle(order)
        self._order = [*self._left, *order.tolist()]
        self._carried = len(self._left)  # the first batch tells them as its padding
        self._left, self._place, self._batch = [], 0, None

    def _described(self, arrays: list[tuple[str, Any]]) -> list[DataDesc]:
        return [DataDesc(name, (self.batch_size, *x.shape[1:]), x.dtype.type, self._layout) for name, x in arrays]

    @property
    def provide_data(self) -> list[DataDesc]:
        """What data of a batch is."""
        return self._described(self.data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """What labels of a batch are."""
        return self._described(self.label)

    def reset(self) -> None:
        """Begin a new round."""
        self._begin()

    def hard_reset(self) -> None:
        """Begin a new round, and forget what was left of the one before."""
        self._left = []
        self._begin()

    def iter_next(self) -> bool:
        """Go on to the next batch, if there is one."""
        batch = self._order[self._place : self._place + self.batch_size]
        short = self.batch_size - len(batch)
        self._pad = 0 if self._place else self._carried
        if not batch or (short and self._handle == "discard"):
            return False
        if short and self._handle == "roll_over":
            self._left, self._place = batch, len(self._order)
            return False
        if short:
            batch += (self._order * -(-short // len(self._order)))[:short]
            self._pad = short
        self._batch, self._place = batch, self._place + self.batch_size
        return True

    def _arrays(self, arrays: list[tuple[str, Any]]) -> list[NDArray]:
        return [array(x[self._batch], dtype=x.dtype) for _, x in arrays]  # of sparse ones a sparse one

    def getdata(self) -> list[NDArray]:
        """The arrays of this batch."""
        return self._arrays(self.data)

    def getlabel(self) -> list[NDArray]:
        """The labels of this batch."""
        return self._arrays(self.label)

    def getpad(self) -> int:
        """How many examples at the end fill the batch."""
        return self._pad


class ResizeIter(DataIter):
    """So many batches of another iterator, however many it has."""

    def __init__(self, data_iter: Any, size: int, reset_internal: bool = True) -> None:
        super().__init__(data_iter.batch_size)
        self.data_iter, self.size, self._resets, self._count = data_iter, size, reset_internal, 0
        self.provide_data, self.provide_label = data_iter.provide_data, data_iter.provide_label

    def reset(self) -> None:
        """Begin anew."""
        self._count = 0
        if self._resets:
            self.data_iter.reset()

    def next(self) -> DataBatch:
        """The next batch."""
        if self._count == self.size:
            raise StopIteration
        self._count += 1
        try:
            found: DataBatch = self.data_iter.next()
        except StopIteration:
            self.data_iter.reset()
            found = self.data_iter.next()
        return found


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
