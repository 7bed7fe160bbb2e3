"""Compute what an optimizer makes of a weight, its gradient and its state."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.mx.operators.table import RULES, OperatorRule, computes


def _clipped(bound: float, x: Tensor) -> Tensor:
    return x.clamp(-bound, bound) if bound >= 0 else x


def _slope(p: Any, weight: Tensor, grad: Tensor) -> Any:
    """The gradient, scaled and clipped, and the decay of the weight."""
    return _clipped(p.clip_gradient, grad * p.rescale_grad) + p.wd * weight


@computes("sgd_update")
def sgd(p: Any, weight: Tensor, grad: Tensor) -> Any:
    """Go down the gradient."""
    return weight - p.lr * _slope(p, weight, grad)


@computes("sgd_mom_update", writes=(2,))
def sgd_momentum(p: Any, weight: Tensor, grad: Tensor, mom: Tensor) -> Any:
    """Go down the gradient, with momentum."""
    moved = p.momentum * mom - p.lr * _slope(p, weight, grad)
    return weight + moved, moved


@computes("mp_sgd_update", mixed=True, writes=(2,))
def mp_sgd(p: Any, weight: Tensor, grad: Tensor, weight32: Tensor) -> Any:
    """Go down the gradient, with a copy of the weight in float32."""
    new = sgd(p, weight32, grad.to(torch.float32))
    return new.to(weight.dtype), new


@computes("mp_sgd_mom_update", mixed=True, writes=(2, 3))
def mp_sgd_momentum(p: Any, weight: Tensor, grad: Tensor, mom: Tensor, weight32: Tensor) -> Any:
    """Go down the gradient, with momentum and a copy of the weight in float32."""
    new, moved = sgd_momentum(p, weight32, grad.to(torch.float32), mom)
    return new.to(weight.dtype), moved, new


@computes("nag_mom_update", writes=(2,))
def nag(p: Any, weight: Tensor, grad: Tensor, mom: Tensor) -> Any:
    """Nesterov's momentum."""
    slope = _slope(p, weight, grad)
    moved = p.momentum * mom - p.lr * slope
    return weight + p.momentum * moved - p.lr * slope, moved


@computes("mp_nag_mom_update", mixed=True, writes=(2, 3))
def mp_nag(p: Any, weight: Tensor, grad: Tensor, mom: Tensor, weight32: Tensor) -> Any:
    """Nesterov's momentum, with a copy of the weight in float32."""
    new, moved = nag(p, weight32, grad.to(torch.float32), mom)
    return new.to(weight.dtype), moved, new


@computes("signsgd_update")
def signsgd(p: Any, weight: Tensor, grad: Tensor) -> Any:
    """Go by the sign of the gradient."""
    return (1 - p.lr * p.wd) * weight - p.lr * torch.sign(grad)


@computes("signum_update", writes=(2,))
def signum(p: Any, weight: Tensor, grad: Tensor, mom: Tensor) -> Any:
    """Go by the sign of the momentum."""
    moved = p.momentum * mom - (1 - p.momentum) * _slope(p, weight, grad)
    return (1 - p.lr * p.wd_lh) * weight + p.lr * torch.sign(moved), moved


@computes("adam_update", writes=(2, 3))
def adam(p: Any, weight: Tensor, grad: Tensor, mean: Tensor, var: Tensor) -> Any:
    """Divide the mean of the gradients by the root of the mean of their squares."""
    slope = _slope(p, weight, grad)
    mean = p.beta1 * mean + (1 - p.beta1) * slope
    var = p.beta2 * var + (1 - p.beta2) * slope * slope
    return weight - p.lr * mean / (torch.sqrt(var) + p.epsilon), mean, var


@computes("_adamw_update", writes=(2, 3))
def adamw(p: Any, *arrays: Tensor) -> Any:
    """Adam, with the decay apart."""
    weight, grad, mean, var, rescale = arrays
    slope = _clipped(p.clip_gradient, grad * rescale)
    mean = p.beta1 * mean + (1 - p.beta1) * slope
    var = p.beta2 * var + (1 - p.beta2) * slope * slope
    return weight - p.eta * (p.lr * mean / (torch.sqrt(var) + p.epsilon) + p.wd * weight), mean, var


@computes("rmsprop_update", writes=(2,))
def rmsprop(p: Any, weight: Tensor, grad: Tensor, n: Tensor) -> Any:
    """Divide the gradient by the root of the mean of its squares."""
    slope = _slope(p, weight, grad)
    n = (1 - p.gamma1) * slope * slope + p.gamma1 * n
    return _clipped(p.clip_weights, weight - p.lr * slope / torch.sqrt(n + p.epsilon)), n


@computes("rmspropalex_update", writes=(2, 3, 4))
def rmspropalex(p: Any, *arrays: Tensor) -> Any:
    """Divide the gradient by its deviation, with momentum."""
    weight, grad, n, g, delta = arrays
    slope = _slope(p, weight, grad)
    n = (1 - p.gamma1) * slope * slope + p.gamma1 * n
    g = (1 - p.gamma1) * slope + p.gamma1 * g
    delta = p.gamma2 * delta - p.lr * slope / torch.sqrt(n - g * g + p.epsilon)
    return _clipped(p.clip_weights, weight + delta), n, g, delta


@computes("ftrl_update", writes=(2, 3))
def ftrl(p: Any, weight: Tensor, grad: Tensor, z: Tensor, n: Tensor) -> Any:
    """Follow the regularized leader."""
    slope = _clipped(p.clip_gradient, grad * p.rescale_grad)
    z = z + slope - (torch.sqrt(n + slope * slope) - torch.sqrt(n)) * weight / p.lr
    n = n + slope * slope
    far = torch.abs(z) > p.lamda1
    moved = (torch.sign(z) * p.lamda1 - z) / ((p.beta + torch.sqrt(n)) / p.lr + p.wd)
    return torch.where(far, moved, 0.0), z, n


@computes("ftml_update", writes=(2, 3, 4))
def ftml(p: Any, *arrays: Tensor) -> Any:
    """Follow the moving leader."""
    weight, grad, d, v, z = arrays
    slope = _clipped(p.clip_grad, grad * p.rescale_grad + p.wd * weight)
    v = p.beta2 * v + (1 - p.beta2) * slope * slope
    new = (1 - p.beta1**p.t) / p.lr * (torch.sqrt(v / (1 - p.beta2**p.t)) + p.epsilon)
    z = p.beta1 * z + (1 - p.beta1) * slope - (new - p.beta1 * d) * weight
    return -z / new, new, v, z


@computes("_sparse_adagrad_update", writes=(2,))
def adagrad(p: Any, weight: Tensor, grad: Tensor, history: Tensor) -> Any:
    """Divide the gradient by the root of the sum of its squares."""
    slope = _clipped(p.clip_gradient, grad * p.rescale_grad)
    history = history + slope * slope
    return weight - p.lr * (slope / torch.sqrt(history + p.epsilon) + p.wd * weight), history


@computes("lamb_update_phase1", writes=(2, 3))
def lamb_first(p: Any, weight: Tensor, grad: Tensor, mean: Tensor, var: Tensor) -> Any:
    """The direction of LAMB."""
    slope = _clipped(p.clip_gradient, grad * p.rescale_grad)
    mean = p.beta1 * mean + (1 - p.beta1) * slope
    var = p.beta2 * var + (1 - p.beta2) * slope * slope
    one, two = (1 - p.beta1**p.t, 1 - p.beta2**p.t) if p.bias_correction else (1, 1)
    return mean / one / (torch.sqrt(var / two) + p.epsilon) + p.wd * weight, mean, var


@computes("lamb_update_phase2")
def lamb_second(p: Any, weight: Tensor, g: Tensor, r1: Tensor, r2: Tensor) -> Any:
    """A step of LAMB, as long as the weight is to its direction."""
    low = r1.clamp(min=p.lower_bound) if p.lower_bound > 0 else r1
    size = low.clamp(max=p.upper_bound) if p.upper_bound > 0 else low
    ratio = torch.where((size == 0) | (r2 == 0), 1.0, size / r2)
    return weight - p.lr * ratio * g


# Of each update of many weights: that of one, and how many arrays each weight has, of which those from the third on
# are changed too.
MANY: dict[str, tuple[Callable[..., Any], int]] = {
    "multi_sgd_update": (sgd, 2),
    "multi_sgd_mom_update": (sgd_momentum, 3),
    "multi_mp_sgd_update": (mp_sgd, 3),
    "multi_mp_sgd_mom_update": (mp_sgd_momentum, 4),
}
OfOne = namedtuple("OfOne", ["lr", "wd", "momentum", "rescale_grad", "clip_gradient"])  # noqa: PYI024  # `_replace`


def _many(one: Any, each: int, p: Any, *arrays: Tensor) -> Any:
    """Update weights one after the other: gives all weights, then what each keeps."""
    weights: list[Tensor] = []
    kept: list[Tensor] = []
    for place in range(len(arrays) // each):
        mine = OfOne(p.lrs[place], p.wds[place], getattr(p, "momentum", 0), p.rescale_grad, p.clip_gradient)
        found = one(mine, *arrays[place * each : (place + 1) * each])
        new = found if isinstance(found, tuple) else (found,)
        weights.append(new[0])
        kept += new[1:]
    return (*weights, *kept)


def _kept_places(each: int, p: Any) -> tuple[int, ...]:
    """Where among the arrays lies what each weight keeps."""
    return tuple(each * weight + place for weight in range(p.num_weights) for place in range(2, each))


@computes("reset_arrays", outputs=0, mixed=True, writes=lambda p: tuple(range(p.num_arrays)))
def reset_arrays(_p: Any, *arrays: Tensor) -> Any:
    """Let arrays be 0."""
    return tuple(torch.zeros_like(array) for array in arrays)


for _name, (_one, _each) in MANY.items():
    RULES[_name] = OperatorRule(
        partial(_many, _one, _each),
        outputs=lambda p: p.num_weights,
        mixed=_one in (mp_sgd, mp_sgd_momentum),
        writes=partial(_kept_places, _each),
    )
