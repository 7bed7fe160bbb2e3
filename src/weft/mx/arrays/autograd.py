"""Record operators and differentiate them: `record`, `pause`, `backward`, `grad`, `Function`."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from weft.mx.arrays import queue
from weft.mx.arrays.gradients import backward as _backward
from weft.mx.arrays.gradients import gradients
from weft.mx.arrays.handle import Chunk
from weft.mx.arrays.ndarray import NDArray, ready
from weft.mx.arrays.tape import TapeNode, Variable, entry_to_record, modes
from weft.mx.base.context import Context
from weft.mx.base.numpy_mode import is_np_array

__all__ = [
    "Function",
    "backward",
    "grad",
    "is_recording",
    "is_training",
    "mark_variables",
    "pause",
    "predict_mode",
    "record",
    "set_recording",
    "set_training",
    "train_mode",
]


def is_recording() -> bool:
    """Whether operators are recorded."""
    return modes.recording


def is_training() -> bool:
    """Whether operators behave as they do in training."""
    return modes.training


def set_recording(is_recording: bool) -> bool:  # MXNet's signature
    """Begin or end recording; gives what was before."""
    before, modes.recording = modes.recording, bool(is_recording)
    return before


def set_training(train_mode: bool) -> bool:  # MXNet's signature
    """Begin or end training; gives what was before."""
    before, modes.training = modes.training, bool(train_mode)
    return before


class _Scope:
    """A `with` block in which recording or training are otherwise."""

    def __init__(self, recording: bool | None, training: bool | None) -> None:
        self._wanted = recording, training
        self._before: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        self._before.append((modes.recording, modes.training))
        recording, training = self._wanted
        modes.recording = modes.recording if recording is None else recording
        modes.training = modes.training if training is None else training

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        modes.recording, modes.training = self._before.pop()


def record(train_mode: bool = True) -> _Scope:
    """A block whose operators are recorded."""
    return _Scope(True, train_mode)


def pause(train_mode: bool = False) -> _Scope:
    """A block whose operators are not recorded."""
    return _Scope(False, train_mode)


def train_mode() -> _Scope:
    """A block in training behaviour."""
    return _Scope(None, True)


def predict_mode() -> _Scope:
    """A block in the behaviour of prediction."""
    return _Scope(None, False)


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def mark_variables(variables: Any, gradients: Any, grad_reqs: Any = "write") -> None:
    """Let backwards write the gradients of some arrays into others."""
    arrays, grads = _listed(variables), _listed(gradients)
    requests = grad_reqs if isinstance(grad_reqs, (list, tuple)) else [grad_reqs] * len(arrays)
    for array, grad_array, request in zip(arrays, grads, requests, strict=True):
        array.entry = None
        array.variable = Variable(grad_array, request)


def backward(heads: Any, head_grads: Any = None, retain_graph: bool = False, train_mode: bool = True) -> None:
    """Write gradients of what the heads were made of into `grad` of the variables."""
    given = None if head_grads is None else _listed(head_grads)
    _backward(_listed(heads), given, retain_graph, train_mode)


def grad(
    heads: Any,
    variables: Any,
    head_grads: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    train_mode: bool = True,  # noqa: ARG001
) -> Any:
    """Give the gradients of some variables as new arrays."""
    return gradients(  # a list, also of one variable
        _listed(heads),
        _listed(variables),
        None if head_grads is None else _listed(head_grads),
        retain_graph=create_graph if retain_graph is None else retain_graph,
        create_graph=create_graph,
    )


class Function:
    """An operator with a gradient of the user's: `forward` and `backward` take and give NDArrays."""

    def __init__(self) -> None:
        self._saved: tuple[NDArray, ...] = ()

    def save_for_backward(self, *args: NDArray) -> None:
        """Keep arrays for `backward`."""
        self._saved = args

    @property
    def saved_tensors(self) -> tuple[NDArray, ...]:
        """What was kept."""
        return self._saved

    def forward(self, *inputs: NDArray) -> Any:
        """Compute the outputs."""
        raise NotImplementedError

    def backward(self, *output_grads: NDArray) -> Any:
        """Compute the gradients of the inputs."""
        raise NotImplementedError

    def __call__(self, *inputs: NDArray) -> Any:
        """Run it, and record it."""
        if not modes.recording:
            return self.forward(*inputs)
        views = [_as_now(array) for array in inputs]
        with _Scope(False, None):
            outputs = self.forward(*views)
        for array, view in zip(inputs, views, strict=True):
            if view.version:
                view.copyto(array)
        entries = [entry_to_record(array) for array in inputs]
        parents = [entry[0] for entry in entries if entry is not None]
        if not parents:
            return outputs
        given = _listed(outputs)
        node = TapeNode(parents)
        made = [array.part_class(Chunk(array.context), array.shape, array._dtype) for array in given]
        node.versions = (0,) * len(made)
        for place, array in enumerate(made):
            array.entry = (node, place)
        contexts = [array.context for array in given]

        def run() -> None:
            tensors = [
                array.shared() if entry is None else entry[0].value(entry[1])
                for array, entry in zip(inputs, entries, strict=True)
            ]
            with torch.enable_grad():
                found = _Given.apply(self, contexts, [array.shared() for array in given], *tensors)  # type: ignore[no-untyped-call]
            node.values = found
            for array, tensor in zip(made, found, strict=True):
                array.write(tensor, aliased=True)

        orders = [array.order for array in (*inputs, *given)]
        queue.push(run, orders, [array.order for array in made], type(self).__name__)
        return made if isinstance(outputs, (list, tuple)) else made[0]


def _as_now(array: NDArray) -> NDArray:
    """An array of the elements that another has now, for a `backward` that reads them after it was written."""
    made = array.part_class(Chunk(array.context), array.shape, array._dtype)
    queue.push(lambda: made.write(array.shared(), aliased=True), [array.order], [made.order], "an input as it is now")
    return made


class _Given(torch.autograd.Function):
    """Values that are there, whose gradient the user's `backward` computes."""

    @staticmethod
    def forward(
        ctx: Any, function: Function, contexts: Sequence[Context], values: Sequence[Tensor], *inputs: Tensor
    ) -> Any:
        ctx.function, ctx.contexts, ctx.count = function, contexts, len(inputs)
        return tuple(value.clone() for value in values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        arrays = [ready(grad.contiguous(), context) for grad, context in zip(grads, ctx.contexts, strict=True)]
        arrays = [array.as_np_ndarray() for array in arrays] if is_np_array() else arrays
        with _Scope(False, None):
            found = _listed(ctx.function.backward(*arrays))
        for array in found:
            array.wait_to_read()
        return (None, None, None, *[array.raw() for array in found])
