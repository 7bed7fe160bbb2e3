"""Lift convolutions and their gradients; those of volumes become convolutions of images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import add
from typing import Any

from weft.trace.lift.arguments import Arguments, Rules
from weft.trace.lift.expression import Expression

# A volume of channels is an image for each place of the window's front: its channels are those of all layers that the
# window sees from there. Kernels are made for images; they then add up one long sum, and know the 3x3 windows that
# Winograd's way is for. Where windows have one row and one column, layers are rows of images and nothing is copied.

DEPTH = 2  # the dimension of a volume's layers
LAYERS_FIRST = (0, 2, 1, 3, 4)  # of a batch of volumes: exchanges layers and channels, either way
IMAGE_SIDES = 2


@dataclass(frozen=True)
class Volumes:
    """How a window moves over volumes of this shape; it is the shape of what a convolution reads, not of its result."""

    shape: tuple[int, ...]
    weight: tuple[int, ...]
    given: dict[str, Any]

    @property
    def layers(self) -> int:
        """Count the layers of the result."""
        padding, stride, dilation = self.moves_in_depth
        return (self.shape[DEPTH] + 2 * padding - dilation * (self.weight[DEPTH] - 1) - 1) // stride + 1

    @property
    def moves_in_depth(self) -> tuple[int, int, int]:
        """Give padding, stride and dilation in depth."""
        padding, stride, dilation = (self.given[name][0] for name in ("padding", "stride", "dilation"))
        return padding, stride, dilation

    @property
    def by_layers(self) -> bool:
        """Whether groups have one channel: then each layer of the window is a depthwise convolution."""
        return bool(self.given["groups"] > 1) and self.weight[1] == 1

    @property
    def of_columns(self) -> bool:
        """Whether windows have one row and one column and go to each place: layers are then rows of images."""
        sides = zip(self.weight[-IMAGE_SIDES:], self.given["stride"][1:], self.given["padding"][1:], strict=True)
        return all(side == (1, 1, 0) for side in sides)

    @property
    def image_attributes(self) -> dict[str, Any]:
        """Give how the window moves over the images."""
        moves = {name: self.given[name][1:] for name in ("stride", "padding", "dilation")}
        return {**moves, "groups": self.given["groups"]}

    @property
    def column_attributes(self) -> dict[str, Any]:
        """Give how the window moves over images whose rows are layers."""
        moves = {name: (self.given[name][0], self.given[name][1]) for name in ("stride", "padding", "dilation")}
        return {**moves, "groups": self.given["groups"]}


def convolve_volumes(x: Expression, weight: Expression, given: dict[str, Any]) -> Expression:
    """A convolution of volumes without bias."""
    window = Volumes(x.shape, weight.shape, given)
    if window.of_columns:
        found = _flat(x).build("convolution", _flat(weight), **window.column_attributes)
        return found.reshape((*found.shape[:-1], *x.shape[-IMAGE_SIDES:]))
    if window.by_layers:
        seen, weights = _seen_layers(x, window), _weight_layers(weight)
        pairs = zip(seen, weights, strict=True)
        parts = [_images(one).build("convolution", own, **window.image_attributes) for one, own in pairs]
        found = reduce(add, parts)
    else:
        found = _seen(x, window).build("convolution", _all_layers(weight), **window.image_attributes)
    return found.reshape((x.shape[0], window.layers, *found.shape[1:])).permute(LAYERS_FIRST)


def convolve_volumes_back(
    gradient: Expression, weight: Expression, shape: tuple[int, ...], given: dict[str, Any]
) -> Expression:
    """The gradient for a convolution's volumes of this shape; also a transposed convolution."""
    window = Volumes(shape, weight.shape, given)
    op = "convolution_input_gradient"
    if window.of_columns:
        columns = (*shape[:-IMAGE_SIDES], prod(shape[-IMAGE_SIDES:]))
        found = _flat(gradient).build(op, _flat(weight), shape=columns, **window.column_attributes)
        return found.reshape(shape)
    batch, sides, layers = shape[0], shape[-IMAGE_SIDES:], gradient.shape[DEPTH]
    groups, channels, size = given["groups"], weight.shape[1], weight.shape[DEPTH]
    images = _images(gradient)

    def gathered(weights: Expression, of_layers: int) -> Expression:
        """What the places of some layers of the window get, by batch, layer, group, the window's layer and channel."""
        own = (batch * layers, groups * of_layers * channels, *sides)
        found = images.build(op, weights, shape=own, **window.image_attributes)
        return found.reshape((batch, layers, groups, of_layers, channels, *sides))

    if window.by_layers:
        parts = [gathered(own, 1) for own in _weight_layers(weight)]
        return _put_together(parts[0].join(parts[1:], 3), window)
    return _put_together(gathered(_all_layers(weight), size), window)


def weigh_volumes(x: Expression, gradient: Expression, shape: tuple[int, ...], given: dict[str, Any]) -> Expression:
    """The gradient for a convolution's weight of this shape."""
    window = Volumes(x.shape, shape, given)
    op = "convolution_weight_gradient"
    if window.of_columns:
        found = _flat(x).build(op, _flat(gradient), shape=(*shape[:DEPTH], shape[DEPTH], 1), **window.column_attributes)
        return found.reshape(shape)
    images, (channels, size, *sides) = _images(gradient), shape[1:]
    if window.by_layers:
        own, attributes = (shape[0], channels, *sides), window.image_attributes
        parts = [_images(one).build(op, images, shape=own, **attributes) for one in _seen_layers(x, window)]
        each = [part.insert(DEPTH) for part in parts]
        return each[0].join(each[1:], DEPTH)
    found = _seen(x, window).build(op, images, shape=(shape[0], size * channels, *sides), **window.image_attributes)
    return found.reshape((shape[0], size, channels, *sides)).permute(LAYERS_FIRST)


def _flat(x: Expression) -> Expression:
    """Layers as rows, all rows and columns of each as one row."""
    return x.reshape((*x.shape[:-IMAGE_SIDES], prod(x.shape[-IMAGE_SIDES:])))


def _images(x: Expression) -> Expression:
    """Each layer of each volume as an image."""
    batch, channels, layers, *sides = x.shape
    return x.permute(LAYERS_FIRST).reshape((batch * layers, channels, *sides))


def _seen_layers(x: Expression, window: Volumes) -> list[Expression]:
    """For each layer of the window what it sees, as volumes with as many layers as the result has."""
    padding, stride, dilation = window.moves_in_depth
    if padding:
        border = tuple(padding if dimension == DEPTH else 0 for dimension in range(x.rank))
        x = x.build("pad", low=border, high=border, value=0)
    reach = (window.layers - 1) * stride + 1
    firsts = (layer * dilation for layer in range(window.weight[DEPTH]))
    return [x.part(DEPTH, first, first + reach, stride) for first in firsts]


def _seen(x: Expression, window: Volumes) -> Expression:
    """Images whose channels are those of all layers that the window sees, group by group."""
    batch, channels, _, *sides = x.shape
    groups, layers = window.given["groups"], window.layers
    apart = (batch, groups, channels // groups, layers, *sides)
    first, *others = (part.reshape(apart) for part in _seen_layers(x, window))
    joined = first.join(others, 2)
    return _images(joined.reshape((batch, window.weight[DEPTH] * channels, layers, *sides)))


def _weight_layers(weight: Expression) -> list[Expression]:
    """The layers of a window, each as weights for images."""
    return [weight.pick(DEPTH, layer) for layer in range(weight.shape[DEPTH])]


def _all_layers(weight: Expression) -> Expression:
    """All layers of a window as weights for the channels of what they see."""
    outputs, channels, size, *sides = weight.shape
    return weight.permute(LAYERS_FIRST).reshape((outputs, size * channels, *sides))


def _put_together(found: Expression, window: Volumes) -> Expression:
    """What places got from each layer of the window, added up where they are one layer of the volume."""
    padding, stride, dilation = window.moves_in_depth
    batch, layers, groups, size, channels, *sides = found.shape
    depth = window.shape[DEPTH]
    if stride > 1:  # layers that no window began at get nothing
        spread = found.insert(DEPTH).build("pad", low=(0,) * 8, high=(0, 0, stride - 1, *(0,) * 5), value=0)
        found = spread.reshape((batch, layers * stride, *found.shape[DEPTH:]))
    before = max(0, (size - 1) * dilation - padding)
    behind = max(0, padding + depth - layers * stride)
    low, high = (0, before, *(0,) * 5), (0, behind, *(0,) * 5)
    wide = found.build("pad", low=low, high=high, value=0) if before or behind else found
    firsts = [before + padding - layer * dilation for layer in range(size)]
    parts = [wide.part(1, first, first + depth).pick(3, layer) for layer, first in enumerate(firsts)]
    return reduce(add, parts).reshape((batch, depth, groups * channels, *sides)).permute(LAYERS_FIRST)


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
