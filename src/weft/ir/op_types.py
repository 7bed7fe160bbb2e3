"""Infer the type of an op's result from the types of its operands and its attributes.

A rule is called with the operands' types and the attributes (already known to be of the right kind) and raises
UsageError where they do not fit. Results are row-major; a Graph may declare other strides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from weft.errors import UsageError
from weft.ir.types import DTYPE_NAMES, NOTHING, NothingType, NumberType, TensorType, TupleType, Type, contiguous

Attributes = Mapping[str, Any]
TypeRule = Callable[[Sequence[Type], Attributes], Type]

FLOATING = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})
BOOLEAN = frozenset({torch.bool})
ARITHMETIC = FLOATING | INTEGERS
BITS = INTEGERS | BOOLEAN
REAL = ARITHMETIC | BOOLEAN


def tensor_types(operands: Sequence[Type]) -> list[TensorType]:
    """Check that all operands are tensors on one device."""
    tensors: list[TensorType] = []
    for position, operand in enumerate(operands):
        if not isinstance(operand, TensorType):
            raise UsageError(f"operand {position} is {operand}, not a tensor")
        tensors.append(operand)
    if len({tensor.device for tensor in tensors}) > 1:
        raise UsageError(f"operands on different devices: {listed(tensors)}")
    return tensors


def listed(types: Sequence[Type]) -> str:
    """Name types in a message."""
    return ", ".join(map(str, types))


def check_dtype(tensor: TensorType, allowed: frozenset[torch.dtype]) -> None:
    """Check that a tensor's dtype is one of those an op computes in."""
    if tensor.dtype not in allowed:
        names = " ".join(sorted(DTYPE_NAMES[dtype] for dtype in allowed))
        raise UsageError(f"does not take {DTYPE_NAMES[tensor.dtype]}, only {names}")


def check_alike(tensors: Sequence[TensorType]) -> None:
    """Check that operands have one shape and one dtype: broadcasting and promotion are values of their own."""
    if len({tensor.shape for tensor in tensors}) > 1:
        raise UsageError(f"operands differ in shape: {listed(tensors)}", fix="make the broadcast explicit with expand")
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise UsageError(f"operands differ in dtype: {listed(tensors)}", fix="make the promotion explicit with cast")


def check_dimension(dimension: int, rank: int) -> None:
    """Check that a dimension counts from the front and exists."""
    if not 0 <= dimension < rank:
        raise UsageError(f"dimension {dimension} of a tensor with {rank} dimensions")


def check_dimensions(dimensions: tuple[int, ...], rank: int) -> None:
    """Check a set of dimensions: each exists, none twice."""
    for dimension in dimensions:
        check_dimension(dimension, rank)
    if len(set(dimensions)) != len(dimensions):
        raise UsageError(f"a dimension is named twice in {list(dimensions)}")


def per_dimension(attributes: Attributes, names: Sequence[str], rank: int) -> list[tuple[int, ...]]:
    """Take attributes that hold one integer for each dimension."""
    found = [tuple(attributes[name]) for name in names]
    for name, numbers in zip(names, found, strict=True):
        if len(numbers) != rank:
            raise UsageError(f"{name} has {len(numbers)} numbers for {rank} dimensions")
    return found


def same_type(allowed: frozenset[torch.dtype]) -> TypeRule:
    """Make the rule of elementwise ops whose result has the type of the operands."""

    def rule(operands: Sequence[Type], attributes: Attributes) -> Type:
        del attributes
        tensors = tensor_types(operands)
        check_alike(tensors)
        check_dtype(tensors[0], allowed)
        return contiguous(tensors[0].dtype, tensors[0].shape, tensors[0].device)

    return rule


def truth_type(allowed: frozenset[torch.dtype]) -> TypeRule:
    """Make the rule of elementwise ops that answer a question about the operands."""
    same = same_type(allowed)

    def rule(operands: Sequence[Type], attributes: Attributes) -> Type:
        [like] = tensor_types([same(operands, attributes)])
        return contiguous(torch.bool, like.shape, like.device)

    return rule


def select_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """A condition and two choices of one type."""
    del attributes
    condition, *choices = tensor_types(operands)
    check_alike(choices)
    check_dtype(condition, BOOLEAN)
    if condition.shape != choices[0].shape:
        raise UsageError(f"the condition differs in shape: {listed([condition, *choices])}")
    return contiguous(choices[0].dtype, choices[0].shape, choices[0].device)


def cast_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """The same shape in another dtype."""
    [tensor] = tensor_types(operands)
    dtype = attributes["dtype"]
    if tensor.dtype.is_complex and not dtype.is_complex:
        raise UsageError(f"cast from {DTYPE_NAMES[tensor.dtype]} to {DTYPE_NAMES[dtype]} would drop the imaginary part")
    return contiguous(dtype, tensor.shape, tensor.device)


def iota_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """A shape filled with positions along one dimension."""
    del operands
    shape = attributes["shape"]
    check_shape(shape)
    check_dimension(attributes["dimension"], len(shape))
    result = contiguous(attributes["dtype"], shape)
    check_dtype(result, ARITHMETIC)
    return result


def scalar_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """A tensor of no dimensions."""
    [number] = operands
    if not isinstance(number, NumberType):
        raise UsageError(f"operand 0 is {number}, not a number")
    return contiguous(attributes["dtype"], ())


def check_shape(shape: tuple[int, ...]) -> None:
    """Check that sizes are not negative."""
    if any(extent < 0 for extent in shape):
        raise UsageError(f"a shape with a negative size: {list(shape)}")


def reduced_shape(shape: tuple[int, ...], dimensions: tuple[int, ...], *, keep: bool) -> tuple[int, ...]:
    """The shape that is left when dimensions are reduced; `keep` leaves them with size 1."""
    if keep:
        return tuple(1 if dimension in dimensions else extent for dimension, extent in enumerate(shape))
    return tuple(extent for dimension, extent in enumerate(shape) if dimension not in dimensions)


def reduction_type(allowed: frozenset[torch.dtype], *, of_nothing: bool) -> TypeRule:
    """Make the rule of reductions; `of_nothing` says whether no elements at all have a result."""

    def rule(operands: Sequence[Type], attributes: Attributes) -> Type:
        [tensor] = tensor_types(operands)
        check_dtype(tensor, allowed)
        dimensions = attributes["dimensions"]
        check_dimensions(dimensions, tensor.rank)
        if not of_nothing and any(tensor.shape[dimension] == 0 for dimension in dimensions):
            raise UsageError(f"no elements to reduce in dimensions {list(dimensions)} of {tensor}")
        shape = reduced_shape(tensor.shape, dimensions, keep=attributes["keep"])
        return contiguous(tensor.dtype, shape, tensor.device)

    return rule


def position_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """The place of an extreme along one dimension, or in the whole tensor."""
    [tensor] = tensor_types(operands)
    check_dtype(tensor, ARITHMETIC)
    dimension = attributes["dimension"]
    dimensions = tuple(range(tensor.rank)) if dimension is None else (dimension,)
    check_dimensions(dimensions, tensor.rank)
    if any(tensor.shape[dimension] == 0 for dimension in dimensions):
        raise UsageError(f"no elements to look through in {tensor}")
    return contiguous(torch.int64, reduced_shape(tensor.shape, dimensions, keep=attributes["keep"]), tensor.device)


def reshape_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """As many elements in another shape."""
    [tensor] = tensor_types(operands)
    check_shape(attributes["shape"])
    result = contiguous(tensor.dtype, attributes["shape"], tensor.device)
    if result.size != tensor.size:
        raise UsageError(f"{tensor} has {tensor.size} elements, the new shape {result.size}")
    return result


def permute_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """Dimensions in another order."""
    [tensor] = tensor_types(operands)
    [order] = per_dimension(attributes, ["order"], tensor.rank)
    check_dimensions(order, tensor.rank)
    return contiguous(tensor.dtype, tuple(tensor.shape[dimension] for dimension in order), tensor.device)


def expand_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """Dimensions of size 1 repeated, and new dimensions in front."""
    [tensor] = tensor_types(operands)
    shape = attributes["shape"]
    check_shape(shape)
    old = (1,) * (len(shape) - tensor.rank) + tensor.shape
    if len(old) != len(shape) or any(before not in (1, after) for before, after in zip(old, shape, strict=True)):
        raise UsageError(f"{tensor} does not expand to {list(shape)}")
    return contiguous(tensor.dtype, shape, tensor.device)


def slice_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """A part of every dimension."""
    [tensor] = tensor_types(operands)
    bounds = zip(tensor.shape, *per_dimension(attributes, ["start", "stop", "step"], tensor.rank), strict=True)
    shape = []
    for extent, start, stop, step in bounds:
        if not 0 <= start <= stop <= extent or step < 1:
            raise UsageError(f"slice {start}:{stop}:{step} of a dimension of size {extent}")
        shape.append(-((start - stop) // step))
    return contiguous(tensor.dtype, tuple(shape), tensor.device)


def pad_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """More elements at both ends of every dimension."""
    [tensor] = tensor_types(operands)
    low, high = per_dimension(attributes, ["low", "high"], tensor.rank)
    if any(count < 0 for count in (*low, *high)):
        raise UsageError("a negative number of elements to pad", fix="use slice to take elements away")
    shape = tuple(sum(parts) for parts in zip(low, tensor.shape, high, strict=True))
    return contiguous(tensor.dtype, shape, tensor.device)


def concat_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """Tensors one after the other along a dimension."""
    tensors = tensor_types(operands)
    if not tensors:
        raise UsageError("nothing to concatenate")
    dimension = attributes["dimension"]
    first = tensors[0]
    check_dimension(dimension, first.rank)
    others = {(tensor.dtype, tensor.shape[:dimension], tensor.shape[dimension + 1 :]) for tensor in tensors}
    if len(others) > 1:
        raise UsageError(f"operands differ in more than dimension {dimension}: {listed(tensors)}")
    total = sum(tensor.shape[dimension] for tensor in tensors)
    shape = (*first.shape[:dimension], total, *first.shape[dimension + 1 :])
    return contiguous(first.dtype, shape, first.device)


def reverse_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """The same elements in reverse order along some dimensions."""
    [tensor] = tensor_types(operands)
    check_dimensions(attributes["dimensions"], tensor.rank)
    return contiguous(tensor.dtype, tensor.shape, tensor.device)


def top_places_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """Places of some elements of the last dimension."""
    [tensor] = tensor_types(operands)
    check_dtype(tensor, ARITHMETIC)
    check_dimension(0, tensor.rank)
    count: int = attributes["count"]
    if not 0 <= count <= tensor.shape[-1]:
        raise UsageError(f"{count} elements of {tensor.shape[-1]}")
    return contiguous(torch.int64, (*tensor.shape[:-1], count), tensor.device)


def check_index(index: TensorType, tensor: TensorType, dimension: int) -> None:
    """Check an index of gather or scatter: as many dimensions, none but `dimension` larger than the tensor's."""
    check_dtype(index, frozenset({torch.int64}))
    check_dimension(dimension, tensor.rank)
    if index.rank != tensor.rank:
        raise UsageError(f"the index {index} has not as many dimensions as {tensor}")
    pairs = zip(index.shape, tensor.shape, strict=True)
    if any(small > large for at, (small, large) in enumerate(pairs) if at != dimension):
        raise UsageError(f"the index {index} is larger than {tensor} outside of dimension {dimension}")


def gather_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """One element for each index."""
    tensor, index = tensor_types(operands)
    check_index(index, tensor, attributes["dimension"])
    return contiguous(tensor.dtype, index.shape, tensor.device)


def scatter_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """The first operand with elements replaced or added to."""
    tensor, index, source = tensor_types(operands)
    check_index(index, tensor, attributes["dimension"])
    if source.dtype != tensor.dtype or source.shape != index.shape:
        raise UsageError(f"the source {source} does not fit the index {index} and the tensor {tensor}")
    return contiguous(tensor.dtype, tensor.shape, tensor.device)


def take_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """Whole slices picked by a list of indices."""
    tensor, index = tensor_types(operands)
    dimension = attributes["dimension"]
    check_dimension(dimension, tensor.rank)
    check_dtype(index, frozenset({torch.int32, torch.int64}))
    if index.rank != 1:
        raise UsageError(f"the index {index} is not a list")
    shape = (*tensor.shape[:dimension], index.shape[0], *tensor.shape[dimension + 1 :])
    return contiguous(tensor.dtype, shape, tensor.device)


def no_type(operands: Sequence[Type], attributes: Attributes) -> NothingType:
    """The result of setting a random state: nothing."""
    del attributes
    [state] = tensor_types(operands)
    check_dtype(state, frozenset({torch.uint8}))
    return NOTHING


MOST_WINDOW_DIMENSIONS = 3
CONVOLVED = FLOATING | {torch.int32}  # integers are those of images of 8 bits, widened


def matmul_type(operands: Sequence[Type], attributes: Attributes) -> Type:
    """[..., m, k] times [..., k, n] with equal leading dimensions."""
    del attributes
    left, right = tensor_types(operands)
    fits = left.rank == right.rank >= 2 and left.shape[:-2] == right.shape[:-2] and left.shape[-1] == right.shape[-2]
    if not fits or left.dtype != right.dtype:
        raise UsageError(f"a product of {listed([left, right])}")
    check_dtype(left, ARITHMETIC)
    return contiguous(left.dtype, (*left.shape[:-1], right.shape[-1]), left.device)


def window_rank(tensor: TensorType, allowed: frozenset[torch.dtype] = FLOATING) -> int:
    """Number of dimensions that a window moves over: all but batch and channels."""
    check_dtype(tensor, allowed)
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
    rank = window_rank(data, CONVOLVED)
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
