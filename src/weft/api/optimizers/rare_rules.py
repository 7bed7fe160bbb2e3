"""The rarer classes of torch.optim -> their update rules: Adamax, RAdam, NAdam, Adadelta, ASGD, Rprop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from types import MappingProxyType

import torch

from weft.api.optimizers.rule import (
    Form,
    Group,
    Rule,
    Tensors,
    decay_and_moments,
    decayed,
    decaying_form,
    keeps,
    moments,
    plain_form,
    switched_on,
)

# -- Adamax ------------------------------------------------------------------------------------------------------------


def _adamax_numbers(group: Group, count: float) -> tuple[float, ...]:
    first, second = (float(beta) for beta in group["betas"])
    minus_rate = -float(group["lr"]) / (1 - first**count)
    return (minus_rate, float(group["weight_decay"]), 1 - first, second, float(group["eps"]))


def _adamax_update(
    form: Form, parameter: torch.Tensor, gradient: torch.Tensor, kept: Tensors, numbers: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Tensors]:
    minus_rate, decay, take, keep, epsilon = numbers
    parameter, gradient = decayed(form, parameter, gradient, decay)
    mean = kept["exp_avg"] + (gradient - kept["exp_avg"]) * take
    largest = torch.maximum(kept["exp_inf"] * keep, gradient.abs() + epsilon)
    return parameter + minus_rate * mean / largest, {"exp_avg": mean, "exp_inf": largest}


# -- RAdam -------------------------------------------------------------------------------------------------------------


def _radam_numbers(group: Group, count: float) -> tuple[float, ...]:
    rate, decay, first, second = decay_and_moments(group)
    correction = 1 - second**count
    longest = 2 / (1 - second) - 1
    length = longest - 2 * count * second**count / correction
    adaptive = 0.0  # at the first steps the second moment says too little to be used
    if length > 5:
        adaptive = sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
        adaptive *= sqrt(correction)
    return (-rate / (1 - first**count), decay, 1 - first, second, 1 - second, adaptive, float(group["eps"]))


def _radam_update(
    form: Form, parameter: torch.Tensor, gradient: torch.Tensor, kept: Tensors, numbers: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Tensors]:
    minus_rate, decay, take_first, keep_second, take_second, adaptive, epsilon = numbers
    parameter, gradient = decayed(form, parameter, gradient, decay)
    first, second = moments(kept, gradient, (take_first, keep_second, take_second))
    scale = torch.where(adaptive > 0, adaptive / (second.sqrt() + epsilon), 1.0)
    return parameter + minus_rate * first * scale, {"exp_avg": first, "exp_avg_sq": second}


# -- Adadelta ----------------------------------------------------------------------------------------------------------


def _adadelta_numbers(group: Group, count: float) -> tuple[float, ...]:
    del count
    rho = float(group["rho"])
    return (-float(group["lr"]), float(group["weight_decay"]), rho, 1 - rho, float(group["eps"]))


def _adadelta_update(
    form: Form, parameter: torch.Tensor, gradient: torch.Tensor, kept: Tensors, numbers: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Tensors]:
    minus_rate, decay, keep, take, epsilon = numbers
    parameter, gradient = decayed(form, parameter, gradient, decay)
    square = kept["square_avg"] * keep + take * gradient * gradient
    change = (kept["acc_delta"] + epsilon).sqrt() / (square + epsilon).sqrt() * gradient
    changes = kept["acc_delta"] * keep + take * change * change
    return parameter + minus_rate * change, {"square_avg": square, "acc_delta": changes}


# -- NAdam -------------------------------------------------------------------------------------------------------------


def _nadam_starts(group: Group) -> Mapping[str, float]:
    del group
    return {"mu_product": 1.0}


def _nadam_numbers(group: Group, count: float) -> tuple[float, ...]:
    rate, decay, first, second = decay_and_moments(group)
    now, then = (
        first * (1.0 - 0.5 * (0.96 ** (steps * float(group["momentum_decay"])))) for steps in (count, count + 1)
    )
    correction = sqrt(1 - second**count)
    return (
        decay,
        1 - first,
        second,
        1 - second,
        correction,
        float(group["eps"]),
        now,
        -rate * (1 - now),
        then,
        -rate * then,
    )


def _nadam_update(
    form: Form, parameter: torch.Tensor, gradient: torch.Tensor, kept: Tensors, numbers: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Tensors]:
    decay, take_first, keep_second, take_second, correction, epsilon, *momentum = numbers
    now, minus_rate_now, then, minus_rate_then = momentum
    parameter, gradient = decayed(form, parameter, gradient, decay)
    first, second = moments(kept, gradient, (take_first, keep_second, take_second))
    product = kept["mu_product"] * now.to(kept["mu_product"].dtype)
    so_far = product.to(parameter.dtype)
    change = gradient * (minus_rate_now / (1 - so_far)) + first * (minus_rate_then / (1 - so_far * then))
    new = {"exp_avg": first, "exp_avg_sq": second, "mu_product": product}
    return parameter + change / (second.sqrt() / correction + epsilon), new


# -- ASGD --------------------------------------------------------------------------------------------------------------


def _asgd_starts(group: Group) -> Mapping[str, float]:
    return {"eta": float(group["lr"]), "mu": 1.0}


def _asgd_numbers(group: Group, count: float) -> tuple[float, ...]:
    rate, shrink = float(group["lr"]), float(group["lambd"])
    next_eta = rate / ((1 + shrink * rate * count) ** group["alpha"])
    return (float(group["weight_decay"]), shrink, next_eta, 1 / max(1, count - group["t0"]))


def _asgd_update(
    form: Form, parameter: torch.Tensor, gradient: torch.Tensor, kept: Tensors, numbers: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Tensors]:
    decay, shrink, next_eta, next_mu = numbers
    parameter, gradient = decayed(form, parameter, gradient, decay)
    eta, mu = (kept[name].to(parameter.dtype) for name in ("eta", "mu"))  # as the step before has left them
    parameter = parameter * (1 - shrink * eta) - gradient * eta
    mean = torch.where(mu == 1, parameter, kept["ax"] + (parameter - kept["ax"]) * mu)
    return parameter, {"ax": mean, "eta": next_eta, "mu": next_mu}


# -- Rprop -------------------------------------------------------------------------------------------------------------


def _rprop_starts(group: Group) -> Mapping[str, float]:
    return {"step_size": float(group["lr"])}


def _rprop_form(group: Group) -> Form:
    return switched_on(group, "maximize")


def _rprop_numbers(group: Group, count: float) -> tuple[float, ...]:
    del count
    return (*map(float, group["etas"]), *map(float, group["step_sizes"]))


def _rprop_update(
    form: Form, parameter: torch.Tensor, gradient: torch.Tensor, kept: Tensors, numbers: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Tensors]:
    shorter, longer, least, most = numbers
    gradient = -gradient if "maximize" in form else gradient
    product = gradient * kept["prev"]
    factor = torch.where(product > 0, longer, torch.where(product < 0, shorter, 1.0))
    size = (kept["step_size"] * factor).clamp(least, most)
    gradient = torch.where(product < 0, 0.0, gradient)
    return parameter - gradient.sign() * size, {"prev": gradient, "step_size": size}


RARE: Mapping[type, Rule] = MappingProxyType(
    {
        torch.optim.Adamax: Rule(keeps("exp_avg", "exp_inf"), True, plain_form, _adamax_numbers, _adamax_update),
        torch.optim.RAdam: Rule(keeps("exp_avg", "exp_avg_sq"), True, decaying_form, _radam_numbers, _radam_update),
        torch.optim.NAdam: Rule(
            keeps("mu_product", "exp_avg", "exp_avg_sq"),
            True,
            decaying_form,
            _nadam_numbers,
            _nadam_update,
            alone=("mu_product",),
            starts=_nadam_starts,
        ),
        torch.optim.Adadelta: Rule(
            keeps("square_avg", "acc_delta"), True, plain_form, _adadelta_numbers, _adadelta_update
        ),
        torch.optim.ASGD: Rule(
            keeps("eta", "mu", "ax"),
            True,
            plain_form,
            _asgd_numbers,
            _asgd_update,
            alone=("eta", "mu"),
            starts=_asgd_starts,
        ),
        torch.optim.Rprop: Rule(
            keeps("prev", "step_size"), True, _rprop_form, _rprop_numbers, _rprop_update, starts=_rprop_starts
        ),
    }
)
