"""Lift activation functions and their gradients."""

from __future__ import annotations

import math

import torch

from weft.errors import UsageError
from weft.trace.lift.arguments import Arguments, Rules
from weft.trace.lift.elementwise import Formula, inside, pointwise
from weft.trace.lift.expression import Expression, Term

ERF_SLOPE = 2 / math.sqrt(math.pi) * math.sqrt(0.5) * 0.5
TANH_SCALE = math.sqrt(2) * 2 / math.sqrt(math.pi) * 0.5
TANH_CUBE = 0.044715
# PyTorch's kernel has this number in float32, whatever it computes in.
SIXTH = float(torch.tensor(1 / 6, dtype=torch.float32))


def gelu(arguments: Arguments) -> Expression:
    """Compute x times the normal distribution's integral, exact or by tanh."""
    [x] = arguments.promoted("self")
    if arguments.literal("approximate") == "tanh":
        inner = TANH_SCALE * (x + TANH_CUBE * (x * x * x))
        return 0.5 * x * (1 + inner.apply("tanh"))
    return x * 0.5 * (1 + (x * math.sqrt(0.5)).apply("erf"))


def gelu_gradient(arguments: Arguments) -> Expression:
    """The gradient of gelu."""
    gradient, x = arguments.promoted("grad_output", "self")
    if arguments.literal("approximate") == "tanh":
        bend = (TANH_SCALE * (x + TANH_CUBE * (x * x * x))).apply("tanh")
        slope = TANH_SCALE * (1 + 3 * TANH_CUBE * (x * x))
        return gradient * (0.5 * (1 + bend) + 0.5 * x * (1 - bend * bend) * slope)
    integral = 0.5 * (1 + (x * math.sqrt(0.5)).apply("erf"))
    density = ERF_SLOPE * (x * x * -0.5).apply("exp")
    return gradient * (integral + x * density)


def silu(x: Expression) -> Expression:
    """Compute x * sigmoid(x)."""
    return x / (1 + (-x).apply("exp"))


def silu_gradient(gradient: Expression, x: Expression) -> Expression:
    """The gradient of silu."""
    gate = x.apply("sigmoid")
    return gradient * gate * (1 + x * (1 - gate))


def hard_gate(x: Expression) -> Expression:
    """6 * hardsigmoid(x)."""
    return (x + 3).apply("maximum", 0).apply("minimum", 6)


def hard_gate_gradient(gradient: Expression, x: Expression) -> Expression:
    """The gradient of hardsigmoid."""
    return x.apply("gt", -3).apply("logical_and", x.apply("lt", 3)).choose(gradient * SIXTH, 0)


def hard_swish_gradient(gradient: Expression, x: Expression) -> Expression:
    """The gradient of hardswish; NaN where x is, as PyTorch's vectors have it: its single numbers let it through."""
    bent = gradient * (x / 3 + 0.5)
    return x.apply("le", -3).choose(0, x.apply("ge", 3).choose(gradient, bent))


def between(gradient: Expression, x: Expression, low: Term, high: Term) -> Expression:
    """A gradient where x lies between bounds, else 0."""
    outside = x.apply("le", low).apply("logical_or", x.apply("ge", high))
    return outside.choose(0, gradient)


def leaky(x: Expression, slope: Term) -> Expression:
    """x, times a slope where it is not positive."""
    return x.apply("gt", 0).choose(x, x * slope)


def leaky_gradient(gradient: Expression, x: Expression, slope: Term) -> Expression:
    """The gradient of leaky."""
    return x.apply("gt", 0).choose(gradient, gradient * slope)


def elu(arguments: Arguments) -> Expression:
    """Keep x where it is positive, else an exponential that levels off."""
    [x] = arguments.promoted("self")
    alpha, scale, input_scale = (arguments.literal(name) for name in ("alpha", "scale", "input_scale"))
    bent = (x * input_scale).apply("expm1") * (alpha * scale)
    return x.apply("lt", 0).choose(bent, x * scale)


def elu_gradient(arguments: Arguments) -> Expression:
    """The gradient of elu, from its input or its result."""
    gradient, x = arguments.promoted("grad_output", "self_or_result")
    alpha, scale, input_scale = (arguments.literal(name) for name in ("alpha", "scale", "input_scale"))
    if arguments.literal("is_result"):
        bent = gradient * input_scale * (x + alpha * scale)
    else:
        bent = gradient * (input_scale * alpha * scale) * (x * input_scale).apply("exp")
    return x.apply("le", 0).choose(bent, gradient * scale)


def softplus(x: Expression, beta: Term, threshold: Term) -> Expression:
    """log(1 + exp(x)), x itself far out."""
    inner = x * beta
    return inner.apply("gt", threshold).choose(x, inner.apply("exp").apply("log1p") / beta)


def softplus_gradient(gradient: Expression, x: Expression, beta: Term, threshold: Term) -> Expression:
    """The gradient of softplus."""
    grown = (x * beta).apply("exp")
    return (x * beta).apply("gt", threshold).choose(gradient, gradient * grown / (grown + 1))


def mish(x: Expression) -> Expression:
    """Compute x * tanh(log(1 + exp(x)))."""
    return x * x.apply("exp").apply("log1p").apply("tanh")


def mish_gradient(gradient: Expression, x: Expression) -> Expression:
    """The gradient of mish."""
    gate = x.apply("sigmoid")
    bend = x.apply("exp").apply("log1p").apply("tanh")
    return gradient * (bend + x * gate * (1 - bend * bend))


def log_sigmoid(arguments: Arguments) -> tuple[Expression, ...]:
    """log(sigmoid(x)), and exp(-|x|) for its gradient."""
    [x] = arguments.promoted("self")
    shrunk = (-x.apply("abs")).apply("exp")
    return x.apply("minimum", 0) - shrunk.apply("log1p"), shrunk


def log_sigmoid_gradient(gradient: Expression, x: Expression) -> Expression:
    """The gradient of log_sigmoid."""
    shrunk = (-x.apply("abs")).apply("exp")
    negative = x.apply("lt", 0)
    share = shrunk / (1 + shrunk)
    return gradient * negative.choose(1 - share, share)


def softshrink(x: Expression, bound: Term) -> Expression:
    """Move x towards 0; 0 between the bounds; NaN stays."""
    inner = x.apply("ne", x).choose(x, 0)
    return x.apply("gt", bound).choose(x - bound, x.apply("lt", -bound).choose(x + bound, inner))


def hard_shrink(x: Expression, bound: Term) -> Expression:
    """x, but 0 between the bounds."""
    return x.apply("ge", -bound).apply("logical_and", x.apply("le", bound)).choose(0, x)


def shrink_gradient(gradient: Expression, x: Expression, bound: Term) -> Expression:
    """A gradient, but 0 where x lies between the bounds."""
    return x.apply("ge", -bound).apply("logical_and", x.apply("le", bound)).choose(0, gradient)


def parametric_gradient(arguments: Arguments) -> tuple[Expression, ...]:
    """The gradients of leaky with a learned slope."""
    gradient, x, slope = arguments.promoted("grad_output", "self", "weight")
    positive = x.apply("gt", 0)
    return positive.choose(gradient, slope * gradient), positive.choose(0, x * gradient)


def glu(arguments: Arguments) -> Expression:
    """The first half of a dimension, gated by the second."""
    x, gate = halves(arguments, *arguments.promoted("self"))
    return x * gate.apply("sigmoid")


def halves(arguments: Arguments, x: Expression) -> tuple[Expression, Expression]:
    """The two halves of the dimension that is named."""
    dimension = arguments.dimension("dim", x.rank)
    extent = x.shape[dimension]
    return x.part(dimension, 0, extent // 2), x.part(dimension, extent // 2, extent)


def glu_gradient(arguments: Arguments) -> Expression:
    """The gradient of glu."""
    gradient, whole = arguments.promoted("grad_output", "self")
    x, gate = halves(arguments, whole)
    gate = gate.apply("sigmoid")
    second = (1 - gate) * gate * gradient * x
    return (gate * gradient).join([second], arguments.dimension("dim", whole.rank))


def slope_of_tanh(gradient: Expression, y: Expression) -> Expression:
    """The gradient of tanh, from its result."""
    return gradient * (1 - y * y)


def logit(arguments: Arguments) -> Expression:
    """log(x / (1 - x))."""
    [x] = arguments.promoted("self", floating=True)
    bound = arguments.literal("eps")
    if bound is not None:
        if x.dtype not in (torch.float32, torch.float64):
            raise UsageError("logit with eps of another dtype")
        x = inside(x, bound, 1 - bound)
    return (x / (1 - x)).apply("log")


def logit_gradient(arguments: Arguments) -> Expression:
    """The gradient of logit; with bounds 0 outside of them, without them NaN."""
    gradient, x = arguments.promoted("grad_output", "self")
    bound = arguments.literal("eps")
    low, high = (0.0, 1.0) if bound is None else (bound, 1.0 - bound)
    outside = x.apply("lt", low).apply("logical_or", x.apply("gt", high))
    return outside.choose(math.nan if bound is None else 0.0, gradient / (x * (1 - x)))


def celu(x: Expression, alpha: Term) -> Expression:
    """Like elu, smooth for every alpha."""
    return x.apply("le", 0).choose((x / alpha).apply("expm1") * alpha, x)


THRESHOLD: Formula = lambda x, threshold, value: x.apply("le", threshold).choose(value, x)  # noqa: E731  a formula
GRADIENT = ("grad_output", "self")
FROM_RESULT = ("grad_output", "output")

ACTIVATIONS: Rules = {
    "aten.relu.default": pointwise(lambda x: x.apply("relu"), "self"),
    "aten.threshold.default": pointwise(THRESHOLD, "self", numbers=("threshold", "value")),
    "aten.threshold_backward.default": pointwise(
        lambda gradient, x, threshold: x.apply("le", threshold).choose(0, gradient), *GRADIENT, numbers=("threshold",)
    ),
    "aten.hardtanh.default": pointwise(inside, "self", numbers=("min_val", "max_val")),
    "aten.hardtanh_backward.default": pointwise(between, *GRADIENT, numbers=("min_val", "max_val")),
    "aten.relu6.default": pointwise(lambda x: inside(x, 0, 6), "self"),
    "aten.leaky_relu.default": pointwise(leaky, "self", numbers=("negative_slope",)),
    "aten.leaky_relu_backward.default": pointwise(leaky_gradient, *GRADIENT, numbers=("negative_slope",)),
    "aten.elu.default": elu,
    "aten.elu_backward.default": elu_gradient,
    "aten.gelu.default": gelu,
    "aten.gelu_backward.default": gelu_gradient,
    "aten.silu.default": pointwise(silu, "self"),
    "aten.silu_backward.default": pointwise(silu_gradient, *GRADIENT),
    "aten.hardsigmoid.default": pointwise(lambda x: hard_gate(x) / 6, "self"),
    "aten.hardsigmoid_backward.default": pointwise(hard_gate_gradient, *GRADIENT),
    "aten.hardswish.default": pointwise(lambda x: x * hard_gate(x) / 6, "self"),
    "aten.hardswish_backward.default": pointwise(hard_swish_gradient, *GRADIENT),
    "aten.softplus.default": pointwise(softplus, "self", numbers=("beta", "threshold")),
    "aten.softplus_backward.default": pointwise(softplus_gradient, *GRADIENT, numbers=("beta", "threshold")),
    "aten.mish.default": pointwise(mish, "self"),
    "aten.mish_backward.default": pointwise(mish_gradient, *GRADIENT),
    "aten.log_sigmoid_forward.default": log_sigmoid,
    "aten.log_sigmoid_backward.default": pointwise(log_sigmoid_gradient, *GRADIENT),
    "aten.softshrink.default": pointwise(softshrink, "self", numbers=("lambd",)),
    "aten.softshrink_backward.default": pointwise(shrink_gradient, *GRADIENT, numbers=("lambd",)),
    "aten.hardshrink.default": pointwise(hard_shrink, "self", numbers=("lambd",)),
    "aten.hardshrink_backward.default": pointwise(shrink_gradient, "grad_out", "self", numbers=("lambd",)),
    "aten._prelu_kernel.default": pointwise(leaky, "self", "weight"),
    "aten._prelu_kernel_backward.default": parametric_gradient,
    "aten.glu.default": glu,
    "aten.glu_backward.default": glu_gradient,
    "aten.tanh_backward.default": pointwise(slope_of_tanh, *FROM_RESULT),
    "aten.sigmoid_backward.default": pointwise(lambda gradient, y: gradient * (1 - y) * y, *FROM_RESULT),
    "aten.logit.default": logit,
    "aten.logit_backward.default": logit_gradient,
    "aten.celu.default": pointwise(celu, "self", numbers=("alpha",)),
}
