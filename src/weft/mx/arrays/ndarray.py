"""The array of MXNet: what a user does with a handle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from weft.mx.arrays import queue
from weft.mx.arrays.at_once import ARRAY
from weft.mx.arrays.gradients import backward
from weft.mx.arrays.handle import Chunk, Handle
from weft.mx.arrays.index import Index, read_index
from weft.mx.arrays.invoke import OperatorTask, call_kind, invoke, invoke_one, record, record_part
from weft.mx.arrays.tape import Variable, entry_to_record, modes
from weft.mx.base.context import Context, cpu, current_context
from weft.mx.base.element_types import torch_type
from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import OperatorRule, Shape, operator

Number = (int, float, np.generic, bool)
REQUESTS = {"write": 1, "add": 3, "null": 0}


class OneElement(np.ndarray[Any, Any]):
    """A NumPy array that `float` and `int` take if it has one element, as all were in MXNet's time.

    Programs format what `asnumpy` gives, which has one axis (`"loss %f" % loss.mean().asnumpy()`); since NumPy 2.4 only
    arrays without axes are numbers.
    """

    def _plain(self) -> Any:
        return self.view(np.ndarray)

    def __float__(self) -> float:
        return float(self.item()) if self.size == 1 else float(self._plain())

    def __int__(self) -> int:
        return int(self.item()) if self.size == 1 else int(self._plain())

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Give what has no axes as a number: NumPy does so for its own class alone."""
        _ = context
        return array[()] if return_scalar or array.ndim == 0 else array.view(type(self))

    def __repr__(self) -> str:
        return repr(self._plain())

    def __reduce__(self) -> Any:
        return self._plain().__reduce__()


OneElement.__name__ = OneElement.__qualname__ = "ndarray"  # as programs show it
OneElement.__module__ = "numpy"


class NDArray(Handle):
    """An array on a device, computed in the background."""

    __slots__ = ()
    __array_priority__: ClassVar[float] = 1000.0
    part_class: ClassVar[type[NDArray]]  # of arrays over the same memory, and of what indices pick

    if TYPE_CHECKING:  # what `frontend` gives it: Python's operators, and operators that are methods

        def __getattr__(self, name: str) -> Any: ...
        def __add__(self, other: Any) -> NDArray: ...
        def __radd__(self, other: Any) -> NDArray: ...
        def __sub__(self, other: Any) -> NDArray: ...
        def __rsub__(self, other: Any) -> NDArray: ...
        def __mul__(self, other: Any) -> NDArray: ...
        def __rmul__(self, other: Any) -> NDArray: ...
        def __truediv__(self, other: Any) -> NDArray: ...
        def __rtruediv__(self, other: Any) -> NDArray: ...
        def __pow__(self, other: Any) -> NDArray: ...
        def __rpow__(self, other: Any) -> NDArray: ...
        def __mod__(self, other: Any) -> NDArray: ...
        def __lt__(self, other: Any) -> NDArray: ...
        def __le__(self, other: Any) -> NDArray: ...
        def __gt__(self, other: Any) -> NDArray: ...
        def __ge__(self, other: Any) -> NDArray: ...

    @property
    def T(self) -> NDArray:  # MXNet's name
        """The transpose; of a line, itself."""
        return self if len(self._shape) < 2 else invoke_one("transpose", self)

    # Waiting.

    def wait_to_read(self) -> None:
        """Wait until it is computed; raise what kept it from being."""
        queue.wait(self._chunk.variable)

    def wait_to_write(self) -> None:
        """Wait until nobody reads it."""
        queue.wait(self._chunk.variable)

    def _read(self) -> Tensor:
        queue.wait(self._chunk.variable)
        return self.raw()

    def asnumpy(self) -> Any:
        """The elements as a NumPy array: waits for them."""
        found = self._numpy()
        return found.view(OneElement) if found.size == 1 and found.ndim else found

    def _numpy(self) -> Any:
        tensor = self._read().detach()
        tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        return tensor.cpu().numpy().copy().reshape(self._shape)

    def asscalar(self) -> Any:
        """The only element, as a NumPy number: waits for it."""
        if self.size != 1:
            raise ValueError("The current array is not a scalar")
        return self._numpy().reshape(-1)[0]

    def item(self) -> Any:
        """The only element, as a Python number: waits for it."""
        return self.asscalar().item()

    def tolist(self) -> Any:
        """The elements as nested lists: waits for them."""
        return self.asnumpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        found = self.asnumpy()
        return found if dtype is None else found.astype(dtype)

    def __bool__(self) -> bool:
        if self.size == 0:
            return False
        if self.size > 1:
            raise ValueError("The truth value of an NDArray with multiple elements is ambiguous.")
        return bool(self.asscalar())

    def __len__(self) -> int:
        return self._shape[0]

    def __iter__(self) -> Iterator[NDArray]:
        for place in range(self._shape[0]):
            yield self[place]

    def __contains__(self, thing: Any) -> bool:
        return bool((self == thing).asnumpy().any())

    def __hash__(self) -> int:
        return id(self) // 16

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self._shape))
        return f"\n{self.asnumpy()!s}\n<{type(self).__name__} {sizes} @{self.context}>"

    def __reduce__(self) -> Any:
        return _unpickled, (self.asnumpy(), str(self._dtype).removeprefix("torch."))

    # Copies and other devices.

    def copy(self) -> NDArray:
        """A copy on the same device."""
        return invoke_one("_copy", self)

    def copyto(self, other: NDArray | Context) -> NDArray:
        """Copy to another array, or to a new one on a device."""
        if isinstance(other, NDArray):
            if other is self:
                return other
            if other.shape != self._shape:
                raise MXNetError(f"copyto: shapes differ, {self._shape} and {other.shape}")
            return invoke(_COPY, "_copyto", None, [self], [other])[0]
        target = self.part_class(empty(self._shape, other, self._dtype)._chunk, self._shape, self._dtype)
        return invoke(_COPY, "_copyto", None, [self], [target])[0]

    def as_in_context(self, context: Context) -> NDArray:
        """Itself, if it is there, else a copy."""
        return self if context == self.context else self.copyto(context)

    as_in_ctx = as_in_context

    def as_np_ndarray(self) -> NDArray:
        """The same memory as an array of `mx.np`."""
        made = ARRAY[1](self._chunk, self._shape, self._dtype, self._begin)
        made.entry, made.variable = self.entry, self.variable
        found: NDArray = made
        return found

    def as_nd_ndarray(self) -> NDArray:
        """Itself."""
        return self

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """A copy with another element type."""
        if not copy and torch_type(dtype) == self._dtype:
            return self
        return invoke_one("Cast", self, dtype=dtype)

    def reshape(self, *shape: Any, **options: Any) -> NDArray:
        """Other sizes over the same memory, by MXNet's codes."""
        codes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        codes = codes or options.pop("shape", ())
        reverse = options.pop("reverse", False)
        if options:
            raise TypeError(
                f"Got unknown keywords in reshape: {', '.join(options)}. "
                "Accepted keyword arguments are 'shape' and 'reverse'."
            )
        row = operator("Reshape")
        p = row.values({"shape": tuple(codes), "reverse": reverse})
        ((sizes, _),) = call_kind(row.rule, row.name, p, [self]).types
        found = self.view(sizes, max(self._begin, 0))
        if modes.recording and entry_to_record(self) is not None:
            record_part(self, found, row.rule, p)
        return found

    def view(self, shape: Shape, begin: int) -> NDArray:
        """A part of the same memory, with sizes of its own."""
        return self.part_class(self._chunk, shape, self._dtype, begin)

    def detach(self) -> NDArray:
        """The same memory outside the graph."""
        return self.part_class(self._chunk, self._shape, self._dtype, self._begin)

    def broadcast_to(self, shape: Sequence[int]) -> NDArray:
        """Repeat axes of size 1 until the sizes are these."""
        shape = tuple(shape)
        if self._shape == shape:
            return self
        if len(shape) < self.ndim or any(
            old not in (1, new) for old, new in zip(reversed(self._shape), reversed(shape), strict=False)
        ):
            raise ValueError(f"cannot broadcast from shape {self._shape} to shape {shape}")
        lined = self.reshape((1,) * (len(shape) - self.ndim) + self._shape)
        return invoke_one("broadcast_to", lined, shape=shape)

    def slice_assign(self, value: NDArray, begin: Any, end: Any, step: Any = ()) -> NDArray:
        """Write a box of elements."""
        return invoke_one("_slice_assign", self, value, begin=begin, end=end, step=step, out=self)

    def tostype(self, stype: str) -> NDArray:
        """Itself, if it is stored in this way, else a copy that is."""
        if stype == self.stype:
            return self
        return as_stored(NDArray.copy(self), stype)

    def to_dlpack_for_read(self) -> Any:
        """A capsule of the elements."""
        return to_torch(self).__dlpack__()

    to_dlpack_for_write = to_dlpack_for_read

    def __dlpack__(self, stream: Any = None) -> Any:
        return to_torch(self).__dlpack__()

    def __dlpack_device__(self) -> Any:
        return to_torch(self).__dlpack_device__()

    # Indexing.

    def __getitem__(self, key: Any) -> NDArray:
        index = read_index(key, self._shape, is_array)
        part = index.contiguous()
        if part is None:
            return index_of(self, index)
        begin, shape = part
        found = self.view(shape, begin + max(self._begin, 0))
        if modes.recording and entry_to_record(self) is not None:
            record_part(self, found, OperatorRule(lambda _p, x: index.pick(x, ())), None)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        index = read_index(key, self._shape, is_array)
        self.written()
        given = value if isinstance(value, NDArray) else _as_elements(value, self)
        arrays = [given] if isinstance(given, NDArray) else []
        shape = given.shape if isinstance(given, (NDArray, Tensor)) else ()
        _check_broadcast(shape, index.shape)
        task = _Assignment(self, index, given)
        reads = [self.order, *(source.order for source in (*arrays, *index.arrays))]
        queue.push(task, reads, (self.order,), "assignment")

    # Gradients.

    def attach_grad(self, grad_req: str = "write", stype: str | None = None) -> None:
        """Let backwards write its gradient into `grad`."""
        request = REQUESTS[grad_req] and grad_req
        self.entry = None
        grad = None if not request else zeros(self._shape, self.context, self._dtype, stype or self.stype)
        grad = grad.as_np_ndarray() if grad is not None and self.is_numpy else grad
        self.variable = Variable(grad, request or "null")

    def backward(self, out_grad: NDArray | None = None, retain_graph: bool = False, train_mode: bool = True) -> None:
        """Compute gradients of all variables that it was made of."""
        backward([self], [out_grad], retain_graph, train_mode)

    # Operators of Python; the others are given by `frontend.give_arithmetic`.

    def __neg__(self) -> NDArray:
        return invoke_one("_mul_scalar", self, scalar=-1.0)

    def __abs__(self) -> NDArray:
        return invoke_one("abs", self)


def _unpickled(elements: Any, dtype: str) -> NDArray:
    """What was pickled, on the current device: the one it was on may not be there."""
    return array(elements, None, dtype)


ARRAY[0] = NDArray.part_class = NDArray


# Indexing and assignment.


def index_of(source: NDArray, index: Index) -> NDArray:
    """What an index picks, as a new array."""
    inputs = [source, *index.arrays]
    entries = None
    if modes.recording:
        found = [entry_to_record(array) for array in inputs]
        entries = found if any(found) else None
    call = OperatorTask(OperatorRule(lambda _p, x, *arrays: index.pick(x, arrays)), None, inputs, entries)
    made = source.part_class(Chunk(source.context), index.shape, source._dtype)
    call.outputs = [made]
    if entries is not None:
        record(call, [entry[0] for entry in entries if entry is not None])
    queue.push(call, [array.order for array in inputs], [made.order], "index")
    return made


def is_array(thing: Any) -> bool:
    """Whether something is an NDArray."""
    return isinstance(thing, NDArray)


class _Assignment:
    """The task of `x[key] = value`."""

    __slots__ = ("index", "target", "value")

    def __init__(self, target: NDArray, index: Index, value: Any) -> None:
        self.target = target
        self.index = index
        self.value = value

    def __call__(self) -> None:
        """Run it."""
        value, target = self.value, self.target
        elements = value.raw() if isinstance(value, NDArray) else value
        if isinstance(elements, Tensor):
            elements = elements.to(target._dtype)
            if isinstance(value, NDArray) and value._chunk is target._chunk:
                elements = elements.clone()  # the two may overlap
            while elements.dim() > len(self.index.shape):
                elements = elements.squeeze(0)
        if self.index.is_whole:
            shape, device = target.shape, target.context.torch_device
            if isinstance(elements, Tensor):
                target.write(elements.to(device).expand(shape), aliased=True)
                if isinstance(value, NDArray):
                    value._chunk.aliased = True
            else:
                target.write(torch.full(shape, elements, dtype=target._dtype, device=device))
        else:
            self.index.put(target.part(), [array.raw() for array in self.index.arrays], elements)


def _as_elements(value: Any, target: NDArray) -> Any:
    """A number, or a tensor of what was given."""
    if isinstance(value, Number):
        return value if target._dtype.is_floating_point else int(value)
    if isinstance(value, (np.ndarray, list, tuple)):
        if isinstance(value, (list, tuple)):
            value = [entry.asnumpy() if isinstance(entry, NDArray) else entry for entry in value]
        elements = torch.from_numpy(np.array(value)).to(target._dtype)
        return elements.to(target.context.torch_device)
    raise TypeError(
        f"{type(target)} does not support assignment with non-array-like object {value} of type {type(value)}"
    )


def _check_broadcast(given: Sequence[int], wanted: Sequence[int]) -> None:
    shape = list(given)
    while len(shape) > len(wanted) and shape[0] == 1:
        shape.pop(0)
    fits = len(shape) <= len(wanted) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(wanted), strict=False)
    )
    if not fits:
        raise ValueError(
            "operands could not be broadcast together with remapped shapes[original->remapped]: "
            f"{tuple(given)} and requested shape {tuple(wanted)}"
        )


# Arrays from elsewhere.

_COPY = OperatorRule(lambda _p, x: x.clone(), mixed=True)


def ready(tensor: Tensor, context: Context | None = None, *, external: bool = False) -> NDArray:
    """An array of elements that are there."""
    chunk = Chunk(context or current_context(), tensor)
    chunk.external = external
    return NDArray(chunk, tuple(tensor.shape), tensor.dtype)


def array(source: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An array of given elements: float32 unless a type is given, or the source is an NDArray."""
    if isinstance(source, NDArray):
        wanted = source._dtype if dtype is None else torch_type(dtype)
        elements = torch.from_numpy(source.asnumpy()).to(wanted)
    elif isinstance(source, Tensor):
        elements = source.detach().to(torch.float32 if dtype is None else torch_type(dtype), copy=True)
    else:
        wanted = torch.float32 if dtype is None else torch_type(dtype)
        if isinstance(source, (list, tuple)):
            source = [entry.asnumpy() if isinstance(entry, NDArray) else entry for entry in source]
        try:
            given = np.array(source)
            elements = torch.from_numpy(given.astype(np.float32) if given.dtype == np.uint16 else given).to(wanted)
        except (TypeError, ValueError) as error:
            raise TypeError("source_array must be array like object") from error
    context = ctx or current_context()
    made = ready(elements.to(context.torch_device).contiguous(), context)
    return as_stored(made, source.stype) if isinstance(source, NDArray) else made


CLASSES: dict[str, type[NDArray]] = {"default": NDArray}  # by how elements are stored; `sparse` adds its own


def as_stored(made: NDArray, stype: str) -> NDArray:
    """The same array as one that is stored in this way: its class, which knows which elements count as stored."""
    kind = CLASSES.get(stype)
    if kind is None:
        raise ValueError(f"unknown storage type: {stype}")
    if stype == "csr" and made.ndim != 2:
        raise MXNetError(f"a csr array has two axes, not {made.ndim}")
    found = kind(made._chunk, made._shape, made._dtype, made._begin)
    found.entry = made.entry
    return found


def empty(shape: Any, ctx: Context | None = None, dtype: Any = None, stype: str | None = None) -> NDArray:
    """An array whose elements are yet to be written."""
    if stype not in (None, "default"):
        return zeros(shape, ctx, dtype, stype)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    context = ctx or current_context()
    return ready(torch.empty(sizes, dtype=torch_type(dtype), device=context.torch_device), context)


def zeros(shape: Any, ctx: Context | None = None, dtype: Any = None, stype: str | None = None) -> NDArray:
    """An array of zeros."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    made = invoke(
        _ZEROS.rule,
        "_zeros",
        _ZEROS.values({"shape": sizes, "ctx": str(ctx or current_context()), "dtype": type_text(dtype)}),
        [],
    )[0]
    return made if stype in (None, "default") else as_stored(made, str(stype))


_ZEROS = operator("_zeros")


def type_text(dtype: Any) -> str:
    """The name of a type, however it is given."""
    return str(torch_type(dtype)).removeprefix("torch.")


def from_torch(tensor: Tensor) -> NDArray:
    """An array over the memory of a torch tensor: a write to one is seen in the other."""
    context = cpu() if tensor.device.type == "cpu" else Context("gpu", tensor.device.index or 0)
    return ready(tensor.detach(), context, external=True)


def to_torch(source: NDArray) -> Tensor:
    """A torch tensor over the memory of an array: waits until it is computed."""
    source.wait_to_read()
    if not source._chunk.external:
        source._chunk.own()
        source._chunk.external = True
    return source.part()
