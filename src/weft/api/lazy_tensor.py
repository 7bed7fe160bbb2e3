"""A value that is still being computed -> a tensor that Python code can pass on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from weft.api.lazy_values import CPU, Look, Value
from weft.runtime.lazy_calls import placeholder_maker, slot_offset
from weft.runtime.tensor_words import probed
from weft.trace.capture import make_placeholder, without_functions


class LazyTensor(torch.Tensor):
    """A tensor whose elements may not be there yet; looking at them waits.

    It has no memory of its own. Python's calls arrive at `__torch_function__`; what reaches PyTorch in another way
    arrives at `__torch_dispatch__`, and gets the finished tensor in its place.
    """

    __slots__ = ("value",)
    value: Value
    on_function: ClassVar[Callable[[Any, Any, Any], Any]]
    on_operator: ClassVar[Callable[[Any, Any, Any], Any]]

    def __getattr__(self, name: str) -> Any:
        """Say what eager says of an attribute that no tensor has."""
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")

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
    make = value.look.make
    if make is None:
        make = value.look.make = _maker(value.look)
    return make(value)  # type: ignore[no-any-return]


@probed
def _value_offset() -> int | None:
    return slot_offset(LazyTensor, "value")


def _maker(look: Look) -> Callable[[Value], Any]:
    """What makes lazy tensors of a look."""

    def empty() -> LazyTensor:
        # By position: names take PyTorch a quarter longer.
        return make_placeholder(  # type: ignore[no-any-return]
            LazyTensor, look.shape, look.strides, None, None, look.dtype, torch.strided, look.device
        )

    def with_value(value: Value) -> LazyTensor:
        made = empty()
        made.value = value
        return made

    with without_functions():
        return (placeholder_maker(empty(), _value_offset()) if look.device == CPU else None) or with_value
