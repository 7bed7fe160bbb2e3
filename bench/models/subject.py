"""What one measured call runs: a module or function with its inputs, or a training step's parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

SEED = 20


@dataclass(frozen=True, slots=True)
class Subject:
    """A module or function in evaluation mode and the tensors it is called with."""

    thing: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class TrainingSubject:
    """A module in training mode, one batch, its targets, the loss and what makes the optimizer."""

    thing: nn.Module
    inputs: tuple[torch.Tensor, ...]
    target: torch.Tensor
    loss: Callable[[Any, torch.Tensor], torch.Tensor]
    optimizer: Callable[..., torch.optim.Optimizer]

    def make_optimizer(self, **choices: Any) -> torch.optim.Optimizer:
        """Make the optimizer; `choices` are those of its implementation, such as fused, never of its arithmetic."""
        return self.optimizer(self.thing.parameters(), **choices)


def as_module(thing: Callable[..., Any]) -> nn.Module:
    """Give a function the form of a module, for peers that accept nothing else."""
    return thing if isinstance(thing, nn.Module) else _FunctionModule(thing)


class _FunctionModule(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def for_evaluation(module: nn.Module) -> nn.Module:
    """Put a module in evaluation mode with running statistics as after training, not those of the start."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, std=0.1)
            nn.init.uniform_(part.running_var, 0.5, 1.5)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.1)
    return module.eval()


def doubled(tensors: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Turn floating tensors into float64 and leave the others."""
    return tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors)
