"""Write the update rules of torch.optim as pure functions of tensors, a row a class.

A rule says which tensors the optimizer keeps for a parameter, what of a parameter group is part of a program
(`form`), which numbers change from call to call (`numbers`: rates, decays, and what the count of steps makes of them),
and how new elements follow from old ones (`update`). The numbers are computed in Python, in double precision and in the
order in which PyTorch computes them, and go into a program as inputs: a scheduler never makes one compile again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from types import MappingProxyType
from typing import Any

import torch

Group = Mapping[str, Any]
Form = tuple[str, ...]  # what of a parameter group is switched on
Tensors = dict[str, torch.Tensor]
Update = Callable[[Form, torch.Tensor, torch.Tensor, Tensors, Sequence[torch.Tensor]], tuple[torch.Tensor, Tensors]]


def _zeros(group: Group) -> Mapping[str, float]:
    del group
    return {}


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """How one class of optimizers updates a parameter.

    `kept` names the tensors it keeps for each; `counts` says whether it keeps a count of steps (`step`) too. `numbers`
    is given the count of steps including this one; of a rule that does not count: 1 where nothing is kept yet, else 2.
    What is kept is as large as the parameter, but for `alone`: single numbers, in the default type, in which `update`
    gets them too. It starts as zeros, but for what `starts` says.
    """

    kept: Callable[[Group], tuple[str, ...]]
    counts: bool
    form: Callable[[Group], Form]
    numbers: Callable[[Group, float], tuple[float, ...]]
    update: Update
    alone: tuple[str, ...] = ()
    starts: Callable[[Group], Mapping[str, float]] = _zeros


def keeps(*names: str) -> Callable[[Group], tuple[str, ...]]:
    """For rules that keep the same whatever the options."""

    def kept(group: Group) -> tuple[str, ...]:
        del group
        return names

    return kept


def switched_on(group: Group, *options: str) -> Form:
    """Those of some options that a group has."""
    return tuple(option for option in options if group[option])


def plain_form(group: Group) -> Form:
    """The form of a rule with no other options."""
    return switched_on(group, "maximize", "weight_decay")


def decaying_form(group: Group) -> Form:
    """The form of a rule whose decay may be apart from the gradient."""
    return switched_on(group, "maximize", "weight_decay", "decoupled_weight_decay")


def decayed(
    form: Form, parameter: torch.Tensor, gradient: torch.Tensor, decay: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The parameter and its gradient, turned around and decayed as the group says."""
    gradient = -gradient if "maximize" in form else gradient
    if "weight_decay" not in form:
        return parameter, gradient
    if "decoupled_weight_decay" in form:
        return parameter * decay, gradient
    return parameter, gradient + parameter * decay


def decay_and_moments(group: Group) -> tuple[float, float, float, float]:
    """The rate, what decays, and how much of the first and the second moment stays."""
    rate, decay = float(group["lr"]), float(group["weight_decay"])
    first, second = (float(beta) for beta in group["betas"])
    return rate, 1 - rate * decay if group["decoupled_weight_decay"] else decay, first, second


def moments(
    kept: Tensors, gradient: torch.Tensor, parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The moving means of a gradient and of its square."""
    take_first, keep_second, take_second = parts
    first = kept["exp_avg"] + (gradient - kept["exp_avg"]) * take_first
    return first, kept["exp_avg_sq"] * keep_second + take_second * gradient * gradient


# -- SGD ---------------------------------------------------------------------------------------------------------------


def _sgd_kept(group: Group) -> tuple[str, ...]:
    return ("momentum_buffer",) if group["momentum"] != 0 else ()


def _sgd_form(group: Group) -> Form:
    return switched_on(group, "maximize", "weight_decay", "momentum", "nesterov")


def _sgd_numbers(group: Group, count: float) -> tuple[float, ...]:
    momentum = float(group["momentum"])
    # The first gradient goes into the buffer whole: the buffer starts as zeros, and nothing is dampened.
    kept, taken = (0.0, 1.0) if count == 1 else (momentum, 1 - group["dampening"])
    return (-float(group["lr"]), float(group["weight_decay"]), momentum, kept, taken)


def _sgd_update(
    form: Form, parameter: torch.Tensor, gradient: torch.Tensor, kept: Tensors, numbers: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Tensors]:
    minus_rate, decay, momentum, keep, take = numbers
    parameter, gradient = decayed(form, parameter, gradient, decay)
    if "momentum" not in form:
        return parameter + gradient * minus_rate, {}
    buffer = kept["momentum_buffer"] * keep + gradient * take
    direction = gradient + buffer * momentum if "nesterov" in form else buffer
    return parameter + direction * minus_rate, {"momentum_buffer": buffer}


# -- Adam, AdamW -------------------------------------------------------------------------------------------------------


def _adam_kept(group: Group) -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")


def _adam_form(group: Group) -> Form:
    return switched_on(group, "maximize", "weight_decay", "decoupled_weight_decay", "amsgrad")


def _adam_numbers(group: Group, count: float) -> tuple[float, ...]:
    rate, decay, first, second = decay_and_moments(group)
    step_size, correction = rate / (1 - first**count), sqrt(1 - second**count)
    return (-step_size, decay, 1 - first, second, 1 - second, correction, float(group["eps"]))


def _adam_update(
    form: Form, parameter: torch.Tensor, gradient: torch.Tensor, kept: Tensors, numbers: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Tensors]:
    minus_step_size, decay, take_first, keep_second, take_second, correction, epsilon = numbers
    parameter, gradient = decayed(form, parameter, gradient, decay)
    first, second = moments(kept, gradient, (take_first, keep_second, take_second))
    new = {"exp_avg": first, "exp_avg_sq": second}
    if "amsgrad" in form:
        second = new["max_exp_avg_sq"] = torch.maximum(kept["max_exp_avg_sq"], second)
    return parameter + minus_step_size * first / (second.sqrt() / correction + epsilon), new


# -- RMSprop -----------------------------------------------------------------------------------------------------------


def _rmsprop_kept(group: Group) -> tuple[str, ...]:
    momentum = ("momentum_buffer",) if group["momentum"] > 0 else ()
    return ("square_avg", *momentum, *(("grad_avg",) if group["centered"] else ()))


def _rmsprop_form(group: Group) -> Form:
    return switched_on(group, "maximize", "weight_decay", "momentum", "centered")


def _rmsprop_numbers(group: Group, count: float) -> tuple[float, ...]:
    del count
    alpha = float(group["alpha"])
    decay, epsilon, momentum = (float(group[name]) for name in ("weight_decay", "eps", "momentum"))
    return (-float(group["lr"]), decay, alpha, 1 - alpha, epsilon, momentum)


def _rmsprop_update(
    form: Form, parameter: torch.Tensor, gradient: torch.Tensor, kept: Tensors, numbers: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Tensors]:
    minus_rate, decay, keep, take, epsilon, momentum = numbers
    parameter, gradient = decayed(form, parameter, gradient, decay)
    square = kept["square_avg"] * keep + take * gradient * gradient
    new = {"square_avg": square}
    if "centered" in form:
        mean = new["grad_avg"] = kept["grad_avg"] + (gradient - kept["grad_avg"]) * take
        square = square - mean * mean
    direction = gradient / (square.sqrt() + epsilon)
    if "momentum" in form:
        direction = new["momentum_buffer"] = kept["momentum_buffer"] * momentum + direction
    return parameter + direction * minus_rate, new


# -- Adagrad -----------------------------------------------------------------------------------------------------------


def _adagrad_numbers(group: Group, count: float) -> tuple[float, ...]:
    rate = float(group["lr"]) / (1 + (count - 1) * group["lr_decay"])
    return (-rate, float(group["weight_decay"]), float(group["eps"]))


def _adagrad_update(
    form: Form, parameter: torch.Tensor, gradient: torch.Tensor, kept: Tensors, numbers: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Tensors]:
    minus_rate, decay, epsilon = numbers
    parameter, gradient = decayed(form, parameter, gradient, decay)
    total = kept["sum"] + gradient * gradient
    return parameter + minus_rate * gradient / (total.sqrt() + epsilon), {"sum": total}


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


# Exactly these classes: a subclass may have another rule.
RULES: Mapping[type, UpdateRule] = MappingProxyType(
    {
        torch.optim.SGD: UpdateRule(_sgd_kept, False, _sgd_form, _sgd_numbers, _sgd_update),
        torch.optim.Adam: UpdateRule(_adam_kept, True, _adam_form, _adam_numbers, _adam_update),
        torch.optim.AdamW: UpdateRule(_adam_kept, True, _adam_form, _adam_numbers, _adam_update),
        torch.optim.RMSprop: UpdateRule(_rmsprop_kept, True, _rmsprop_form, _rmsprop_numbers, _rmsprop_update),
        torch.optim.Adagrad: UpdateRule(keeps("sum"), True, plain_form, _adagrad_numbers, _adagrad_update),
        torch.optim.Adamax: UpdateRule(keeps("exp_avg", "exp_inf"), True, plain_form, _adamax_numbers, _adamax_update),
        torch.optim.RAdam: UpdateRule(
            keeps("exp_avg", "exp_avg_sq"), True, decaying_form, _radam_numbers, _radam_update
        ),
        torch.optim.NAdam: UpdateRule(
            keeps("mu_product", "exp_avg", "exp_avg_sq"),
            True,
            decaying_form,
            _nadam_numbers,
            _nadam_update,
            alone=("mu_product",),
            starts=_nadam_starts,
        ),
        torch.optim.Adadelta: UpdateRule(
            keeps("square_avg", "acc_delta"), True, plain_form, _adadelta_numbers, _adadelta_update
        ),
        torch.optim.ASGD: UpdateRule(
            keeps("eta", "mu", "ax"),
            True,
            plain_form,
            _asgd_numbers,
            _asgd_update,
            alone=("eta", "mu"),
            starts=_asgd_starts,
        ),
        torch.optim.Rprop: UpdateRule(
            keeps("prev", "step_size"), True, _rprop_form, _rprop_numbers, _rprop_update, starts=_rprop_starts
        ),
    }
)
