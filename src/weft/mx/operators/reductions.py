"""Compute sums, extremes, sorted orders and other results over axes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.mx.base.element_types import torch_type
from weft.mx.operators.table import RULES, OperatorRule, computes, type_of


def axes_of(x: Tensor, axis: Any, *, exclude: bool = False) -> tuple[int, ...]:
    """The axes that are meant; none named means all."""
    named = axis if isinstance(axis, tuple) else () if axis is None else (axis,)
    for place in named:
        if not -x.dim() <= place < x.dim():
            raise IndexError(f"axis {place} is out of bounds for an array of {x.dim()} dimensions")
    found = tuple(place % x.dim() for place in named)
    if exclude and found:
        return tuple(place for place in range(x.dim()) if place not in found)
    return found or tuple(range(x.dim()))


def at_least_one(x: Tensor) -> Tensor:
    """MXNet has no arrays without dimensions: one element is an array of size 1."""
    return x.reshape(1) if x.dim() == 0 else x


Reduction = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, dim=axis, keepdim=keep, dtype=x.dtype)
    return x


def _mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if x.is_floating_point():
        return torch.mean(x, dim=axes, keepdim=keep)
    return torch.div(torch.sum(x, dim=axes, keepdim=keep), _count(x, axes), rounding_mode="trunc").to(x.dtype)


def _count(x: Tensor, axes: tuple[int, ...]) -> int:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return count


class _Extreme(torch.autograd.Function):
    """An extreme whose whole gradient goes to each element that is one: torch divides it among them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[..., Tensor], axes: tuple[int, ...], keep: bool) -> Tensor:
        found = function(x, dim=axes, keepdim=True)
        ctx.save_for_backward(x == found)
        ctx.lost = () if keep else axes
        return found if keep else _without(found, axes)

    @staticmethod
    def backward(ctx: Any, *behind: Tensor) -> Any:
        (hit,) = ctx.saved_tensors
        gradient = behind[0]
        for axis in sorted(ctx.lost):
            gradient = gradient.unsqueeze(axis)
        return gradient * hit, None, None, None


def _without(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in axes])


def _extreme(function: Callable[..., Tensor], x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    if not (torch.is_grad_enabled() and x.requires_grad):
        return function(x, dim=axes, keepdim=keep)
    found: Tensor = _Extreme.apply(x, function, axes, keep)  # type: ignore[no-untyped-call]
    return found


REDUCTIONS: dict[str, Reduction] = {
    "sum": lambda x, axes, keep: torch.sum(x, dim=axes, keepdim=keep, dtype=x.dtype),
    "nansum": lambda x, axes, keep: torch.sum(torch.nan_to_num(x, posinf=torch.inf, neginf=-torch.inf), axes, keep),
    "mean": _mean,
    "prod": _product,
    "nanprod": lambda x, axes, keep: _product(torch.where(torch.isnan(x), 1, x), axes, keep),
    "max": partial(_extreme, torch.amax),
    "min": partial(_extreme, torch.amin),
    "_square_sum": lambda x, axes, keep: torch.sum(x * x, dim=axes, keepdim=keep),
}


def _reduced(function: Reduction, p: Any, x: Tensor) -> Tensor:
    axes = axes_of(x, p.axis, exclude=p.exclude)
    if not axes and x.dim():  # all are excluded, where torch takes no axes for all
        return function(x.unsqueeze(-1), (x.dim(),), False)
    return at_least_one(function(x, axes, p.keepdims))


for name, reduction in REDUCTIONS.items():
    RULES[name] = OperatorRule(partial(_reduced, reduction))


@computes("_np_cumsum")
def cumsum(p: Any, x: Tensor) -> Tensor:
    """The sums of all elements so far, along an axis or of all."""
    line = x.reshape(-1) if p.axis is None else x
    axis = 0 if p.axis is None else axes_of(x, p.axis)[0]
    return torch.cumsum(line, axis, dtype=x.dtype if p.dtype in (None, "None") else torch_type(p.dtype))


@computes("norm")
def norm(p: Any, x: Tensor) -> Tensor:
    """The sum of absolute values, or the root of the sum of squares."""
    axes = axes_of(x, p.axis)
    if p.ord == 1:
        found = torch.sum(torch.abs(x), dim=axes, keepdim=p.keepdims)
    else:
        found = torch.linalg.vector_norm(x, dim=axes, keepdim=p.keepdims)
    return at_least_one(found.to(type_of(p.out_dtype, x.dtype)))


@computes("moments", outputs=2)
def moments(p: Any, x: Tensor) -> Any:
    """The mean and the variance."""
    axes = axes_of(x, p.axes)
    mean = torch.mean(x, dim=axes, keepdim=True)
    variance = torch.mean((x - mean) ** 2, dim=axes, keepdim=p.keepdims)
    return at_least_one(mean if p.keepdims else torch.mean(x, dim=axes)), at_least_one(variance)


def _position(function: Callable[..., Tensor], p: Any, x: Tensor) -> Tensor:
    """Where an extreme is, as a float32; MXNet's argmax takes the first."""
    if p.axis is None:
        found = function(x.reshape(-1), dim=0, keepdim=False)
        return found.reshape([1] * x.dim() if p.keepdims else [1]).to(torch.float32)
    return at_least_one(function(x, dim=axes_of(x, p.axis)[0], keepdim=p.keepdims).to(torch.float32))


RULES["argmax"] = OperatorRule(partial(_position, torch.argmax))
RULES["argmin"] = OperatorRule(partial(_position, torch.argmin))


@computes("argmax_channel")
def argmax_channel(_p: Any, x: Tensor) -> Tensor:
    """Where the largest of each row is."""
    return torch.argmax(x, dim=1).to(x.dtype)


@computes("sort")
def sort(p: Any, x: Tensor) -> Tensor:
    """Elements in order."""
    line, axis = (x.reshape(-1), 0) if p.axis is None else (x, p.axis)
    return torch.sort(line, dim=axis, descending=not p.is_ascend, stable=True).values


@computes("argsort")
def argsort(p: Any, x: Tensor) -> Tensor:
    """The places of the elements in order."""
    line, axis = (x.reshape(-1), 0) if p.axis is None else (x, p.axis)
    return torch.sort(line, dim=axis, descending=not p.is_ascend, stable=True).indices.to(type_of(p.dtype, None))


@computes("topk", outputs=lambda p: 2 if p.ret_typ == "both" else 1)
def topk(p: Any, x: Tensor) -> Any:
    """The first of the elements in order: their values, places, both, or 1 where they are."""
    line, axis = (x.reshape(-1), 0) if p.axis is None else (x, p.axis)
    count = min(p.k, line.shape[axis]) if p.k > 0 else line.shape[axis]
    ordered = torch.sort(line, dim=axis, descending=not p.is_ascend, stable=True)
    values, places = ordered.values.narrow(axis, 0, count), ordered.indices.narrow(axis, 0, count)
    shown = places.to(type_of(p.dtype, None))
    if p.ret_typ == "mask":
        return torch.zeros_like(line).scatter(axis, places, 1).reshape(x.shape)
    return {"value": values, "indices": shown, "both": (values, shown)}[p.ret_typ]


@computes("softmax_cross_entropy", mixed=True)
def softmax_cross_entropy(_p: Any, x: Tensor, label: Tensor) -> Tensor:
    """The sum over the rows of minus the logarithm of the label's probability."""
    picked = torch.log_softmax(x, dim=-1).gather(1, label.to(torch.int64).reshape(-1, 1))
    return -picked.sum().reshape(1)


@computes("multi_sum_sq", mixed=True)
def multi_sum_sq(_p: Any, *arrays: Tensor) -> Tensor:
    """The sum of squares of each array."""
    return torch.stack([torch.sum(x.to(torch.float32) ** 2) for x in arrays])


@computes("_contrib_getnnz")
def getnnz(p: Any, x: Tensor) -> Tensor:
    """How many elements are not 0: of all, or of each row or column."""
    stored = x != 0
    return stored.sum().reshape(1) if p.axis is None else stored.sum(p.axis)
