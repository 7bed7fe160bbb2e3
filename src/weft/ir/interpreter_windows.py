"""Convolutions and pooling -> the plain PyTorch code that says what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from weft.ir.graph import Value

aten = torch.ops.aten
WINDOW = ("kernel_size", "stride", "padding")
MAX_POOL = (*WINDOW, "dilation", "ceil_mode")
AVERAGE_POOL = (*WINDOW, "ceil_mode", "count_include_pad", "divisor_override")
# PyTorch pools one dimension as two, of which the first has one element: the number that each attribute has for it.
FOR_ONE_ROW = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}


def convolution(value: Value, data: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A convolution without bias."""
    stride, padding, dilation, groups = _convolution_attributes(value)
    none = (0,) * len(stride)
    return torch.convolution(data, weight, None, stride, padding, dilation, False, none, groups)


def convolution_input_gradient(value: Value, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The gradient for the input; the input's elements do not matter, only its shape."""
    data = gradient.new_zeros(value.attributes["shape"])
    result: torch.Tensor = _convolution_backward(value, gradient, data, weight, wanted=(True, False, False))[0]
    return result


def convolution_weight_gradient(value: Value, data: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient for the weight; the weight's elements do not matter, only its shape."""
    weight = gradient.new_zeros(value.attributes["shape"])
    result: torch.Tensor = _convolution_backward(value, gradient, data, weight, wanted=(False, True, False))[1]
    return result


def _convolution_attributes(value: Value) -> tuple[Any, ...]:
    return tuple(value.attributes[name] for name in ("stride", "padding", "dilation", "groups"))


def _convolution_backward(
    value: Value, gradient: torch.Tensor, data: torch.Tensor, weight: torch.Tensor, *, wanted: tuple[bool, ...]
) -> Any:
    stride, padding, dilation, groups = _convolution_attributes(value)
    none = (0,) * len(stride)
    return aten.convolution_backward(
        gradient, data, weight, None, stride, padding, dilation, False, none, groups, list(wanted)
    )


def pooling(functions: Mapping[int, Callable[..., Any]], names: tuple[str, ...], extra: int = 0) -> Callable[..., Any]:
    """Make a rule of functions for two and three dimensions; the last `extra` operands follow the attributes."""

    def rule(value: Value, *operands: torch.Tensor) -> Any:
        one_row = operands[0].dim() == 3
        given = [_attribute(value, name, one_row=one_row) for name in names]
        tensors = [operand.unsqueeze(2) if one_row else operand for operand in operands]
        first = len(tensors) - extra
        result = functions[tensors[0].dim() - 2](*tensors[:first], *given, *tensors[first:])
        if not one_row:
            return result
        return tuple(part.squeeze(2) for part in result) if isinstance(result, tuple) else result.squeeze(2)

    return rule


def _attribute(value: Value, name: str, *, one_row: bool) -> Any:
    given = value.attributes[name]
    return (FOR_ONE_ROW[name], *given) if one_row and name in FOR_ONE_ROW else given


WINDOW_RULES: Mapping[str, Callable[..., Any]] = {
    "convolution": convolution,
    "convolution_input_gradient": convolution_input_gradient,
    "convolution_weight_gradient": convolution_weight_gradient,
    "max_pool": pooling({2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}, MAX_POOL),
    "max_pool_gradient": pooling(
        {2: aten.max_pool2d_with_indices_backward, 3: aten.max_pool3d_with_indices_backward}, MAX_POOL, extra=1
    ),
    "average_pool": pooling({2: aten.avg_pool2d, 3: aten.avg_pool3d}, AVERAGE_POOL),
    "average_pool_gradient": pooling({2: aten.avg_pool2d_backward, 3: aten.avg_pool3d_backward}, AVERAGE_POOL),
}
