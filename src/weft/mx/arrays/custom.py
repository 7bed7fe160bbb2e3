"""Run operators that users write in Python: `mx.operator.CustomOp`, its properties, and `nd.Custom`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.mx.arrays.autograd import Function, is_training
from weft.mx.arrays.ndarray import NDArray, zeros
from weft.mx.base.element_types import TYPE_NUMBERS, numpy_type, torch_type
from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import Shape, Sizes, computes

REGISTERED: dict[str, Callable[..., CustomOpProp]] = {}


class CustomOp:
    """An operator: `forward` and `backward` write into arrays that they are given."""

    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        """Compute the outputs."""

    def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
        """Compute the gradients of the inputs."""

    def assign(self, dst: NDArray, req: str, src: Any) -> None:
        """Write into an array, or add to it, as is asked for."""
        if req in ("write", "inplace"):
            dst[:] = src
        elif req == "add":
            dst[:] += src


class CustomOpProp:
    """What an operator takes and gives: names, sizes and types."""

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad

    def list_arguments(self) -> list[str]:
        """The names of the inputs."""
        return ["data"]

    def list_outputs(self) -> list[str]:
        """The names of the outputs."""
        return ["output"]

    def list_auxiliary_states(self) -> list[str]:
        """The names of what it changes."""
        return []

    def infer_shape(self, in_shape: Any) -> Any:
        """The sizes of inputs, outputs and auxiliary states."""
        return in_shape, [in_shape[0]] * len(self.list_outputs()), []

    def infer_type(self, in_type: Any) -> Any:
        """The types of inputs, outputs and auxiliary states."""
        count, states = len(self.list_outputs()), len(self.list_auxiliary_states())
        return in_type, [in_type[0]] * count, [in_type[0]] * states

    def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> CustomOp:  # noqa: ARG002
        """The operator for inputs of such sizes and types."""
        return CustomOp()


def register(reg_name: str) -> Callable[[type[CustomOpProp]], type[CustomOpProp]]:
    """Make an operator known by its name."""

    def note(kind: type[CustomOpProp]) -> type[CustomOpProp]:
        REGISTERED[reg_name] = kind
        return kind

    return note


class _Call(Function):
    """One call of an operator."""

    def __init__(self, operator: CustomOp, kinds: Sequence[tuple[Any, Any]], states: Sequence[NDArray]) -> None:
        super().__init__()
        self._operator, self._kinds, self._states = operator, kinds, list(states)

    def forward(self, *inputs: NDArray) -> Any:
        """Compute the outputs."""
        outputs = [zeros(shape, inputs[0].context, dtype) for shape, dtype in self._kinds]
        try:
            self._operator.forward(is_training(), ["write"] * len(outputs), list(inputs), outputs, self._states)
        except Exception as error:
            if isinstance(error, MXNetError):
                raise
            raise MXNetError(f"Error in CustomOp.forward: {type(error).__name__}: {error}") from error
        self.save_for_backward(*inputs, *outputs)
        return outputs

    def backward(self, *output_grads: NDArray) -> Any:
        """Compute the gradients of the inputs."""
        count = len(self.saved_tensors) - len(self._kinds)
        inputs, outputs = list(self.saved_tensors[:count]), list(self.saved_tensors[count:])
        gradients = [zeros(array.shape, array.context, array.dtype) for array in inputs]
        requests = ["write"] * count
        self._operator.backward(requests, list(output_grads), inputs, outputs, gradients, self._states)
        return gradients


def properties_of(op_type: str, options: Mapping[str, Any]) -> CustomOpProp:
    """What an operator that was registered says of itself, for its options as texts."""
    kind = REGISTERED.get(op_type)
    if kind is None:
        raise MXNetError(f"Cannot find custom operator {op_type}")
    return kind(**{key: str(value) for key, value in options.items()})


def custom_inputs(properties: CustomOpProp, inputs: Sequence[Any], given: dict[str, Any], kind: type) -> list[Any]:
    """The inputs of a call in the operator's order: those by place, then those by name, which leave `given`."""
    names = *properties.list_arguments()[len(inputs) :], *properties.list_auxiliary_states()
    return [*inputs, *(given.pop(name) for name in names if isinstance(given.get(name), kind))]


def _custom_properties(p: Any) -> CustomOpProp:
    return properties_of(p.op_type, json.loads(p.others))


def _custom_sizes(p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    if not sizes or not sizes[0]:
        return sizes
    given, _, _ = _custom_properties(p).infer_shape([list(shape or ()) for shape in sizes])
    return [tuple(shape) for shape in given]


@computes(
    "Custom",
    outputs=lambda p: len(_custom_properties(p).list_outputs()),
    mixed=True,
    by_python=True,
    complete=_custom_sizes,
)
def custom_kinds(p: Any, *tensors: Tensor) -> Any:
    """The sizes and types of what an operator gives; users' code runs with arrays, see `call_custom`."""
    if tensors and tensors[0].device.type != "meta":
        raise MXNetError(f"the custom operator {p.op_type} runs with arrays of weft.mx alone")
    properties = _custom_properties(p)
    shapes = properties.infer_shape([list(each.shape) for each in tensors])[1]
    types = properties.infer_type([numpy_type(each.dtype) for each in tensors])[1]
    return tuple(
        torch.empty(tuple(shape), dtype=torch_type(dtype), device="meta")
        for shape, dtype in zip(shapes, types, strict=True)
    )


def call_custom(*inputs: NDArray, op_type: str, name: str | None = None, **given: Any) -> Any:
    """Call an operator that was registered, with its options as texts."""
    _ = name
    options = {key: value for key, value in given.items() if not isinstance(value, NDArray)}
    properties = properties_of(op_type, options)
    inputs = tuple(custom_inputs(properties, inputs, given, NDArray))
    count = len(properties.list_arguments())
    data, states = inputs[:count], inputs[count:]
    kept = len(properties.list_auxiliary_states())
    if len(inputs) != count + kept:
        raise MXNetError(f"custom operator {op_type} takes {count + kept} inputs, not {len(inputs)}")
    shapes = properties.infer_shape([list(array.shape) for array in data])[1]
    types = properties.infer_type([array.dtype for array in data])[1]
    sizes = [list(array.shape) for array in data]
    dtypes = [TYPE_NUMBERS[np.dtype(array.dtype).name] for array in data]  # MXNet's numbers of them
    operator = properties.create_operator(data[0].context, sizes, dtypes)
    kinds = [(tuple(shape), dtype) for shape, dtype in zip(shapes, types, strict=True)]
    outputs = _Call(operator, kinds, states)(*data)
    return outputs[0] if len(outputs) == 1 else outputs
