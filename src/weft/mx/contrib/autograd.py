"""Record and differentiate as before `mx.autograd`: `mx.contrib.autograd`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from weft.mx.arrays import autograd, nd
from weft.mx.arrays.autograd import mark_variables
from weft.mx.arrays.ndarray import NDArray

__all__ = [
    "TrainingStateScope",
    "backward",
    "compute_gradient",
    "grad",
    "grad_and_loss",
    "mark_variables",
    "set_is_training",
    "test_section",
    "train_section",
]


def set_is_training(is_train: bool) -> bool:
    """Begin or end both training and recording; gives whether operators were recorded before."""
    autograd.set_training(is_train)
    return autograd.set_recording(is_train)


class TrainingStateScope:
    """A `with` block in which operators are recorded as in training, or not."""

    def __init__(self, enter_state: bool) -> None:
        self._inside = enter_state
        self._outside: bool | None = None

    def __enter__(self) -> None:
        self._outside = set_is_training(self._inside)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._outside is not None and self._outside != self._inside:
            set_is_training(self._outside)


def train_section() -> TrainingStateScope:
    """A block of training."""
    return TrainingStateScope(True)


def test_section() -> TrainingStateScope:
    """A block of prediction, within one of training."""
    return TrainingStateScope(False)


def backward(outputs: Sequence[NDArray], out_grads: Any = None, retain_graph: bool = False) -> None:
    """Write gradients of what the outputs were made of into those of the variables."""
    if not isinstance(outputs, (list, tuple)):
        raise AssertionError("outputs must be a list or tuple of NDArrays")  # noqa: TRY004  # MXNet's
    if out_grads is not None and len(out_grads) != len(outputs):
        raise AssertionError("outputs and out_grads must have the same length")
    autograd.backward(outputs, out_grads, retain_graph)


def compute_gradient(outputs: Sequence[NDArray]) -> None:
    """Write the gradients of outputs."""
    backward(outputs)


def grad_and_loss(func: Callable[..., Any], argnum: int | list[int] | None = None) -> Callable[..., Any]:
    """A function that gives the gradients of its arguments, or of some of them, and the outputs."""

    @functools.wraps(func)
    def wrapped(*args: Any) -> tuple[list[NDArray], Any]:
        places = range(len(args)) if argnum is None else argnum if isinstance(argnum, list) else [argnum]
        variables = [args[place] for place in places]
        for variable in variables:
            if not isinstance(variable, NDArray):
                raise AssertionError("type of autograd input should NDArray.")  # noqa: TRY004  # MXNet's
        gradients = [nd.zeros_like(variable) for variable in variables]
        mark_variables(variables, gradients)
        with train_section():
            outputs = func(*args)
        compute_gradient([outputs] if isinstance(outputs, NDArray) else outputs)
        return gradients, outputs

    return wrapped


def grad(func: Callable[..., Any], argnum: int | list[int] | None = None) -> Callable[..., Any]:
    """A function that gives the gradients of its arguments, or of some of them."""
    both = grad_and_loss(func, argnum)

    @functools.wraps(both)
    def wrapped(*args: Any) -> Any:
        return both(*args)[0]

    return wrapped
