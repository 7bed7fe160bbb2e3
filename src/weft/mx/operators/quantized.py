"""Compute with whole numbers of 8 bits that stand for real ones between bounds: arrays of one number that go along."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.mx.base.errors import MXNetError
from weft.mx.operators.layers import convolution, fully_connected, pooling
from weft.mx.operators.table import RULES, OperatorRule, Shape, Sizes, computes

INT8, UINT8, INT32 = 127.0, 255.0, 2.0**31 - 1  # the largest whole numbers, which stand for a bound
# Half a step further, as MXNet 1.9.1 has it in places: where it finds bounds itself, back to real numbers, and in sums.
FAR_INT8, FAR_UINT8 = 127.5, 255.5


def _bound(low: Tensor, high: Tensor) -> Tensor:
    """The larger of two bounds, as if they lay on both sides of 0 alike."""
    return torch.maximum(low.abs(), high.abs()).reshape(1)


def _bounds(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds that go along as they are; no gradient goes through them."""
    return low.detach().reshape(1).clone(), high.detach().reshape(1).clone()


def _one(number: float, like: Tensor) -> Tensor:
    return torch.full((1,), float(number), dtype=torch.float32, device=like.device)


def _to_int8(x: Tensor, bound: Tensor, most: float = INT8, least: float = -INT8) -> tuple[Tensor, Tensor, Tensor]:
    return torch.round(x * (most / bound)).clamp(least, INT8).to(torch.int8), -bound, bound


def _to_uint8(x: Tensor, low: Tensor, high: Tensor, most: float = UINT8) -> tuple[Tensor, Tensor, Tensor]:
    """What is negative is 0, whatever the lower bound."""
    scaled = torch.round(x * (most / _bound(low, high)))
    return scaled.clamp(0, UINT8).to(torch.uint8), low.reshape(1).clone(), high.reshape(1).clone()


@computes("_contrib_quantize", outputs=3)
def quantize(p: Any, x: Tensor, low: Tensor, high: Tensor) -> Any:
    """Real numbers as whole ones of 8 bits between given bounds."""
    x, low, high = x.detach(), low.detach(), high.detach()
    return _to_uint8(x, low, high) if p.out_type == "uint8" else _to_int8(x, _bound(low, high))


@computes("_contrib_quantize_v2", outputs=3, mixed=True)
def quantize_by_itself(p: Any, x: Tensor) -> Any:
    """Real numbers as whole ones of 8 bits, between given bounds or those of the numbers."""
    calibrated = p.min_calib_range is not None and p.max_calib_range is not None
    x, kind = x.detach(), p.out_type
    if kind == "auto":
        kind = "uint8" if calibrated and p.min_calib_range >= 0 else "int8"
    if x.dtype in (torch.int8, torch.uint8):
        own = (0, UINT8) if x.dtype is torch.uint8 else (-INT8, INT8)
        low, high = (p.min_calib_range, p.max_calib_range) if calibrated else own
        return x.clone(), _one(low, x), _one(high, x)
    low = _one(p.min_calib_range, x) if calibrated else x.min().reshape(1)
    high = _one(p.max_calib_range, x) if calibrated else x.max().reshape(1)
    if kind == "uint8":
        return _to_uint8(x, low, high, FAR_UINT8)
    return _to_int8(x, _bound(low, high), FAR_INT8, -INT8 - 1)


def _real(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """What whole numbers stand for."""
    steps = {torch.uint8: FAR_UINT8, torch.int8: FAR_INT8}.get(x.dtype, INT32)
    return x * (_bound(low.detach(), high.detach()) / steps)


@computes("_contrib_dequantize", mixed=True)
def dequantize(_p: Any, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Real numbers of whole ones."""
    if x.dtype not in (torch.int8, torch.uint8):
        raise MXNetError("Check failed: in_attrs->at(0) == mshadow::kUint8 || in_attrs->at(0) == mshadow::kInt8")
    return _real(x, low, high).to(torch.float32)


@computes("_contrib_requantize", outputs=3, mixed=True)
def requantize(p: Any, x: Tensor, low: Tensor, high: Tensor) -> Any:
    """Whole numbers of 32 bits as ones of 8."""
    real = _real(x, low, high).to(torch.float32)
    if p.min_calib_range is not None and p.max_calib_range is not None:
        return _to_int8(real, _bound(_one(p.min_calib_range, x), _one(p.max_calib_range, x)), least=-INT8 - 1)
    return _to_int8(real, _bound(real.min().reshape(1), real.max().reshape(1)))


@computes("_contrib_quantized_flatten", outputs=3, mixed=True)
def quantized_flatten(_p: Any, x: Tensor, low: Tensor, high: Tensor) -> Any:
    """All axes but the first as one."""
    return x.reshape(x.shape[0], -1).clone(), *_bounds(low, high)


@computes("_contrib_quantized_act", outputs=3, mixed=True)
def quantized_activation(p: Any, x: Tensor, low: Tensor, high: Tensor) -> Any:
    """What is negative as 0."""
    if p.act_type != "relu":
        raise MXNetError(f"Check failed: param.act_type == 'relu' : quantized {p.act_type} is not supported")
    return x.clamp(min=0), *_bounds(low, high)


@computes("_contrib_quantized_pooling", outputs=3, mixed=True)
def quantized_pooling(p: Any, x: Tensor, low: Tensor, high: Tensor) -> Any:
    """The largest of each window, or the mean, rounded."""
    return pooling(p, x.to(torch.float32)).round().to(x.dtype), *_bounds(low, high)


def _shift_of_rows(bias: Tensor, bounds: Sequence[Tensor], of_x: Tensor) -> Tensor:
    """A bias in steps of the sums that it is added to."""
    return bias.to(torch.float64) * (_bound(bounds[4], bounds[5]) / FAR_INT8 * of_x * (FAR_INT8 / _bound(*bounds[2:4])))


@dataclass(frozen=True)
class Product:
    """A sum of products, and how MXNet's scales its bounds and its bias."""

    compute: Callable[..., Tensor]
    uint8_steps: float  # for how many steps the bounds of inputs without signs count in those of the result
    scales_bias: bool  # whether the bias has bounds of its own, or steps of the sums

    def __call__(self, p: Any, x: Tensor, weight: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sums in 32 bits, and their bounds."""
        given, bounds = ((), rest) if p.no_bias else (rest[:1], rest[1:])
        bounds = tuple(bound.detach() for bound in bounds)
        is_uint8 = x.dtype is torch.uint8
        of_x = _bound(bounds[0], bounds[1])
        shift = [bias.to(torch.float64) for bias in given]
        if self.scales_bias:
            far = (FAR_UINT8 if is_uint8 else FAR_INT8) / of_x
            shift = [_shift_of_rows(bias, bounds, far).trunc() for bias in given]
        whole = self.compute(p, x.to(torch.float64), weight.to(torch.float64), *shift)
        most = of_x / (self.uint8_steps if is_uint8 else INT8) * (_bound(bounds[2], bounds[3]) / INT8) * INT32
        return whole.round().to(torch.int32), -most, most


def _inputs(p: Any) -> int:
    return 6 if p.no_bias else 9


def _weight_sizes(p: Any, sizes: Sizes) -> list[Shape | None]:
    """One number for each bound."""
    return [*sizes[: 2 if p.no_bias else 3], *[(1,)] * (4 if p.no_bias else 6)]


PRODUCTS = {
    "fully_connected": Product(fully_connected, UINT8, scales_bias=True),
    "conv": Product(convolution, INT8, scales_bias=False),
}
for _name, _compute in PRODUCTS.items():
    RULES[f"_contrib_quantized_{_name}"] = OperatorRule(
        _compute, inputs=_inputs, outputs=3, mixed=True, complete=_weight_sizes
    )


@computes("_contrib_quantized_concat", outputs=3, mixed=True)
def quantized_concat(p: Any, *given: Tensor) -> Any:
    """Arrays one after the other, brought to the widest of their bounds."""
    count = p.num_args
    arrays, bounds = given[:count], [bound.detach() for bound in given[count:]]
    lows, highs = bounds[::2], bounds[1::2]
    low = torch.cat([each.reshape(1) for each in lows]).min()
    high = torch.cat([each.reshape(1) for each in highs]).max()
    signed = any(array.dtype is torch.int8 for array in arrays)
    bound = torch.maximum(low.abs(), high.abs()).reshape(1)
    parts = []
    for array, own_low, own_high in zip(arrays, lows, highs, strict=True):
        ratio = (_bound(own_low, own_high) if signed else own_high) / (bound if signed else high)
        parts.append((array * ratio).round().to(torch.int8 if signed else torch.uint8))
    return torch.cat(parts, p.dim), low.reshape(1), high.reshape(1)


@computes("_contrib_quantized_elemwise_add", outputs=3, mixed=True)
def quantized_add(p: Any, x: Tensor, y: Tensor, *bounds: Tensor) -> Any:
    """Sums in 32 bits."""
    total = _real(x, bounds[0], bounds[1]) + _real(y, bounds[2], bounds[3])
    if p.min_calib_range is not None and p.max_calib_range is not None:
        most = _bound(_one(p.min_calib_range, x), _one(p.max_calib_range, x))
    else:
        most = _bound(bounds[0], bounds[1]) + _bound(bounds[2], bounds[3])
    whole = (total.to(torch.float64) * (INT32 / most)).round().clamp(-INT32, INT32)
    return whole.to(torch.int32), -most, most


@computes("_contrib_quantized_elemwise_mul", outputs=lambda p: 1 if p.enable_float_output else 3, mixed=True)
def quantized_mul(p: Any, x: Tensor, y: Tensor, *bounds: Tensor) -> Any:
    """Products in 32 bits, or real ones."""
    if p.enable_float_output:
        return (_real(x, bounds[0], bounds[1]) * _real(y, bounds[2], bounds[3])).to(torch.float32)
    unit = _bound(bounds[0], bounds[1]) / INT8 * (_bound(bounds[2], bounds[3]) / INT8)
    return x.to(torch.int32) * y.to(torch.int32), -unit * INT32, unit * INT32


@computes("_contrib_quantized_embedding", outputs=3, mixed=True)
def quantized_embedding(_p: Any, x: Tensor, weight: Tensor, low: Tensor, high: Tensor) -> Any:
    """The rows of a table that indices name."""
    places = x.to(torch.int64).clamp(0, weight.shape[0] - 1)
    return weight[places], *_bounds(low, high)


def _norm_sizes(p: Any, sizes: Sizes) -> list[Shape | None]:
    """A number for each channel, and one for each bound."""
    x = sizes[0]
    own = (x[p.axis],) if x and x[p.axis] else None
    return [x, own, own, own, own, (1,), (1,)]


@computes("_contrib_quantized_batch_norm", outputs=3, mixed=True, complete=_norm_sizes)
def quantized_batch_norm(p: Any, x: Tensor, *arrays: Tensor) -> Any:
    """Normalize by means that are known, between bounds that are given."""
    gamma, beta, mean, variance, low, high = (array.detach().to(torch.float32) for array in arrays)
    if p.min_calib_range is None or p.max_calib_range is None:
        raise MXNetError("Check failed: quantized batch norm takes min_calib_range and max_calib_range")
    sizes = [1] * x.dim()
    sizes[p.axis] = -1
    bound = _bound(_one(p.min_calib_range, x), _one(p.max_calib_range, x))
    scale = gamma * torch.rsqrt(variance + p.eps)  # MXNet takes no notice of fix_gamma here
    shift = (beta - mean * scale) * (FAR_INT8 / bound)
    # What divides by the deviation divides once more, by that of numbers whose variance is 1.
    steps = scale * (_bound(low, high) / bound) / math.sqrt(1 + p.eps)
    found = x.to(torch.float32) * steps.reshape(sizes) + shift.reshape(sizes)
    whole = torch.round(found).clamp(-INT8 - 1, INT8).to(torch.int8)
    return whole, _one(p.min_calib_range, x), _one(p.max_calib_range, x)


def _divergence(p: Tensor, q: Tensor) -> float:
    """How much a distribution differs from another; infinite where one of them is empty. Zeros count as a little."""

    def smoothed(given: Tensor) -> Tensor | None:
        empty = given == 0
        filled = int((~empty).sum())
        if not filled:
            return None
        taken = LITTLE * int(empty.sum()) / filled
        return None if taken >= 1 else torch.where(empty, LITTLE, given - taken)

    one, other = smoothed(p), smoothed(q)
    if one is None or other is None:
        return float("inf")
    one, other = one / one.sum(), other / other.sum()
    return float((one * torch.log(one / other)).sum())


@computes("_contrib_quantize_asym", outputs=3, mixed=True)
def quantize_between(p: Any, x: Tensor) -> Any:
    """Real numbers as whole ones of 8 bits without signs, and what to multiply and to add for that."""
    x = x.detach()
    calibrated = p.min_calib_range is not None and p.max_calib_range is not None
    low = _one(p.min_calib_range, x) if calibrated else x.min().reshape(1)
    high = _one(p.max_calib_range, x) if calibrated else x.max().reshape(1)
    scale = UINT8 / (high - low)
    shift = UINT8 - high * scale
    return torch.round(x * scale + shift).clamp(0, UINT8).to(torch.uint8), scale, shift


LITTLE = 1e-4  # what stands for an empty bin


@computes("_contrib_calibrate_entropy", outputs=2)
def calibrate_entropy(p: Any, counts: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """The bound of 8-bit numbers that keeps most of a distribution, and how much it changes it."""
    if counts.device.type == "meta":
        return counts.new_empty(1), counts.new_empty(1)
    counts, edges = counts.detach().to(torch.float64), edges.detach()
    middle, half, bins = len(counts) // 2, p.num_quantized_bins // 2, p.num_quantized_bins
    best = (float("inf"), 0.0)
    for reach in range(half, middle + 1):
        begin, end = middle - reach, min(middle + reach + 1, len(counts))
        inner = counts[begin:end]
        clipped = inner.clone()
        clipped[0] += counts[:begin].sum()
        clipped[-1] += counts[end:].sum()
        each = len(inner) // bins
        spread = torch.zeros_like(inner)
        for part in range(bins):
            rows = slice(part * each, len(inner) if part == bins - 1 else (part + 1) * each)
            filled = clipped[rows] != 0
            if filled.any():
                spread[rows] = torch.where(filled, inner[rows].sum() / filled.sum(), 0.0)
        best = min(best, (_divergence(clipped, spread), float(edges[end])))
    return counts.new_tensor([best[1]], dtype=torch.float32), counts.new_tensor([best[0]], dtype=torch.float32)
