"""Write dynamically quantised linear layers, which `quantize_dynamic` makes, in operators that programs hold.

PyTorch's operator takes an object with packed weights. What it computes, by any of its engines:

    scale = (max(x, 0) - min(x, 0)) / 127,  zero = round(-min / scale)
    y[m, n] = (sum over k of (qx[m, k] - zero) * qw[n, k]) * scale * sw[n] + bias[n],  qx = round(x / scale + zero)

with one scale for all that the layer is given. (127, where integers have 8 bits: `reduce_range`.) The sum is one of
integers of 32 bits. Weights are constants of the program: who changes them packs them anew, as another object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.trace.interception.capture import outside_tracing

PLAIN, RELU = torch.ops.quantized.linear_dynamic, torch.ops.quantized.linear_relu_dynamic
DYNAMIC = {PLAIN: False, PLAIN.default: False, RELU: True, RELU.default: True}
MOST, MOST_REDUCED = 255, 127
LEAST_SCALE = 6.1e-5  # PyTorch takes no smaller one, and moves the zero then


def dynamic_linear(function: Any, arguments: Any, keywords: Any) -> Callable[..., Tensor] | None:
    """What computes a dynamically quantised layer in small steps; None where a call is none, or not the usual one."""
    if not any(function is one for one in DYNAMIC):
        return None
    given, packed, *rest = arguments
    if (
        rest
        or not isinstance(given, Tensor)
        or given.dtype is not torch.float32
        or given.dim() < 2
        or not given.numel()
    ):
        return None
    if {*keywords} - {"reduce_range"}:
        return None
    with outside_tracing():
        weight, _ = packed.unpack()
        plain = isinstance(weight, Tensor) and weight.dtype is torch.qint8 and _zero_points(weight) == 0
    return partial(_linear, relu=DYNAMIC[function]) if plain else None


def _zero_points(weight: Tensor) -> float:
    if weight.qscheme() == torch.per_tensor_affine:
        return weight.q_zero_point()
    return float(weight.q_per_channel_zero_points().abs().max())


def _linear(given: Tensor, packed: Any, *, reduce_range: bool = False, relu: bool) -> Tensor:
    with outside_tracing():
        weight, bias = packed.unpack()
        integers = weight.int_repr()
        by_tensor = weight.qscheme() == torch.per_tensor_affine
        by_output = torch.tensor(weight.q_scale()) if by_tensor else weight.q_per_channel_scales()
        by_output = by_output.to(torch.float32).expand(integers.shape[0]).clone()
        sums = integers.sum(1, dtype=torch.int32)
    rows = given.reshape(-1, given.shape[-1])
    most = MOST_REDUCED if reduce_range else MOST
    low, high = rows.amin().clamp(max=0), rows.amax().clamp(min=0)
    exact = (high.double() - low.double()) / most
    scale = exact.float()
    scale = torch.where((scale == 0) | torch.isinf(1 / scale), 0.1, scale)
    # A small scale is enlarged, and the range with it: where zero lies in it stays as it was.
    zero = (-low.double() / torch.where(exact == 0, 1.0, exact)).round().clamp(0, most).float()
    scale = scale.clamp(min=LEAST_SCALE)
    numbers = (rows * (1 / scale) + zero).round().clamp(0, MOST).to(torch.uint8)
    product = numbers.to(torch.int32) @ integers.t().to(torch.int32) - zero.to(torch.int32) * sums
    found = product.float() * (scale * by_output)
    found = found if bias is None else found + bias
    found = torch.relu(found) if relu else found
    return found.reshape(*given.shape[:-1], integers.shape[0])
