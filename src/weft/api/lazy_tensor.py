"""A value that is still being computed -> a tensor that Python code can pass on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from weft.api.lazy_values import Value
from weft.trace.capture import make_placeholder


class LazyTensor(torch.Tensor):
    """A tensor whose elements may not be there yet; looking at them waits.

    It has no memory of its own. Python's calls arrive at `__torch_function__`; what reaches PyTorch in another way
    arrives at `__torch_dispatch__`, and gets the finished tensor in its place.
    """

    __slots__ = ("value",)
    value: Value
    on_function: ClassVar[Callable[[Any, Any, Any], Any]]
    on_operator: ClassVar[Callable[[Any, Any, Any], Any]]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A function of PyTorch is called with a lazy tensor, outside a lazy block."""
        return LazyTensor.on_function(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # PyTorch calls it so, and declares it otherwise
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """An operator reached a lazy tensor past Python's interface."""
        return LazyTensor.on_operator(func, args, kwargs or {})


def lazy_tensor(value: Value) -> LazyTensor:
    """The tensor that stands for a value."""
    look = value.look
    # By position: names take PyTorch a quarter longer.
    made: LazyTensor = make_placeholder(
        LazyTensor, look.shape, look.strides, None, None, look.dtype, torch.strided, look.device
    )
    made.value = value
    return made
