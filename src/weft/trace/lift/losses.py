"""Lift loss functions and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch

from weft.trace.lift.arguments import Arguments, Results, Rule, Rules
from weft.trace.lift.checks import check_classes, check_data, check_probabilities
from weft.trace.lift.expression import HALVES, Expression, as_divisor, positions

NONE, MEAN, SUM = range(3)
LARGEST_LOG = 100.0  # binary cross entropy takes no logarithm for lower than minus this
SMALLEST_PRODUCT = 1e-12


def reduced(arguments: Arguments, x: Expression) -> Expression:
    """The loss of every element, their mean, or their sum; PyTorch rounds each element before it adds them up."""
    kind = arguments.literal("reduction")
    everywhere = tuple(range(x.rank))
    if kind == NONE:
        return x
    x = x.cast(arguments.result().dtype).wide()
    return x.mean(everywhere) if kind == MEAN else x.sum(everywhere)


def shared_out(arguments: Arguments, gradient: Expression, count: int) -> Expression:
    """The part of the result's gradient that each element gets."""
    arguments.require(count > 0, "of nothing")
    return gradient / as_divisor(count) if arguments.literal("reduction") == MEAN else gradient


def loss(formula: Callable[..., Expression], *numbers: str) -> Rule:
    """Make the rule of a loss from the formula of one element: of input, target and numbers."""

    def rule(arguments: Arguments) -> Expression:
        x, target = arguments.promoted("self", "target")
        return reduced(arguments, formula(x, target, *(arguments.literal(name) for name in numbers)))

    return rule


def loss_gradient(formula: Callable[..., Expression], *numbers: str) -> Rule:
    """Make the rule of a loss's gradient from the slope of one element."""

    def rule(arguments: Arguments) -> Expression:
        gradient, x, target = arguments.promoted("grad_output", "self", "target")
        slope = formula(x, target, *(arguments.literal(name) for name in numbers))
        return slope * shared_out(arguments, gradient, slope.kind.size)

    return rule


def squared(x: Expression, target: Expression) -> Expression:
    """The square of the difference."""
    return (x - target) * (x - target)


def smooth(x: Expression, target: Expression, beta: float) -> Expression:
    """A parabola up to beta, straight from there."""
    gap = (x - target).apply("abs")
    return gap if beta == 0 else gap.apply("lt", beta).choose(0.5 * gap * gap / beta, gap - 0.5 * beta)


def smooth_slope(x: Expression, target: Expression, beta: float) -> Expression:
    """The slope of smooth."""
    gap = x - target
    inner = gap.apply("sign") if beta == 0 else gap / beta
    return gap.apply("le", -beta).choose(-1, gap.apply("ge", beta).choose(1, inner))


def huber(x: Expression, target: Expression, delta: float) -> Expression:
    """smooth, times delta."""
    gap = (x - target).apply("abs")
    return gap.apply("le", delta).choose(0.5 * gap * gap, delta * (gap - 0.5 * delta))


def huber_slope(x: Expression, target: Expression, delta: float) -> Expression:
    """The slope of huber."""
    gap = x - target
    return gap.apply("lt", -delta).choose(-delta, gap.apply("gt", delta).choose(delta, gap))


def in_one_dtype(rule: Rule) -> Rule:
    """Leave half precisions to PyTorch, which rounds, and overflows, at every step inside of this operator."""

    def checked(arguments: Arguments) -> Results:
        arguments.require(arguments.tensor("self").dtype not in HALVES, "in half precision")
        return rule(arguments)

    return checked


def soft_margin(x: Expression, target: Expression) -> Expression:
    """log(1 + exp(-x * target))."""
    return (-target * x).apply("exp").apply("log1p")


def soft_margin_slope(x: Expression, target: Expression) -> Expression:
    """The slope of soft_margin."""
    grown = (-target * x).apply("exp")
    return -target * grown / (grown + 1)


def weighted(arguments: Arguments, x: Expression) -> Expression:
    """Elements times their weights, if there are any."""
    weight = arguments.maybe("weight")
    return x if weight is None else x * weight.wide()


def binary_cross_entropy(arguments: Arguments) -> Expression:
    """Of probabilities, which are checked."""
    x, target = arguments.promoted("self", "target")
    arguments.require(x.kind.size > 0, "of nothing")
    check_probabilities(arguments, x)
    inside = target.apply("ge", 0).apply("logical_and", target.apply("le", 1))
    check_data(arguments, inside.apply("logical_not"), "all elements of target should be between 0 and 1")
    no, yes = (part.apply("maximum", -LARGEST_LOG) for part in ((-x).apply("log1p"), x.apply("log")))
    return reduced(arguments, weighted(arguments, (target - 1) * no - target * yes))


def binary_cross_entropy_gradient(arguments: Arguments) -> Expression:
    """The gradient of binary_cross_entropy."""
    gradient, x, target = arguments.promoted("grad_output", "self", "target")
    slope = (x - target) / ((1 - x) * x).apply("maximum", SMALLEST_PRODUCT)
    return weighted(arguments, slope * shared_out(arguments, gradient, x.kind.size))


def binary_cross_entropy_of_logits(arguments: Arguments) -> Expression:
    """Of numbers whose sigmoid is the probability."""
    x, target = arguments.promoted("self", "target")
    # -log(sigmoid(x)) without overflow.
    surprise = (-x.apply("abs")).apply("exp").apply("log1p") - x.apply("minimum", 0)
    positive = arguments.maybe("pos_weight")
    if positive is not None:
        surprise = surprise * (1 + (positive.wide() - 1) * target)
    return reduced(arguments, weighted(arguments, (1 - target) * x + surprise))


# Negative log likelihood: of the class that each target names, out of `x` with classes in dimension 1.


def by_target(arguments: Arguments, classes: int) -> tuple[Expression, Expression, Expression | None]:
    """Targets with ignored ones set to class 0, whether each counts, and the weight of each."""
    target = arguments.tensor("target").cast(torch.int64)
    counts = target.apply("ne", arguments.literal("ignore_index"))
    safe = counts.choose(target, 0)
    weight = arguments.maybe("weight")
    if weight is None:
        return safe, counts, None
    arguments.require(weight.shape == (classes,), "with a weight of another size")
    flat = safe.reshape((safe.kind.size,))
    return safe, counts, weight.wide().build("take", flat, dimension=0).reshape(safe.shape)


def class_dimension(arguments: Arguments, x: Expression) -> int:
    """Where classes are: in a single example at the front."""
    arguments.require(x.kind.size > 0, "of nothing")
    return 0 if x.rank == 1 else 1


def likelihood(arguments: Arguments) -> Results:
    """The loss, and the sum of the weights it is a mean over."""
    x = arguments.tensor("self").wide()
    place = class_dimension(arguments, x)
    check_classes(arguments, x.shape[place])
    target, counts, weight = by_target(arguments, x.shape[place])
    if x.rank == 1:
        target, counts = target.reshape(()), counts.reshape(())
        weight = None if weight is None else weight.reshape(())
    # Of all classes the one that is the target's: the sum has one term that counts.
    is_target = positions(x.shape, place, x.place).apply("eq", target.insert(place))
    found = is_target.choose(x, 0).sum((place,)).reshape(target.shape)
    found = -found if weight is None else -found * weight
    found = counts.choose(found, 0)
    if arguments.literal("reduction") == NONE and x.rank > 1:
        return found, arguments.full(0, x.dtype)
    shares = counts.cast(x.dtype) if weight is None else counts.choose(weight, 0)
    everywhere = tuple(range(found.rank))
    total, shares = found.sum(everywhere), shares.sum(everywhere)
    return (total / shares if arguments.literal("reduction") == MEAN else total), shares


def likelihood_gradient(arguments: Arguments) -> Expression:
    """The gradient of the loss: at the target's class alone."""
    x = arguments.tensor("self")
    place = class_dimension(arguments, x)
    gradient, total = (entry.wide() for entry in arguments.tensors("grad_output", "total_weight"))
    target, counts, weight = by_target(arguments, x.shape[place])
    if x.rank == 1:
        target, counts, gradient = target.reshape(()), counts.reshape(()), gradient.reshape(())
        weight = None if weight is None else weight.reshape(())
    if arguments.literal("reduction") == MEAN:
        gradient = gradient / total
    gradient = -gradient if weight is None else -gradient * weight
    gradient = counts.choose(gradient, 0).expand(target.shape)
    classes = positions(x.shape, place, x.place)
    return classes.apply("eq", target.insert(place)).choose(gradient.insert(place), 0)


LOSSES: Rules = {
    "aten.mse_loss.default": loss(squared),
    "aten.mse_loss_backward.default": loss_gradient(lambda x, target: 2 * (x - target)),
    "aten.smooth_l1_loss.default": loss(smooth, "beta"),
    "aten.smooth_l1_loss_backward.default": loss_gradient(smooth_slope, "beta"),
    "aten.huber_loss.default": loss(huber, "delta"),
    "aten.huber_loss_backward.default": loss_gradient(huber_slope, "delta"),
    "aten.soft_margin_loss.default": in_one_dtype(loss(soft_margin)),
    "aten.soft_margin_loss_backward.default": in_one_dtype(loss_gradient(soft_margin_slope)),
    "aten.binary_cross_entropy.default": in_one_dtype(binary_cross_entropy),
    "aten.binary_cross_entropy_backward.default": binary_cross_entropy_gradient,
    "aten.binary_cross_entropy_with_logits.default": binary_cross_entropy_of_logits,
    "aten.nll_loss_forward.default": likelihood,
    "aten.nll_loss2d_forward.default": likelihood,
    "aten.nll_loss_backward.default": likelihood_gradient,
    "aten.nll_loss2d_backward.default": likelihood_gradient,
}
