"""The array of `mx.np`: an NDArray that may have no axes, whose operators and methods are NumPy's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.mx.arrays.at_once import ARRAY
from weft.mx.arrays.index import read_index
from weft.mx.arrays.invoke import call_operator, invoke, record_part
from weft.mx.arrays.ndarray import NDArray, is_array, ready
from weft.mx.arrays.tape import entry_to_record, modes
from weft.mx.base.context import Context
from weft.mx.base.element_types import numpy_type, torch_type
from weft.mx.operators.table import OperatorRule, operator

Number = (int, float, np.generic)


class NumpyNDArray(NDArray):
    """An array of `mx.np`."""

    __slots__ = ()
    is_numpy = True

    @property
    def dtype(self) -> Any:
        """The element type, as NumPy has it."""
        return np.dtype(numpy_type(self._dtype))

    @property
    def T(self) -> Any:  # NumPy's name
        """The transpose."""
        return run(_permuted, self, tuple(reversed(range(self.ndim))))

    def as_np_ndarray(self) -> NDArray:
        """Itself."""
        return self

    def as_nd_ndarray(self) -> NDArray:
        """The same memory as an array of `nd`."""
        return _of_kind(NDArray, self)

    def asnumpy(self) -> Any:
        """The elements as a NumPy array: waits for them."""
        return self._numpy()

    def item(self, *places: Any) -> Any:
        """An element, as a Python number: waits for it."""
        return self.asnumpy().item(*places)

    def __repr__(self) -> str:
        text = repr(self.asnumpy())
        if self._dtype == torch.float32:
            text = re.sub(r",\s+dtype=float32\)$", ")", text)
        elif self._dtype != torch.bool and "dtype=" not in text:
            text = f"{text[:-1]}, dtype={self.dtype})"
        return text if self.context.device_type == "cpu" else f"{text[:-1]}, ctx={self.context})"

    def __str__(self) -> str:
        return str(self.asnumpy())

    def __format__(self, form: str) -> str:
        return format(self.item() if self.ndim == 0 else str(self), form)

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of unsized object")
        return self._shape[0]

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.ndim or self._dtype.is_floating_point:
            raise TypeError("only integer scalar arrays can be converted to a scalar index")
        return int(self.item())

    def __bool__(self) -> bool:
        if self.size > 1:
            raise ValueError("The truth value of an ndarray with multiple elements is ambiguous.")
        return self.size == 1 and bool(self.item())

    def __hash__(self) -> int:
        return id(self) // 16

    def __contains__(self, thing: Any) -> bool:
        return bool((self == thing).asnumpy().any())

    def __reduce__(self) -> Any:
        return array, (self.asnumpy(),)

    def __getitem__(self, key: Any) -> Any:
        key = _plain_key(key)
        found = super().__getitem__(key)
        index = read_index(key, self._shape, is_array)
        return part_of(found, ()) if all(isinstance(part, int) for part in index.parts) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_plain_key(key), value)

    def reshape(self, *shape: Any, **options: Any) -> Any:
        """A copy with other sizes, of which one may be -1."""
        sizes = options.get("newshape", options.get("shape", shape))
        sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
        return run(_reshaped, self, tuple(int(size) for size in sizes))

    def astype(self, dtype: Any, copy: bool = True, **_options: Any) -> Any:
        """A copy with another element type."""
        wanted = torch_type(np.dtype(dtype).type)
        return self if not copy and wanted == self._dtype else run(_cast, self, wanted)

    def copy(self, order: str = "C") -> Any:
        """A copy on the same device."""
        _ = order
        return run(_cast, self, self._dtype)

    def broadcast_to(self, shape: Any) -> Any:
        """Repeat axes of size 1."""
        return run(_broadcast, self, tuple(shape))

    def __neg__(self) -> Any:
        return self * -1

    def __abs__(self) -> Any:
        return run(torch.abs, self)

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        return run(torch.bitwise_not, self)


ARRAY.append(NumpyNDArray)
NumpyNDArray.part_class = NumpyNDArray
NumpyNDArray.__name__ = NumpyNDArray.__qualname__ = "ndarray"  # as programs show it
NumpyNDArray.__module__ = "mxnet.numpy"


def _plain_key(key: Any) -> Any:
    """An index with numbers in the place of arrays without axes: waits for those."""
    if isinstance(key, tuple):
        return tuple(_plain_key(part) for part in key)
    if isinstance(key, (bool, np.bool_)):
        raise TypeError("np does not take True or False as an index here")
    return int(key) if isinstance(key, NDArray) and key.ndim == 0 else key


def _of_kind(kind: type[NDArray], source: NDArray) -> NDArray:
    made = kind(source._chunk, source._shape, source._dtype, source._begin)
    made.entry, made.variable = source.entry, source.variable
    return made


def as_numpy(source: NDArray) -> NDArray:
    """The same array as one of `mx.np`."""
    return source if isinstance(source, NumpyNDArray) else _of_kind(NumpyNDArray, source)


def part_of(source: NDArray, sizes: tuple[int, ...]) -> NDArray:
    """The same memory with other sizes."""
    found = source.view(sizes, max(source._begin, 0))
    if modes.recording and entry_to_record(source) is not None:
        record_part(source, found, OperatorRule(lambda _p, x: x.reshape(sizes)), None)
    return found


# Operators of torch's.


@cache
def _rule(compute: Callable[..., Any], outputs: int) -> OperatorRule:
    return OperatorRule(lambda p, *tensors: compute(*tensors, *p), outputs=outputs, mixed=True)


def run(compute: Callable[..., Any], arrays: Any, *given: Any, outputs: int = 1) -> Any:
    """Queue a function of tensors, of an array or of a list of them, with what else it is given."""
    listed = list(arrays) if isinstance(arrays, (list, tuple)) else [arrays]
    made = invoke(_rule(compute, outputs), getattr(compute, "__name__", "np"), tuple(given), listed)
    found = [as_numpy(each) for each in made]
    return found[0] if outputs == 1 else found


def taken(given: Any, like: NDArray | None = None) -> NDArray:
    """An array of what a function was given; a number has the element type of the other array."""
    if isinstance(given, NDArray):
        return as_numpy(given)
    if isinstance(given, (bool, int, float)) and like is not None:
        dtype = like._dtype
        if isinstance(given, float) and not dtype.is_floating_point:
            dtype = torch.float32
        elif dtype == torch.bool and not isinstance(given, bool):
            dtype = torch.int64
        return as_numpy(ready(torch.tensor(given, dtype=dtype, device=like.context.torch_device), like.context))
    return array(given, ctx=like.context if like is not None else None)


def array(object: Any, dtype: Any = None, ctx: Context | None = None) -> NDArray:
    """An array of given elements: of NumPy's with their type, else of float32 unless another is asked for."""
    if isinstance(object, NDArray):
        source, found = object.asnumpy(), object.dtype
    elif isinstance(object, (np.ndarray, np.generic)):
        source, found = np.asarray(object), object.dtype
    elif isinstance(object, Tensor):
        source, found = object.detach().cpu().numpy(), np.float32
    else:
        source, found = np.array(_plain(object)), np.float32
    wanted = torch_type(np.dtype(found if dtype is None else dtype).type)
    made = ready(torch.from_numpy(np.array(source)).to(wanted), ctx)
    made._chunk.tensor = made.raw().to(made.context.torch_device)
    return as_numpy(made)


def _plain(given: Any) -> Any:
    """Nested lists with NumPy's arrays in the place of ours."""
    if isinstance(given, (list, tuple)):
        return [_plain(each) for each in given]
    return given.asnumpy() if isinstance(given, NDArray) else given


def _reshaped(x: Tensor, sizes: Sequence[int]) -> Tensor:
    return x.reshape(sizes).clone()


def _permuted(x: Tensor, axes: Sequence[int]) -> Tensor:
    return x.permute(*axes) if axes else x


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype, copy=True)


def _broadcast(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.expand(*shape) if shape else x


# Python's operators: the function of torch, and MXNet's operators for an array and a number, if those keep its type.
PAIRS: dict[str, tuple[Callable[..., Any], str | None, str | None]] = {
    "add": (torch.add, "_plus_scalar", "_plus_scalar"),
    "sub": (torch.sub, "_minus_scalar", "_rminus_scalar"),
    "mul": (torch.mul, "_mul_scalar", "_mul_scalar"),
    "truediv": (torch.true_divide, None, None),
    "mod": (torch.remainder, "_mod_scalar", "_rmod_scalar"),
    "pow": (torch.pow, "_power_scalar", "_rpower_scalar"),
    "matmul": (torch.matmul, None, None),
    "and": (torch.bitwise_and, None, None),
    "or": (torch.bitwise_or, None, None),
    "xor": (torch.bitwise_xor, None, None),
    "eq": (torch.eq, None, None),
    "ne": (torch.ne, None, None),
    "gt": (torch.gt, None, None),
    "ge": (torch.ge, None, None),
    "lt": (torch.lt, None, None),
    "le": (torch.le, None, None),
}
COMPARISONS = ("eq", "ne", "gt", "ge", "lt", "le")


def pair_of(name: str, left: Any, right: Any) -> Any:
    """A function of two arrays, of which one may be a number."""
    compute, number_second, number_first = PAIRS[name]
    first = left if isinstance(left, NDArray) else right
    by_number = number_second if first is left else number_first
    other = right if first is left else left
    is_number = isinstance(other, Number)
    if is_number and by_number is not None and first._dtype != torch.bool:
        return as_numpy(call_operator(operator(by_number), [first], {"scalar": float(other)}))
    return run(compute, [taken(left, first), taken(right, first)])


def _give_operators() -> None:
    def method(name: str, swapped: bool) -> Callable[[Any, Any], Any]:
        def apply(self: Any, other: Any) -> Any:
            if other is None or isinstance(other, str):
                return NotImplemented
            return pair_of(name, other, self) if swapped else pair_of(name, self, other)

        return apply

    def in_place(name: str) -> Callable[[Any, Any], Any]:
        def apply(self: Any, other: Any) -> Any:
            self[:] = pair_of(name, self, other)
            return self

        return apply

    for name in PAIRS:
        setattr(NumpyNDArray, f"__{name}__", method(name, False))
        if name not in COMPARISONS:
            setattr(NumpyNDArray, f"__r{name}__", method(name, True))
            setattr(NumpyNDArray, f"__i{name}__", in_place(name))


_give_operators()
