"""A value that is still being computed -> a tensor that Python code can pass on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from weft.lazy_tensors.values import CPU, Look, Value
from weft.runtime.lazy_calls import placeholder_maker
from weft.trace.interception.capture import (
    has_gradient_hooks,
    make_placeholder,
    references_of_pytorch,
    swap_tensors,
    without_functions,
)


class LazyTensor(torch.Tensor):
    """A tensor whose elements may not be there yet; looking at them waits.

    It has no memory of its own. Python's calls arrive at `__torch_function__`; what reaches PyTorch in another way
    arrives at `__torch_dispatch__`, and gets the finished tensor in its place.
    """

    value: Value  # no slot: a finished one becomes an ordinary tensor, whose objects have none
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


OWN_REFERENCES = 3  # to a tensor: of its value, of the function below, and of what counts them


def become_ordinary(tensor: LazyTensor) -> bool:
    """Let a lazy tensor be the ordinary one that it stands for, which only its value may hold; tell whether it is."""
    value = tensor.value
    real = value.real
    if real is None or real.__class__ is not torch.Tensor:
        return False
    with without_functions():
        if sys.getrefcount(real) > OWN_REFERENCES + references_of_pytorch(real):
            return False
        if vars(real) or has_gradient_hooks(real):
            return False  # what others have noted of the object would be lost
        swap_tensors(tensor, real)
        value.real = tensor
        tensor.__class__ = torch.Tensor  # type: ignore[assignment]
        del tensor.value
    return True


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
        return (placeholder_maker(empty(), "value") if look.device == CPU else None) or with_value
