"""Arrays that know which of their elements are stored: `row_sparse` and `csr`, the arrays of `mx.nd.sparse`.

Memory holds all elements, so every operator takes them as they are. Stored rows are those that are not 0, unless a
chunk notes others (`Chunk.rows`): a gradient notes the rows that were looked up, of which some may be 0. What is stored
decides what `indices` and `data` show, and which rows a lazy update of an optimizer changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.mx.arrays import queue
from weft.mx.arrays.invoke import call_operator
from weft.mx.arrays.ndarray import CLASSES, NDArray, array, as_stored, ready, zeros
from weft.mx.base.context import Context
from weft.mx.base.element_types import torch_type
from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import Operator


class SparseNDArray(NDArray):
    """What the two kinds share: operators that keep the kind, and a form that shows no elements."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"\n<{type(self).__name__} {'x'.join(map(str, self._shape))} @{self.context}>"

    def __reduce__(self) -> Any:
        return _unpickled, (self.asnumpy(), str(self._dtype).removeprefix("torch."), self.stype)

    def copy(self) -> NDArray:
        """A copy, stored in the same way."""
        return _like(self, super().copy())

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """A copy with another element type, stored in the same way."""
        found = super().astype(dtype, copy)
        return found if found is self else _like(self, found)

    def copyto(self, other: NDArray | Context) -> NDArray:
        """Copy to another array, or to a new one on a device, which is stored in the same way."""
        found = super().copyto(other)
        return _like(self, found) if isinstance(other, Context) else _note_rows(self, found)

    def detach(self) -> NDArray:
        """The same memory outside the graph."""
        return as_stored(super().detach(), self.stype)

    def __neg__(self) -> NDArray:
        return self * -1.0

    def __abs__(self) -> NDArray:
        found: NDArray = self.abs()
        return found

    def check_format(self, full_check: bool = True) -> None:
        """Nothing can be wrong: indices follow from elements."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, slice) or key != slice(None):
            raise TypeError(f"{type(self).__name__} only supports [:] for assignment")
        super().__setitem__(key, value)


class RowSparseNDArray(SparseNDArray):
    """An array of which some rows are stored."""

    __slots__ = ()

    @property
    def stype(self) -> str:
        """How elements are stored: rows."""
        return "row_sparse"

    def _rows(self) -> Tensor:
        elements = self._read()  # rows are noted by the task that computes them
        return stored_rows(self._chunk.rows, elements)

    @property
    def indices(self) -> NDArray:
        """Which rows are stored: waits for them."""
        return ready(self._rows().clone(), self.context)

    @property
    def data(self) -> NDArray:
        """The rows that are stored: waits for them."""
        rows = self._rows()
        return ready(self.raw().detach()[rows], self.context)

    def retain(self, indices: NDArray) -> NDArray:
        """Some of its rows; the others are 0."""
        found: NDArray = retain(self, indices)
        return found

    def __getitem__(self, key: Any) -> NDArray:
        if not isinstance(key, slice) or key != slice(None):
            raise MXNetError(f"RowSparseNDArray has no part {key!r}: it gives all of itself, [:]")
        return self


class CSRNDArray(SparseNDArray):
    """A matrix of which, in each row, some columns are stored."""

    __slots__ = ()

    @property
    def stype(self) -> str:
        """How elements are stored: columns of each row."""
        return "csr"

    @property
    def indices(self) -> NDArray:
        """The columns that are stored, row by row: waits for them."""
        return ready(self._read().detach().nonzero()[:, 1].contiguous(), self.context)

    @property
    def indptr(self) -> NDArray:
        """Where each row begins among `indices`, and where the last one ends: waits for them."""
        counts = (self._read().detach() != 0).sum(1)
        return ready(torch.cat([counts.new_zeros(1), counts.cumsum(0)]), self.context)

    @property
    def data(self) -> NDArray:
        """The elements that are stored: waits for them."""
        elements = self._read().detach()
        return ready(elements[elements != 0], self.context)

    def asscipy(self) -> Any:
        """The matrix as SciPy has it."""
        import scipy.sparse  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: PLC0415  # optional

        parts = (self.data.asnumpy(), self.indices.asnumpy(), self.indptr.asnumpy())
        return scipy.sparse.csr_matrix(parts, shape=self._shape, dtype=self.dtype)

    def __getitem__(self, key: Any) -> NDArray:
        if isinstance(key, (int, np.integer)):
            place = int(key) % self._shape[0] if -self._shape[0] <= key < self._shape[0] else key
            key = slice(place, place + 1)
        if isinstance(key, tuple):
            raise ValueError("Multi-dimension indexing is not supported")  # noqa: TRY004  # MXNet's
        if not isinstance(key, slice) or key.step not in (None, 1):
            raise ValueError("CSRNDArray only supports continuous slicing on axis 0")
        return as_stored(super().__getitem__(key).copy(), "csr")


CLASSES.update(row_sparse=RowSparseNDArray, csr=CSRNDArray)


def stored_rows(noted: Tensor | None, elements: Tensor) -> Tensor:
    """Which rows are stored: those that are noted, else those that are not 0."""
    if noted is not None:
        return noted
    return elements.detach().reshape(elements.shape[0], -1).any(1).nonzero()[:, 0]


def _unpickled(elements: Any, dtype: str, stype: str) -> NDArray:
    return as_stored(array(elements, None, dtype), stype)


def _like(source: NDArray, made: NDArray) -> NDArray:
    """An array that was computed of another, stored as that is."""
    return _note_rows(source, as_stored(made, source.stype))


def _note_rows(source: NDArray, made: NDArray) -> NDArray:
    """Let an array have the stored rows of another, once both are there."""
    if source.stype == made.stype == "row_sparse":
        given, taken = source._chunk, made._chunk
        queue.push(lambda: setattr(taken, "rows", given.rows), [source.order], [made.order], "stored rows")
    return made


# How results of operators are stored.

# Of one array: 0 stays 0, so the result is stored as that is.
KEEPING = """
abs sign round rint fix floor ceil trunc sqrt cbrt square expm1 log1p sin sinh tan tanh arcsin arcsinh arctan arctanh
degrees radians relu negative _mul_scalar _div_scalar _copy Cast
""".split()  # noqa: SIM905  # words in lines read better than a column of them
SUMS = frozenset(("broadcast_add", "broadcast_sub", "elemwise_add", "elemwise_sub", "add_n"))
PRODUCTS = frozenset(("broadcast_mul", "elemwise_mul"))
LAZY = frozenset(("sgd_update", "sgd_mom_update", "adam_update"))


def _kind_of_result(row: Operator, p: Any, arrays: Sequence[NDArray]) -> str:
    """How the result of an operator is stored."""
    kinds = [each.stype for each in arrays]
    name, first = row.name, kinds[0]
    if name == "dot":
        return p.forward_stype or _kind_of_product(p, kinds)
    if name in KEEPING or name == "zeros_like" or (name == "slice" and first == "csr"):
        return first
    if name == "clip":
        return first if p.a_min <= 0 <= p.a_max else "default"
    if name in SUMS or (name == "Concat" and p.dim == 0 and first == "csr"):
        return first if len(set(kinds)) == 1 else "default"
    if name in PRODUCTS:
        return next(kind for kind in kinds if kind != "default")
    return "default"


def _kind_of_product(p: Any, kinds: Sequence[str]) -> str:
    if kinds[0] == "csr":
        return "row_sparse" if p.transpose_a else "default"
    return "csr" if kinds == ["default", "csr"] else "default"


def call_stored(row: Operator, arrays: Sequence[NDArray], given: Mapping[str, Any], out: Any = None) -> Any:
    """Call an operator on arrays of which some may be sparse."""
    if all(each.stype == "default" for each in arrays):
        return call_operator(row, arrays, given, out)
    if row.name in LAZY and arrays[1].stype == "row_sparse" and out is arrays[0]:
        p = row.values(given)
        if p.lazy_update:
            return _update_rows(row, p, arrays)
    found = call_operator(row, arrays, given, out)
    if out is not None or not isinstance(found, NDArray):
        return found
    p = row.values({**given, row.counter: len(arrays)} if row.counter in row.parameters else given)
    kind = _kind_of_result(row, p, arrays)
    if kind == "default":
        return found
    return _like(arrays[0], found) if row.name in KEEPING else as_stored(found, kind)


def _update_rows(row: Operator, p: Any, arrays: Sequence[NDArray]) -> NDArray:
    """Queue the update of those rows of a weight, and of what is kept for it, that its gradient has."""
    rule = row.rule
    weight, grad = arrays[:2]
    targets = [weight, *(arrays[place] for place in rule.written_inputs(p))]

    def run() -> None:
        rows = stored_rows(grad._chunk.rows, grad.raw())
        made = rule.compute(p, *[each.raw()[rows] for each in arrays])
        for target, new in zip(targets, made if isinstance(made, (tuple, list)) else (made,), strict=True):
            target.part()[rows] = new

    for target in targets:
        target.written()
    queue.push(run, [each.order for each in arrays], [target.order for target in targets], row.name)
    return weight


def retain(data: NDArray, indices: NDArray) -> NDArray:
    """Rows of a `row_sparse` array; they are the stored ones of what it gives."""
    if data.stype != "row_sparse":
        raise MXNetError(f"sparse.retain takes a row_sparse array, not a {data.stype} one")
    elements, wanted = data._read().detach(), indices.asnumpy().astype(np.int64)
    rows = torch.from_numpy(np.unique(wanted)).to(elements.device)
    made = torch.zeros_like(elements)
    made[rows] = elements[rows]
    found = as_stored(ready(made, data.context), "row_sparse")
    found._chunk.rows = rows
    return found


# How they are made.


def _is_shape(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) > 0 and all(isinstance(size, (int, np.integer)) for size in given)


def _type_of(source: Any, dtype: Any) -> Any:
    """The element type that is asked for, else that of an array, else float32."""
    return dtype if dtype is not None else getattr(source, "dtype", np.float32)


def _elements(source: Any, dtype: Any) -> Tensor:
    wanted = torch_type(_type_of(source, dtype))
    found = source.asnumpy() if isinstance(source, NDArray) else np.asarray(source)
    return torch.from_numpy(np.array(found)).to(wanted)


def _places(given: Any) -> Tensor:
    found = given.asnumpy() if isinstance(given, NDArray) else np.asarray(given)
    return torch.from_numpy(found.astype(np.int64).reshape(-1))


def _of_all(source: Any, shape: Any, ctx: Context | None, dtype: Any, stype: str) -> NDArray:
    """An array of one that has all elements: of numbers, of MXNet's or of SciPy's."""
    found = source.toarray() if hasattr(source, "toarray") else source
    made = array(found, ctx, _type_of(source, dtype))
    if shape is not None and tuple(shape) != made.shape:
        raise ValueError(f"shape {tuple(shape)} is not that of the elements, {made.shape}")
    return as_stored(made, stype)


def _checked(places: Tensor, size: int, what: str) -> Tensor:
    if len(places) and not 0 <= int(places.min()) <= int(places.max()) < size:
        raise MXNetError(f"{what} must be from 0 to {size - 1}")
    return places


def csr_matrix(arg1: Any, shape: Any = None, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """A `csr` matrix: of (data, indices, indptr), (data, (rows, columns)), of its shape, or of one that has all."""
    if not isinstance(arg1, tuple):
        return _of_all(arg1, shape, ctx, dtype, "csr")
    if len(arg1) == 2 and _is_shape(arg1):
        return zeros(arg1, ctx, dtype, "csr")
    if len(arg1) == 3:
        data, columns, begins = arg1
        counts = torch.diff(_places(begins))
        if len(counts) == 0 or bool((counts < 0).any()):
            raise ValueError("indptr must have an entry a row and one more, none smaller than the one before")
        rows, columns = torch.arange(len(counts)).repeat_interleave(counts), _places(columns)
    elif len(arg1) == 2 and isinstance(arg1[1], (tuple, list)) and len(arg1[1]) == 2:
        data, rows, columns = arg1[0], _places(arg1[1][0]), _places(arg1[1][1])
        counts = rows.new_zeros(int(rows.max()) + 1 if len(rows) else 0)
    else:
        raise ValueError(f"Unexpected length of input tuple: {len(arg1)}")
    elements = _elements(data, dtype).reshape(-1)
    if not len(elements) == len(rows) == len(columns):
        raise ValueError(f"{len(elements)} elements were given {len(rows)} rows and {len(columns)} columns")
    sizes = tuple(shape) if shape is not None else (len(counts), int(columns.max()) + 1 if len(columns) else 0)
    made = torch.zeros(sizes, dtype=elements.dtype)
    where = _checked(rows, sizes[0], "rows"), _checked(columns, sizes[1], "columns")
    made.index_put_(where, elements, accumulate=True)
    return as_stored(_on(made, ctx), "csr")


def row_sparse_array(arg1: Any, shape: Any = None, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """A `row_sparse` array: of (data, indices), of its shape, or of one that has all elements."""
    if _is_shape(arg1):
        return zeros(arg1, ctx, dtype, "row_sparse")
    if not isinstance(arg1, tuple):
        return _of_all(arg1, shape, ctx, dtype, "row_sparse")
    if len(arg1) != 2:
        raise ValueError(f"Unexpected length of input tuple: {len(arg1)}")
    elements, rows = _elements(arg1[0], dtype), _places(arg1[1])
    sizes = tuple(shape) if shape is not None else (int(rows.max()) + 1 if len(rows) else 0, *elements.shape[1:])
    rows, order = torch.sort(_checked(rows, sizes[0], "indices"))
    made = torch.zeros(sizes, dtype=elements.dtype)
    made[rows] = elements.reshape(len(rows), *sizes[1:])[order]
    found = as_stored(_on(made, ctx), "row_sparse")
    found._chunk.rows = rows.to(found.context.torch_device)
    return found


def _on(elements: Tensor, ctx: Context | None) -> NDArray:
    made = ready(elements, ctx)
    made._chunk.tensor = elements.to(made.context.torch_device)
    return made


def sparse_array(source_array: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """A copy of a sparse array, or of a matrix of SciPy's."""
    if isinstance(source_array, SparseNDArray):
        made = source_array.copyto(ctx) if ctx is not None else source_array.copy()
        return made if dtype is None else made.astype(dtype)
    if hasattr(source_array, "tocsr"):
        return csr_matrix(source_array, None, ctx, dtype)
    if isinstance(source_array, NDArray):
        raise ValueError("Please use mx.nd.array to create an NDArray with source_array of type NDArray")  # noqa: TRY004
    raise ValueError(f"Unexpected source_array type: {type(source_array)}")


def cast_storage(data: NDArray, stype: str) -> NDArray:
    """The array, or a copy that is stored in another way."""
    return data.tostype(stype)


def sparse_zeros(stype: str, shape: Any, ctx: Context | None = None, dtype: Any = None, **_options: Any) -> NDArray:
    """An array without stored elements."""
    return zeros(shape, ctx, dtype, stype)


MAKERS: dict[str, Callable[..., Any]] = {
    "csr_matrix": csr_matrix,
    "row_sparse_array": row_sparse_array,
    "array": sparse_array,
    "zeros": sparse_zeros,
    "empty": sparse_zeros,
    "retain": retain,
    "cast_storage": cast_storage,
    "BaseSparseNDArray": SparseNDArray,
    "CSRNDArray": CSRNDArray,
    "RowSparseNDArray": RowSparseNDArray,
}
