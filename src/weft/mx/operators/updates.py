"""Compute what an optimizer makes of a weight, its gradient and its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
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
    """Adam, with the decay apart; a scale that is 0 or no number leaves all as it is."""
    weight, grad, mean, var, rescale = arrays
    slope = _clipped(p.clip_gradient, grad * rescale)
    new_mean = p.beta1 * mean + (1 - p.beta1) * slope
    new_var = p.beta2 * var + (1 - p.beta2) * slope * slope
    new = weight - p.eta * (p.lr * new_mean / (torch.sqrt(new_var) + p.epsilon) + p.wd * weight)
    moves = torch.isfinite(rescale) & (rescale != 0)
    pairs = ((new, weight), (new_mean, mean), (new_var, var))
    return tuple(torch.where(moves, one, other) for one, other in pairs)


@computes("_mp_adamw_update", mixed=True, writes=(2, 3, 4))
def mp_adamw(p: Any, *arrays: Tensor) -> Any:
    """Adam, with the decay apart and a copy of the weight in float32."""
    weight, grad, mean, var, weight32, rescale = arrays
    new, mean, var = adamw(p, weight32, grad.to(torch.float32), mean, var, rescale)
    return new.to(weight.dtype), mean, var, new


@computes("_contrib_group_adagrad_update", writes=(2,))
def group_adagrad(p: Any, weight: Tensor, grad: Tensor, history: Tensor) -> Any:
    """Divide the gradient by the root of the sum of the mean squares of its rows."""
    slope = _clipped(p.clip_gradient, grad * p.rescale_grad)
    squares = (slope * slope).reshape(slope.shape[0], -1).mean(1)
    history = history + squares.reshape(history.shape)
    divisor = torch.sqrt(history + p.epsilon).reshape(-1, *[1] * (weight.dim() - 1))
    return weight - p.lr * slope / divisor, history


@computes("multi_lars")
def lars(p: Any, lrs: Tensor, weights: Tensor, grads: Tensor, wds: Tensor) -> Tensor:
    """Learning rates by the norms of weights and gradients, whose squares are given."""
    norm, slope = torch.sqrt(weights), torch.sqrt(grads) * p.rescale_grad
    scaled = lrs * p.eta * norm / (slope + wds * norm + p.eps)
    return torch.where((weights > 0) & (grads > 0), scaled, lrs)


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


@computes("mp_lamb_update_phase1", mixed=True, writes=(2, 3))
def mp_lamb_first(p: Any, *arrays: Tensor) -> Any:
    """The direction of LAMB, of the copy of the weight in float32."""
    _, grad, mean, var, weight32 = arrays
    return lamb_first(p, weight32, grad.to(torch.float32), mean, var)


@computes("mp_lamb_update_phase2", mixed=True)
def mp_lamb_second(p: Any, *arrays: Tensor) -> Any:
    """A step of LAMB, of the copy of the weight in float32, which MXNet 1.9.1 leaves as it is."""
    weight, g, r1, r2, weight32 = arrays
    return lamb_second(p, weight32, g, r1, r2).to(weight.dtype)


def _lamb(p: Any, *arrays: Tensor) -> Any:
    """A whole step of LAMB; an array behind the others is the weight whose norm counts."""
    weight, grad, mean, var = arrays[:4]
    g, mean, var = lamb_first(p, weight, grad, mean, var)
    norms = [torch.sqrt((each * each).sum()).reshape(1) for each in (arrays[-1] if arrays[4:] else weight, g)]
    return lamb_second(p, weight, g, *norms), mean, var


def _mp_lamb(p: Any, *arrays: Tensor) -> Any:
    weight, grad, mean, var, weight32 = arrays
    new, mean, var = _lamb(p, weight32, grad.to(torch.float32), mean, var, weight.to(torch.float32))
    return new.to(weight.dtype), mean, var, new


# Of each update of many weights: that of one, and how many arrays each weight has, of which those from the third on
# are changed too.
MANY: dict[str, tuple[Callable[..., Any], int]] = {
    "multi_sgd_update": (sgd, 2),
    "multi_sgd_mom_update": (sgd_momentum, 3),
    "multi_mp_sgd_update": (mp_sgd, 3),
    "multi_mp_sgd_mom_update": (mp_sgd_momentum, 4),
}
# What the rows call numbers that are one for each weight, and what the update of one weight calls them.
EACH = {"lrs": "lr", "wds": "wd", "etas": "eta", "learning_rates": "lr", "step_count": "t"}


def _of_one(p: Any, place: int, given: Mapping[str, Any]) -> SimpleNamespace:
    """The parameters of one weight."""
    own = {EACH.get(name, name): value[place] if name in EACH else value for name, value in p._asdict().items()}
    return SimpleNamespace(**{"momentum": 0, **own, **given})


def _many(one: Any, each: int, p: Any, *arrays: Tensor, shared: Sequence[Tensor] = (), **given: Any) -> Any:
    """Update weights one after the other: gives all weights, then what each keeps."""
    weights: list[Tensor] = []
    kept: list[Tensor] = []
    for place in range(len(arrays) // each):
        mine = _of_one(p, place, {name: values[place] for name, values in given.items()})
        found = one(mine, *arrays[place * each : (place + 1) * each], *shared)
        new = found if isinstance(found, tuple) else (found,)
        weights.append(new[0])
        kept += new[1:]
    return (*weights, *kept)


def _many_preloaded(one: Any, each: int, p: Any, *arrays: Tensor) -> Any:
    """The same with learning rates and decays as arrays, which come last."""
    return _many(one, each, p, *arrays[:-2], lr=arrays[-2], wd=arrays[-1])


def _many_rescaled(one: Any, each: int, p: Any, *arrays: Tensor) -> Any:
    """The same with the scale of gradients as an array, which comes last."""
    return _many(one, each, p, *arrays[:-1], shared=arrays[-1:])


def _kept_places(each: int, p: Any) -> tuple[int, ...]:
    """Where among the arrays lies what each weight keeps."""
    return tuple(each * weight + place for weight in range(_weight_count(p)) for place in range(2, each))


def _weight_count(p: Any) -> int:
    return int(p.num_tensors if hasattr(p, "num_tensors") else p.num_weights)


@computes("reset_arrays", outputs=0, mixed=True, writes=lambda p: tuple(range(p.num_arrays)))
def reset_arrays(_p: Any, *arrays: Tensor) -> Any:
    """Let arrays be 0."""
    return tuple(torch.zeros_like(array) for array in arrays)


def _row_of_many(compute: Callable[..., Any], one: Callable[..., Any], each: int) -> OperatorRule:
    return OperatorRule(
        partial(compute, one, each), outputs=_weight_count, mixed=True, writes=partial(_kept_places, each)
    )


for _name, (_one, _each) in MANY.items():
    RULES[_name] = _row_of_many(_many, _one, _each)
    if "sgd" in _name:
        RULES[f"preloaded_{_name}"] = _row_of_many(_many_preloaded, _one, _each)
RULES["_multi_lamb_update"] = _row_of_many(_many, _lamb, 4)
RULES["_multi_mp_lamb_update"] = _row_of_many(_many, _mp_lamb, 5)
RULES["_multi_adamw_update"] = _row_of_many(_many_rescaled, adamw, 4)
RULES["_multi_mp_adamw_update"] = _row_of_many(_many_rescaled, mp_adamw, 5)
