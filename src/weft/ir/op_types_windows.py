"""Operand types -> the result type of products, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.errors import UsageError
from weft.ir.op_types import ARITHMETIC, FLOATING, Attributes, check_dtype, check_shape, listed, tensor_types
from weft.ir.types import TensorType, TupleType, Type, contiguous

MOST_WINDOW_DIMENSIONS = 3


def matmul_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """[..., m, k] times [..., k, n] with equal leading dimensions."""
    del attributes
    left, right = tensor_types(operands)
    fits = left.rank == right.rank >= 2 and left.shape[:-2] == right.shape[:-2] and left.shape[-1] == right.shape[-2]
    if not fits or left.dtype != right.dtype:
        raise UsageError(f"a product of {listed([left, right])}")
    check_dtype(left, ARITHMETIC)
    return contiguous(left.dtype, (*left.shape[:-1], right.shape[-1]), left.device)


def window_rank(tensor: TensorType) -> int:
    """Number of dimensions that a window moves over: all but batch and channels."""
    check_dtype(tensor, FLOATING)
    rank = tensor.rank - 2
    if not 1 <= rank <= MOST_WINDOW_DIMENSIONS:
        raise UsageError(f"{tensor} is not a batch of channels with 1 to {MOST_WINDOW_DIMENSIONS} dimensions each")
    return rank


def window_attributes(attributes: Attributes, names: Sequence[str], rank: int) -> list[tuple[int, ...]]:
    """Take attributes with one number for each window dimension; only a padding may be 0."""
    found = [tuple(attributes[name]) for name in names]
    for name, numbers in zip(names, found, strict=True):
        least = 0 if name == "padding" else 1
        if len(numbers) != rank or min(numbers) < least:
            raise UsageError(f"{name} is {list(numbers)}, not {rank} numbers of at least {least}")
    return found


def convolved_shape(data: TensorType, weight: TensorType, attributes: Attributes) -> tuple[int, ...]:
    """The shape that a convolution gives; checks that its operands and attributes fit."""
    rank = window_rank(data)
    strides, paddings, dilations = window_attributes(attributes, ("stride", "padding", "dilation"), rank)
    groups = attributes["groups"]
    if weight.rank != data.rank or weight.dtype != data.dtype:
        raise UsageError(f"a convolution of {listed([data, weight])}")
    if groups < 1 or weight.shape[1] * groups != data.shape[1] or weight.shape[0] % groups:
        raise UsageError(f"channels of {listed([data, weight])} do not fit {groups} groups")
    sizes = []
    windows = zip(data.shape[2:], weight.shape[2:], strides, paddings, dilations, strict=True)
    for extent, kernel, stride, padding, dilation in windows:
        room = extent + 2 * padding - dilation * (kernel - 1) - 1
        if room < 0 or kernel < 1:
            raise UsageError(f"a window of {kernel} (dilation {dilation}) in {extent} elements padded by {padding}")
        sizes.append(room // stride + 1)
    return (data.shape[0], weight.shape[0], *sizes)


def convolution_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """[n, c, ...] with weight [o, c / groups, ...]."""
    data, weight = tensor_types(operands)
    return contiguous(data.dtype, convolved_shape(data, weight, attributes), data.device)


def convolution_input_gradient_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """The gradient for a convolution's input of the given shape."""
    gradient, weight = tensor_types(operands)
    check_shape(attributes["shape"])
    data = contiguous(weight.dtype, attributes["shape"], weight.device)
    return _gradient_type(gradient, (data, weight), data, attributes)


def convolution_weight_gradient_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """The gradient for a convolution's weight of the given shape."""
    data, gradient = tensor_types(operands)
    check_shape(attributes["shape"])
    weight = contiguous(data.dtype, attributes["shape"], data.device)
    return _gradient_type(gradient, (data, weight), weight, attributes)


def _gradient_type(
    gradient: TensorType, operands: tuple[TensorType, TensorType], result: TensorType, attributes: Attributes
) -> TensorType:
    expected = convolved_shape(*operands, attributes)
    if gradient.shape != expected or gradient.dtype != result.dtype:
        raise UsageError(f"the gradient {gradient} is not of the convolution's shape {list(expected)}")
    return result


def pooled_shape(data: TensorType, attributes: Attributes, dilation: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """The shape that pooling gives; with ceil_mode a last window may reach past the end, if it starts before it."""
    rank = window_rank(data)
    kernels, strides, paddings = window_attributes(attributes, ("kernel_size", "stride", "padding"), rank)
    sizes = []
    windows = zip(data.shape[2:], kernels, strides, paddings, dilation or (1,) * rank, strict=True)
    for extent, kernel, stride, padding, spread in windows:
        reach = spread * (kernel - 1) + 1
        room = extent + 2 * padding - reach + (stride - 1 if attributes["ceil_mode"] else 0)
        if room < 0 or padding * 2 > kernel:
            raise UsageError(f"a window of {kernel} (dilation {spread}) in {extent} elements padded by {padding}")
        size = room // stride + 1
        if attributes["ceil_mode"] and (size - 1) * stride >= extent + padding:
            size -= 1
        sizes.append(size)
    return (*data.shape[:2], *sizes)


def max_pool_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """The largest elements, and where in each plane they were."""
    [data] = tensor_types(operands)
    [dilation] = window_attributes(attributes, ("dilation",), window_rank(data))
    shape = pooled_shape(data, attributes, dilation)
    return TupleType((contiguous(data.dtype, shape, data.device), contiguous(torch.int64, shape, data.device)))


def max_pool_gradient_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """The gradient for the input of max_pool."""
    gradient, data, indices = tensor_types(operands)
    [dilation] = window_attributes(attributes, ("dilation",), window_rank(data))
    expected = pooled_shape(data, attributes, dilation)
    if gradient.shape != expected or indices.shape != expected or gradient.dtype != data.dtype:
        raise UsageError(f"{listed([gradient, data, indices])} do not fit; pooling gives {list(expected)}")
    check_dtype(indices, frozenset({torch.int64}))
    return contiguous(data.dtype, data.shape, data.device)


def check_divisor(attributes: Attributes) -> None:
    """Check that a divisor given in place of the window's size divides."""
    if attributes["divisor_override"] == 0:
        raise UsageError("divisor_override is 0")


def average_pool_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """The mean of every window."""
    [data] = tensor_types(operands)
    check_divisor(attributes)
    return contiguous(data.dtype, pooled_shape(data, attributes), data.device)


def average_pool_gradient_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """The gradient for the input of average_pool."""
    gradient, data = tensor_types(operands)
    check_divisor(attributes)
    expected = pooled_shape(data, attributes)
    if gradient.shape != expected or gradient.dtype != data.dtype:
        raise UsageError(f"{listed([gradient, data])} do not fit; pooling gives {list(expected)}")
    return contiguous(data.dtype, data.shape, data.device)
