"""Change the learning rate as updates go by: `mx.lr_scheduler`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any


class LRScheduler:
    """A rate for each number of updates, which may rise to its first value."""

    def __init__(
        self, base_lr: float = 0.01, warmup_steps: int = 0, warmup_begin_lr: float = 0, warmup_mode: str = "linear"
    ) -> None:
        if not isinstance(warmup_steps, int):
            raise AssertionError("warmup_steps is a whole number of updates")  # noqa: TRY004  # MXNet's
        if warmup_begin_lr > base_lr:
            raise ValueError("Base lr has to be higher than warmup_begin_lr")
        if warmup_steps < 0:
            raise ValueError("Warmup steps has to be positive or 0")
        if warmup_mode not in ("linear", "constant"):
            raise ValueError("Supports only linear and constant modes of warmup")
        self.base_lr = self.warmup_final_lr = base_lr
        self.warmup_steps, self.warmup_begin_lr, self.warmup_mode = warmup_steps, warmup_begin_lr, warmup_mode

    def get_warmup_lr(self, num_update: int) -> float:
        """The rate while it rises."""
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        return self.warmup_begin_lr + (self.warmup_final_lr - self.warmup_begin_lr) * num_update / self.warmup_steps

    def __call__(self, num_update: int) -> float:
        """The rate after so many updates."""
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        return self._rate(num_update)

    def _rate(self, num_update: int) -> float:
        raise NotImplementedError("must override this")


class FactorScheduler(LRScheduler):
    """Multiply the rate every so many updates."""

    def __init__(
        self, step: int, factor: float = 1, stop_factor_lr: float = 1e-8, base_lr: float = 0.01, **given: Any
    ) -> None:
        super().__init__(base_lr, **given)
        if step < 1:
            raise ValueError("Schedule step must be greater or equal than 1 round")
        if factor > 1.0:
            raise ValueError("Factor must be no more than 1 to make lr reduce")
        self.step, self.factor, self.stop_factor_lr, self.count = step, factor, stop_factor_lr, 0

    def _rate(self, num_update: int) -> float:
        while num_update > self.count + self.step:
            self.count += self.step
            self.base_lr = max(self.base_lr * self.factor, self.stop_factor_lr)
        return self.base_lr


class MultiFactorScheduler(LRScheduler):
    """Multiply the rate after given numbers of updates."""

    def __init__(self, step: Sequence[int], factor: float = 1, base_lr: float = 0.01, **given: Any) -> None:
        super().__init__(base_lr, **given)
        if not isinstance(step, list) or not step:
            raise AssertionError("step is a list of numbers of updates")
        if any(later <= earlier for earlier, later in pairwise(step)):
            raise ValueError("Schedule step must be an increasing integer list")
        if step[0] < 1:
            raise ValueError("Schedule step must be greater or equal than 1 round")
        if factor > 1.0:
            raise ValueError("Factor must be no more than 1 to make lr reduce")
        self.step, self.factor, self.cur_step_ind = step, factor, 0

    def _rate(self, num_update: int) -> float:
        while self.cur_step_ind < len(self.step) and num_update > self.step[self.cur_step_ind]:
            self.cur_step_ind += 1
            self.base_lr *= self.factor
        return self.base_lr


class _Falling(LRScheduler):
    """What rates that fall to a last value share."""

    def __init__(self, max_update: int, base_lr: float = 0.01, final_lr: float = 0, **given: Any) -> None:
        super().__init__(base_lr, **given)
        if not isinstance(max_update, int):
            raise AssertionError("max_update is a whole number of updates")  # noqa: TRY004  # MXNet's
        if max_update < 1:
            raise ValueError("maximum number of updates must be strictly positive")
        self.max_update, self.final_lr, self.base_lr_orig = max_update, final_lr, base_lr

    def _rate(self, num_update: int) -> float:
        if num_update <= self.max_update:
            done = (num_update - self.warmup_steps) / (self.max_update - self.warmup_steps)
            self.base_lr = self.final_lr + (self.base_lr_orig - self.final_lr) * self._left(done)
        return self.base_lr

    def _left(self, done: float) -> float:
        raise NotImplementedError


class PolyScheduler(_Falling):
    """Let the rate fall by a power."""

    def __init__(
        self, max_update: int, base_lr: float = 0.01, pwr: float = 2, final_lr: float = 0, *places: Any, **given: Any
    ) -> None:
        names = ("warmup_steps", "warmup_begin_lr", "warmup_mode")
        super().__init__(max_update, base_lr, final_lr, **dict(zip(names, places, strict=False)), **given)
        self.power = pwr

    def _left(self, done: float) -> float:
        return float((1 - done) ** self.power)


class CosineScheduler(_Falling):
    """Let the rate fall by half a cosine."""

    def __init__(self, max_update: int, base_lr: float = 0.01, final_lr: float = 0, *places: Any, **given: Any) -> None:
        names = ("warmup_steps", "warmup_begin_lr", "warmup_mode")
        super().__init__(max_update, base_lr, final_lr, **dict(zip(names, places, strict=False)), **given)

    def _left(self, done: float) -> float:
        return (1 + math.cos(math.pi * done)) / 2
