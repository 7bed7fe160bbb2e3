"""Let checkpoints that call backward() themselves (`use_reentrant=True`) be traced as those that autograd sees.

Both compute the same; PyTorch takes the first kind where nothing is said. While code is traced another object stands in
the place of its function: of tensors that are no stand-ins it gives what that gives, and other threads do not notice.

Graphs of Dynamo have an operator in the place of a checkpoint; it becomes a call of PyTorch's own function again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
import torch.utils.checkpoint as checkpoints

from weft.trace.interception.capture import is_stand_in, real_stand_in
from weft.trace.interception.modes import checkpoints_without_dynamo

NAME = "CheckpointFunction"


class CheckpointStandIn:
    """The function of reentrant checkpoints, where stand-ins may be given."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)

    def apply(self, run: Callable[..., Any], preserves_state: bool, *arguments: Any) -> Any:
        """Checkpoint a call."""
        given = [real_stand_in(argument) for argument in arguments if isinstance(argument, torch.Tensor)]
        if not any(map(is_stand_in, given)):
            return self.function.apply(run, preserves_state, *arguments)
        if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in given):
            with torch.no_grad():  # as in eager: a gradient comes in by arguments alone
                return run(*arguments)
        with checkpoints.set_checkpoint_early_stop(False):
            return checkpoints.checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=preserves_state)


_lock = Lock()
_in_use = [0]  # how many traces there are


@contextmanager
def checkpoints_as_autograd_sees() -> Iterator[None]:
    """While entered, reentrant checkpoints of stand-ins are traced as the others, and none imports Dynamo."""
    space = vars(checkpoints)
    with _lock:
        _in_use[0] += 1
        if _in_use[0] == 1:
            space[NAME] = CheckpointStandIn(space[NAME])
    try:
        with checkpoints_without_dynamo():
            yield
    finally:
        with _lock:
            _in_use[0] -= 1
            if not _in_use[0]:
                space[NAME] = space[NAME].function


def checkpoint_as_eager(module: torch.fx.GraphModule) -> None:
    """Let what is computed again for the backward draw the same random numbers: Dynamo leaves that to its compilers."""
    found = [node for node in module.graph.nodes if node.target is torch.ops.higher_order.tag_activation_checkpoint]
    for node in found:
        node.target = _checkpointed
    if found:
        module.recompile()


def _checkpointed(part: torch.fx.GraphModule, *arguments: Any, **options: Any) -> Any:
    selective = part.meta.get("_checkpoint_context_fn")
    own = {} if selective is None else {"context_fn": selective}
    return checkpoints.checkpoint(part, *arguments, **{**options, **own, "use_reentrant": False})
