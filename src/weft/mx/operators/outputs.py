"""Compute losses, and output layers whose gradient is that of a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from weft.mx.operators.table import Shape, Sizes, computes


class _WithGradient(torch.autograd.Function):
    """A value whose gradient is another array, whatever comes from behind (or times that, if it is asked for)."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, value: Tensor, gradient: Tensor, times: bool) -> Tensor:
        ctx.save_for_backward(gradient)
        ctx.times = times  # type: ignore[attr-defined]
        ctx.sizes = x.shape  # type: ignore[attr-defined]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *behind: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return (gradient * behind[0] if ctx.times else gradient).reshape(ctx.sizes), None, None, None


def with_gradient(x: Tensor, value: Tensor, gradient: Callable[[], Tensor], *, times: bool = False) -> Tensor:
    """The value, through which `x` gets this gradient."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return value
    with torch.no_grad():
        found = gradient()
    result: Tensor = _WithGradient.apply(x, value.detach(), found, times)  # type: ignore[no-untyped-call]
    return result


def _label_sizes(p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    if not sizes[0]:
        return sizes
    if sizes[1] and all(sizes[1]):
        return sizes
    x = sizes[0]
    return [x, (x[0], *x[2:]) if p.multi_output else x[:-1] if p.preserve_shape else x[:1]]


@computes("SoftmaxOutput", mixed=True, complete=_label_sizes)
def softmax_output(p: Any, x: Tensor, label: Tensor) -> Tensor:
    """Softmax; its gradient is that of the cross entropy with labels."""
    axis = 1 if p.multi_output or not p.preserve_shape else x.dim() - 1
    lines = x if p.multi_output or p.preserve_shape or x.dim() == 2 else x.reshape(x.shape[0], -1)
    value = torch.softmax(lines, dim=axis)

    def gradient() -> Any:
        if label.shape == x.shape:
            return (value.reshape(x.shape) - label) * p.grad_scale
        classes = lines.shape[axis]
        places = label.to(torch.int64).reshape(value.select(axis, 0).shape)
        hit = functional.one_hot(places.clamp(0, classes - 1), classes).movedim(-1, axis).to(x.dtype)
        if p.smooth_alpha:
            hit = hit * (1 - p.smooth_alpha) + (1 - hit) * p.smooth_alpha / (classes - 1)
        found = value - hit
        counted = places.numel()
        if p.use_ignore:
            kept = places != int(p.ignore_label)
            found = found * kept.unsqueeze(axis)
            counted = int(kept.sum()) if p.normalization == "valid" else counted
        share = {"null": 1, "batch": x.shape[0], "valid": max(counted, 1)}[p.normalization]
        if p.multi_output and p.normalization == "null":
            share = math.prod(x.shape[2:])
        return found * (p.grad_scale / share)

    return with_gradient(x, value.reshape(x.shape), gradient, times=p.out_grad)


def _like_data(_p: Any, sizes: Sizes) -> Sequence[Shape | None]:
    return [sizes[0], sizes[1] if sizes[1] and all(sizes[1]) else sizes[0]]


def _regression(name: str, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor, Tensor], Tensor]) -> None:
    @computes(name, complete=_like_data)
    def regression(p: Any, x: Tensor, label: Tensor) -> Tensor:
        found = value(x)
        per_row = max(label.numel() // label.shape[0], 1)
        return with_gradient(x, found, lambda: slope(found, label.reshape(x.shape)) * (p.grad_scale / per_row))


_regression("LinearRegressionOutput", torch.clone, torch.sub)
_regression("LogisticRegressionOutput", torch.sigmoid, torch.sub)
_regression("MAERegressionOutput", torch.clone, lambda x, label: torch.sign(x - label))


@computes("SVMOutput", mixed=True, complete=lambda _p, sizes: [sizes[0], (sizes[0] or ())[:1]])
def svm_output(p: Any, x: Tensor, label: Tensor) -> Tensor:
    """The scores; their gradient is that of the hinge loss, or of its square."""

    def gradient() -> Any:
        hit = functional.one_hot(label.to(torch.int64), x.shape[1]).to(torch.bool)
        short = torch.where(hit, p.margin - x, p.margin + x)
        size = (short > 0).to(x.dtype) if p.use_linear else 2 * torch.clamp(short, min=0)
        return torch.where(hit, -size, size) * p.regularization_coefficient

    return with_gradient(x, x.clone(), gradient)


@computes("MakeLoss")
def make_loss(p: Any, x: Tensor) -> Tensor:
    """The same; its gradient is a constant."""

    def gradient() -> Tensor:
        share = 1
        if p.normalization == "batch":
            share = x.shape[0]
        elif p.normalization == "valid":
            share = max(int((x > p.valid_thresh).sum()), 1)
        return torch.full_like(x, p.grad_scale / share)

    return with_gradient(x, x.clone(), gradient)


@computes("make_loss")
def make_loss_of_ones(_p: Any, x: Tensor) -> Tensor:
    """The same; its gradient is 1."""
    return with_gradient(x, x.clone(), lambda: torch.ones_like(x))


def _ctc_inputs(p: Any) -> Any:
    return 2 + p.use_data_lengths + p.use_label_lengths


@computes("CTCLoss", mixed=True, inputs=_ctc_inputs, hidden=1)
def ctc_loss(p: Any, x: Tensor, label: Tensor, *lengths: Tensor) -> Tensor:
    """Minus the logarithm of the probability of a sequence of labels."""
    steps, batch, classes = x.shape
    if x.device.type == "meta":  # of which torch's kernel knows nothing
        return x.new_empty((batch,))
    first = p.blank_label == "first"
    given = list(lengths)
    data_lengths = given.pop(0).to(torch.int64) if p.use_data_lengths else torch.full((batch,), steps, device=x.device)
    filled = (label != 0) & (label != -1) if first else label != -1
    counted = given.pop(0).to(torch.int64) if p.use_label_lengths else filled.to(torch.int64).cumprod(1).sum(1)
    places = label.to(torch.int64).clamp(min=0)
    return functional.ctc_loss(
        torch.log_softmax(x, -1), places, data_lengths, counted, blank=0 if first else classes - 1, reduction="none"
    )


@computes("_contrib_hawkesll", mixed=True, outputs=2)
def hawkes_log_likelihood(_p: Any, *arrays: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of the likelihood of events of several kinds, which excite their own kind; new states."""
    base, alpha, beta, state, lags, marks, valid_length, max_time = arrays
    now = torch.zeros_like(max_time)
    last = torch.zeros_like(state)
    total = torch.zeros_like(max_time)
    lags, marks = lags.detach(), marks.to(torch.int64)
    for step in range(lags.shape[1]):
        counts = step < valid_length
        kind = marks[:, step]
        at = kind.unsqueeze(1)
        now = torch.where(counts, now + lags[:, step], now)
        passed = now - last.gather(1, at)[:, 0]
        faded = torch.exp(-beta[kind] * passed)
        before, rate = state.gather(1, at)[:, 0], base.gather(1, at)[:, 0]
        density = torch.log(rate + alpha[kind] * beta[kind] * before * faded)
        expected = rate * passed + alpha[kind] * before * (1 - faded)
        total = total + torch.where(counts, density - expected, 0.0)
        state = torch.where(counts[:, None], state.scatter(1, at, (1 + before * faded)[:, None]), state)
        last = torch.where(counts[:, None], last.scatter(1, at, now[:, None]), last)
    passed = max_time[:, None] - last
    faded = torch.exp(-beta * passed)
    rest = base * passed + alpha * state * (1 - faded)
    return total - rest.sum(1), state * faded


class _TowardsSparseness(torch.autograd.Function):
    """The same; a penalty on means that are far from a target goes along with the gradient."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, mean: Tensor, p: Any) -> Tensor:
        ctx.save_for_backward(mean)
        ctx.p = p  # type: ignore[attr-defined]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *behind: Tensor) -> Any:
        (mean,) = ctx.saved_tensors
        target = ctx.p.sparseness_target
        return behind[0] + ctx.p.penalty * ((1 - target) / (1 - mean) - target / mean), None, None


@computes(
    "IdentityAttachKLSparseReg", aux=(1,), modal=True, complete=lambda _p, sizes: [sizes[0], (sizes[0] or ())[1:2]]
)
def attach_sparseness(p: Any, x: Tensor, moving_avg: Tensor) -> Any:
    """The same; its gradient draws the means of columns, which move, to a target."""
    columns = x.detach().reshape(x.shape[0], x.shape[1], -1)
    new = p.momentum * moving_avg + (1 - p.momentum) * columns.mean((0, 2))
    shaped = new.reshape(1, -1, *[1] * (x.dim() - 2))
    found = _TowardsSparseness.apply(x, shaped, p) if torch.is_grad_enabled() and x.requires_grad else x.clone()  # type: ignore[no-untyped-call]
    return (found, new) if p.train else found
