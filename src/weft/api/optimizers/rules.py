"""The classes of torch.optim -> their update rules: SGD, Adam, AdamW, RMSprop, Adagrad, and the table of all rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from types import MappingProxyType

import torch

from weft.api.optimizers.rare_rules import RARE
from weft.api.optimizers.rule import (
    Form,
    Group,
    Rule,
    Tensors,
    decay_and_moments,
    decayed,
    keeps,
    moments,
    plain_form,
    switched_on,
)

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


# Exactly these classes: a subclass may have another rule.
RULES: Mapping[type, Rule] = MappingProxyType(
    {
        torch.optim.SGD: Rule(_sgd_kept, False, _sgd_form, _sgd_numbers, _sgd_update),
        torch.optim.Adam: Rule(_adam_kept, True, _adam_form, _adam_numbers, _adam_update),
        torch.optim.AdamW: Rule(_adam_kept, True, _adam_form, _adam_numbers, _adam_update),
        torch.optim.RMSprop: Rule(_rmsprop_kept, True, _rmsprop_form, _rmsprop_numbers, _rmsprop_update),
        torch.optim.Adagrad: Rule(keeps("sum"), True, plain_form, _adagrad_numbers, _adagrad_update),
        **RARE,
    }
)
