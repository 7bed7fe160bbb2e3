"""PyTorch's convolutions, over lines, images and volumes, with their gradients -> small ops."""

from __future__ import annotations

from math import prod
from typing import Any

from weft.trace.lift.arguments import Arguments, Rules
from weft.trace.lift.expression import Expression
from weft.trace.lift.volumes import convolve_volumes, convolve_volumes_back, weigh_volumes

LINE, VOLUME = 1, 3  # the dimensions of a convolution over lines, and of one over volumes


def convolution_attributes(arguments: Arguments) -> dict[str, Any]:
    """How a window moves; one over lines is one over images of one row."""
    rank = arguments.tensor("weight").rank - 2
    found: dict[str, Any] = {name: arguments.integers(name, rank) for name in ("stride", "padding", "dilation")}
    if rank == LINE:
        found = {name: (0 if name == "padding" else 1, *sizes) for name, sizes in found.items()}
    return {**found, "groups": arguments.literal("groups")}


def as_images(x: Expression) -> Expression:
    """Lines as images of one row, which kernels are made for; images as they are."""
    return x.insert(2) if x.rank == LINE + 2 else x


def convolution(arguments: Arguments) -> Expression:
    """A convolution, plain or transposed, with its bias."""
    x, weight = (as_images(entry.wide()) for entry in arguments.tensors("input", "weight"))
    given, shape = convolution_attributes(arguments), arguments.result().shape
    if arguments.literal("transposed"):
        images = (*shape[:2], *(1,) * (x.rank - len(shape)), *shape[2:])
        found = convolved_back(x, weight, images, given)
    else:
        found = convolved(x, weight, given)
    found, bias = found.reshape(shape), arguments.maybe("bias")
    return found if bias is None else found + channels(bias.wide(), found.rank)


def convolved(x: Expression, weight: Expression, given: dict[str, Any]) -> Expression:
    """A convolution of images or volumes."""
    return convolve_volumes(x, weight, given) if of_volumes(x) else x.build("convolution", weight, **given)


def convolved_back(
    gradient: Expression, weight: Expression, shape: tuple[int, ...], given: dict[str, Any]
) -> Expression:
    """The gradient for what a convolution of images or volumes reads."""
    if of_volumes(gradient):
        return convolve_volumes_back(gradient, weight, shape, given)
    if of_one_pixel(gradient, weight, shape, given):
        seen = weight
        for dimension, padding in enumerate(given["padding"], 2):
            seen = seen.part(dimension, padding, padding + shape[dimension])
        flat = gradient.reshape(gradient.shape[:2]).matmul(seen.reshape((weight.shape[0], prod(shape[1:]))))
        return flat.reshape(shape)
    return gradient.build("convolution_input_gradient", weight, shape=shape, **given)


def of_one_pixel(gradient: Expression, weight: Expression, shape: tuple[int, ...], given: dict[str, Any]) -> bool:
    """Tell whether what a convolution reads gets something from one pixel only, by another place of the window each."""
    places = zip(shape[2:], weight.shape[2:], given["padding"], strict=True)
    inside = all(padding + extent <= size for extent, size, padding in places)
    return inside and set(gradient.shape[2:]) == {1} and given["groups"] == 1 and set(given["dilation"]) == {1}


def weighed(x: Expression, gradient: Expression, shape: tuple[int, ...], given: dict[str, Any]) -> Expression:
    """The gradient for the weight of a convolution of images or volumes."""
    if of_volumes(x):
        return weigh_volumes(x, gradient, shape, given)
    return x.build("convolution_weight_gradient", gradient, shape=shape, **given)


def of_volumes(x: Expression) -> bool:
    """Tell whether a batch is one of volumes."""
    return x.rank == VOLUME + 2


def channels(x: Expression, rank: int) -> Expression:
    """One number for each channel as a tensor that broadcasts."""
    return x.reshape((1, *x.shape, *(1,) * (rank - 2)))


def convolution_gradient(arguments: Arguments) -> tuple[Expression | None, ...]:
    """The gradients for input, weight and bias."""
    entries = arguments.tensors("grad_output", "input", "weight")
    gradient, x, weight = (as_images(entry.wide()) for entry in entries)
    given = convolution_attributes(arguments)
    for_input = for_weight = for_bias = None
    transposed = arguments.literal("transposed")
    if arguments.wanted(0):
        if transposed:
            for_input = convolved(gradient, weight, given)
        else:
            for_input = convolved_back(gradient, weight, x.shape, given)
        for_input = for_input.reshape(entries[1].shape)
    if arguments.wanted(1):
        left, right = (gradient, x) if transposed else (x, gradient)
        for_weight = weighed(left, right, weight.shape, given)
        for_weight = for_weight.reshape(entries[2].shape)
    if arguments.wanted(2):
        for_bias = gradient.sum([0, *range(2, gradient.rank)])
    return for_input, for_weight, for_bias


CONVOLUTIONS: Rules = {
    "aten.convolution.default": convolution,
    "aten.convolution_backward.default": convolution_gradient,
}
