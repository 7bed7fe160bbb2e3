"""A handle on elements that tasks of the engine compute, while Python goes on.

A `Chunk` is memory with the engine's variable that orders work on it. Whole writes put a new tensor in the place of the
old one; writes to a part copy first if another chunk or a recorded graph may see the same memory.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import torch
from torch import Tensor

from weft.engine import Var
from weft.mx.arrays.tape import IN_GRAPH, Entry, Variable, entry_of, modes
from weft.mx.base.context import Context
from weft.mx.base.element_types import numpy_type
from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import Shape

_FIRST = threading.Lock()  # On the other side: another thread that first queues work; it waits for nothing meanwhile.


class Chunk:
    """A piece of memory on a device: a tensor, what orders work on it, and who else may see it."""

    __slots__ = ("__weakref__", "aliased", "context", "external", "known_variable", "rows", "tensor", "version")

    def __init__(self, context: Context, tensor: Tensor | None = None) -> None:
        self.context = context
        self.tensor = tensor
        self.known_variable: Var | None = None  # until work on it is first queued there is nothing to order
        self.version = 0  # counts the writes that were queued
        self.aliased = False  # whether another chunk, or a recorded graph, may see this memory
        self.rows: Tensor | None = None  # those that count as stored in a sparse array; None: those that are not 0
        self.external = False  # whether torch tensors of the user share it: it is then always written in place

    @property
    def variable(self) -> Var:
        """What orders work on it."""
        found = self.known_variable
        if found is None:
            with _FIRST:
                found = self.known_variable
                if found is None:
                    found = self.known_variable = Var("an array")
        return found

    def own(self) -> Tensor:
        """The tensor, to be written in part."""
        tensor = self.tensor
        assert tensor is not None
        self.rows = None
        if self.external:
            return tensor
        if self.aliased or not tensor.is_contiguous():
            tensor = self.tensor = tensor.clone(memory_format=torch.contiguous_format)
            self.aliased = False
        return tensor

    def put(self, tensor: Tensor, *, aliased: bool) -> None:
        """Let a tensor take the place of the one before."""
        self.rows = None
        if self.external and self.tensor is not None:
            self.tensor.copy_(tensor)
        else:
            self.tensor = tensor
            self.aliased = aliased


class Handle:
    """What operators and gradients need of an array; `NDArray` adds what a user does with it."""

    __slots__ = ("__weakref__", "_begin", "_chunk", "_dtype", "_shape", "entry", "variable")
    is_numpy = False  # whether it is an array of `mx.np`: results of what it goes into are such, too

    def __init__(self, chunk: Chunk, shape: Shape, dtype: torch.dtype, begin: int = -1) -> None:
        self._chunk = chunk
        self._shape = shape
        self._dtype = dtype
        self._begin = begin  # of a part of the chunk: where it begins; -1 for the whole
        self.entry: Entry | None = None
        self.variable: Variable | None = None

    # What an array is.

    @property
    def shape(self) -> Shape:
        """The sizes."""
        return self._shape

    @property
    def dtype(self) -> Any:
        """The element type, as NumPy's class."""
        return numpy_type(self._dtype)

    @property
    def context(self) -> Context:
        """The device."""
        return self._chunk.context

    ctx = context

    @property
    def stype(self) -> str:
        """How elements are stored: all of them."""
        return "default"

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._shape)

    @property
    def grad(self) -> Any:
        """Where a backward writes the gradient."""
        return None if self.variable is None else self.variable.grad

    @property
    def version(self) -> int:
        """How many writes were queued."""
        return self._chunk.version

    @property
    def order(self) -> Var:
        """What orders work on it."""
        return self._chunk.variable

    # What tasks do with it, when it is computed.

    def raw(self) -> Tensor:
        """The elements, for a task that reads them."""
        tensor = self._chunk.tensor
        if tensor is None:  # the task that should have made them failed, and somebody was told
            return torch.zeros(self._shape, dtype=self._dtype, device=self.context.torch_device)
        if self._begin < 0:
            return tensor
        return tensor.reshape(-1).narrow(0, self._begin, self.size).reshape(self._shape)

    def shared(self) -> Tensor:
        """The elements, for one who will keep the tensor."""
        self._chunk.aliased = True
        return self.raw()

    def write(self, tensor: Tensor, *, aliased: bool = False) -> None:
        """Let elements be these, for a task that writes them."""
        if tensor.is_sparse:  # a gradient of rows that were looked up
            tensor = tensor.coalesce()
            self.write(tensor.to_dense())
            self._chunk.rows = tensor.indices()[0]
            return
        tensor = tensor.detach() if tensor.requires_grad else tensor
        if tensor.dtype != self._dtype:
            tensor, aliased = tensor.to(self._dtype), False
        if tuple(tensor.shape) != self._shape:
            tensor = tensor.reshape(self._shape) if tensor.numel() == self.size else tensor.expand(self._shape)
            aliased = True
        if self._begin < 0:
            self._chunk.put(tensor, aliased=aliased)
        else:
            self.part().copy_(tensor)

    def part(self) -> Tensor:
        """The elements, for a task that writes some of them in place."""
        if self._chunk.tensor is None:
            self._chunk.tensor = torch.zeros(self._shape, dtype=self._dtype, device=self.context.torch_device)
        tensor = self._chunk.own()
        if self._begin < 0:
            return tensor
        return tensor.view(-1).narrow(0, self._begin, self.size).view(self._shape)

    def written(self) -> None:
        """Note that a write is queued; what is recorded may not be written."""
        if modes.recording and entry_of(self) is not None:
            raise MXNetError(IN_GRAPH)
        self._chunk.version += 1
