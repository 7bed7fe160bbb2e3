"""Normalise by the statistics of the whole batch where several devices compute it: only sums over samples travel.

A mode of PyTorch takes `batch_norm` in training wherever it is called, so the modules stay what they are. Each device
brings its sums to a meeting, leaves with those of all, and does the same in the backward.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Total = Callable[[torch.Tensor], torch.Tensor]


class Meeting:
    """Where the devices of one step add up: each brings a tensor and gets the sum, in the order of devices.

    The last one to come adds up; `total` then sums over other processes.
    """

    def __init__(self, members: int, total: Total | None) -> None:
        self._brought: list[torch.Tensor | None] = [None] * members
        self._total = total
        self.error: BaseException | None = None
        self._sum = torch.zeros(())
        # Each member waits for all others of the same step, none of whom waits for anything else; one that fails
        # breaks the barrier, and the others get an error.
        self._barrier = threading.Barrier(members, self._add_up)

    def add(self, member: int, tensor: torch.Tensor) -> torch.Tensor:
        """Bring a tensor, and get the sum of all."""
        self._brought[member] = tensor
        self._barrier.wait()
        return self._sum.to(tensor.device)

    def leave(self, error: BaseException) -> None:
        """Let nobody wait for a member that failed."""
        if not isinstance(error, threading.BrokenBarrierError):
            self.error = self.error or error
        self._barrier.abort()

    def _add_up(self) -> None:
        first, *others = [tensor for tensor in self._brought if tensor is not None]
        self._sum = first.clone()
        for other in others:
            self._sum += other.to(first.device)
        if self._total is not None:
            self._sum = self._total(self._sum)


class SyncedNorm(TorchFunctionMode):
    """Within it, one member's batch norm in training takes mean and variance over the samples of all members."""

    def __init__(self, meeting: Meeting, member: int) -> None:
        super().__init__()
        self._meeting, self._member = meeting, member

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Take the place of batch norm; leave all else as it is."""
        if func is functional.batch_norm:
            return _batch_norm(self._meeting, self._member, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(  # noqa: PLR0913, PLR0917 - the signature of torch.nn.functional.batch_norm, and who takes part
    meeting: Meeting,
    member: int,
    x: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    if not training:
        return functional.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    normal, mean, variance, count = _Normalised.apply(x, meeting, member, eps)  # type: ignore[no-untyped-call]
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            moved = (momentum * (count > 0)).to(running_mean.dtype)  # where nobody has a sample, nothing is learned
            running_mean.lerp_(mean.to(running_mean.dtype), moved)
            unbiased = variance * (count / (count - 1).clamp(min=1))
            running_var.lerp_(unbiased.to(running_var.dtype), moved)
    shape = [1, -1] + [1] * (x.ndim - 2)
    if weight is not None:
        normal = normal * weight.view(shape)
    shifted: torch.Tensor = normal if bias is None else normal + bias.view(shape)
    return shifted


class _Normalised(torch.autograd.Function):
    """x less the mean of all, over the standard deviation of all; the backward sums over all as well."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, meeting: Meeting, member: int, eps: float) -> tuple[torch.Tensor, ...]:
        over = [dimension for dimension in range(x.ndim) if dimension != 1]
        wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        number = wide.new_full((1,), float(x.numel() // max(1, x.shape[1])))
        sums = meeting.add(member, torch.cat([wide.sum(over), number]))
        count = sums[-1]
        divisor = count.clamp(min=1)
        shape = [1, -1] + [1] * (x.ndim - 2)
        mean = sums[:-1] / divisor
        # The variance about the common mean, in a second meeting: sums of squares would cancel.
        variance = meeting.add(member, (wide - mean.view(shape)).square().sum(over)) / divisor
        scale = (variance + eps).rsqrt()
        normal = (wide - mean.view(shape)) * scale.view(shape)
        ctx.save_for_backward(normal, scale, divisor)
        ctx.meeting, ctx.member = meeting, member
        ctx.mark_non_differentiable(mean, variance, count)
        return normal.to(x.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        normal, scale, divisor = ctx.saved_tensors
        gradient = gradients[0].to(normal.dtype)
        over = [dimension for dimension in range(normal.ndim) if dimension != 1]
        channels = normal.shape[1]
        sums = torch.cat([gradient.sum(over), (gradient * normal).sum(over)])
        sums = ctx.meeting.add(ctx.member, sums) / divisor
        shape = [1, -1] + [1] * (normal.ndim - 2)
        centred = gradient - sums[:channels].view(shape) - normal * sums[channels:].view(shape)
        return (centred * scale.view(shape)).to(gradients[0].dtype), None, None, None
