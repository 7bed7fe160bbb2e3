"""One batch -> a step of PyTorch's usual training loop: what a checked step is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.api.optimizers.library import by_library
from weft.api.step_training import Task, losses_of
from weft.trace.interception.capture import tree_flatten, tree_map_only


@dataclass(frozen=True, slots=True, eq=False)
class UsualLoop:
    """What the loop trains, how many calls it has added up since its last update, and its parameters."""

    task: Task
    optimizer: torch.optim.Optimizer
    parameters: Sequence[torch.Tensor]
    calls: int

    def run(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Make a step; gives the losses, without a gradient."""
        if self.calls + 1 < self.task.accumulate:
            return self._differentiate(arguments, keywords)

        def differentiate() -> Any:
            losses = self._differentiate(arguments, keywords)
            clipping = self.task.clipping
            if clipping.norm is not None:
                torch.nn.utils.clip_grad_norm_(self.parameters, clipping.norm)
            if clipping.value is not None:
                torch.nn.utils.clip_grad_value_(self.parameters, clipping.value)
            return losses

        return by_library(self.optimizer, differentiate)

    def _differentiate(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        if not self.calls:
            self.optimizer.zero_grad()
        with torch.inference_mode(False), torch.enable_grad():
            losses = losses_of(self.task, arguments, keywords)
            roots = [leaf for leaf in tree_flatten(losses)[0] if isinstance(leaf, torch.Tensor)]
            carrying = [root for root in roots if root.requires_grad] or roots
            weights = [torch.full_like(root, 1 / self.task.accumulate) for root in carrying]
            torch.autograd.backward(carrying, weights, inputs=[one for one in self.parameters if one.requires_grad])
        return tree_map_only(torch.Tensor, torch.Tensor.detach, losses)
