"""What `weft.step` made -> the same training as a loop of PyTorch's, in the ways that rivals run it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from weft.api.asynchronous import lazy
from weft.api.hybrid import hybridize
from weft.api.step import Step, step
from weft.api.step_training import losses_of
from weft.errors import UsageError
from weft.trace.interception.capture import tree_flatten, tree_map_only

Run = Callable[[], Any]
Losses = Callable[..., Any]


def losses_function(trained: Step) -> Losses:
    """Give forward and loss as a function of the batch."""
    return lambda *arguments: losses_of(trained.task, arguments, {})


def loop(trained: Step, inputs: tuple[Any, ...], losses: Losses | None = None) -> Run:
    """Give one turn of the usual loop: forward with loss, backward, update."""
    task, optimizer = trained.task, trained.optimizer
    if task.accumulate > 1:
        raise UsageError(
            "a step that accumulates is not compared", why="its calls differ", fix="name a step of one batch"
        )
    forward = losses or losses_function(trained)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def run() -> Any:
        optimizer.zero_grad()
        found = forward(*inputs)
        total = sum(leaf.sum() for leaf in tree_flatten(found)[0] if isinstance(leaf, torch.Tensor))
        total.backward()  # type: ignore[union-attr]  # a sum of tensors is one
        if task.clipping.value is not None:
            nn.utils.clip_grad_value_(parameters, task.clipping.value)
        if task.clipping.norm is not None:
            nn.utils.clip_grad_norm_(parameters, task.clipping.norm)
        optimizer.step()
        return tree_map_only(torch.Tensor, torch.Tensor.detach, found)

    return run


def eager_loop(trained: Step, inputs: tuple[Any, ...]) -> Run:
    """The loop as PyTorch runs it."""
    return loop(trained, inputs)


def compiled_loop(trained: Step, inputs: tuple[Any, ...]) -> Run:
    """The loop with forward and loss compiled by torch.compile, and with them their backward."""
    return loop(trained, inputs, torch.compile(losses_function(trained)))


def hybrid_loop(trained: Step, inputs: tuple[Any, ...]) -> Run:
    """The loop with forward and loss hybridized, and with them their backward."""
    if isinstance(trained.task.net, nn.Module):
        hybridize(trained.task.net)
        return loop(trained, inputs)
    return loop(trained, inputs, hybridize(losses_function(trained)))


def lazy_loop(trained: Step, inputs: tuple[Any, ...]) -> Run:
    """The loop in a lazy block, which waits at its end."""
    turn = loop(trained, inputs)

    def run() -> Any:
        with lazy():
            return turn()

    return run


def whole_step(trained: Step, inputs: tuple[Any, ...]) -> Run:
    """The step itself."""
    return lambda: trained(*inputs)


def in_double(trained: Step) -> Step:
    """The same training in float64, on copies."""
    task = trained.task
    net, loss, optimizer = copy.deepcopy((task.net, task.loss, trained.optimizer))
    for module in (net, loss):
        if isinstance(module, nn.Module):
            module.double()
    return step(net, loss, optimizer, clip_norm=task.clipping.norm, clip_value=task.clipping.value)


def parameters_of(trained: Step) -> list[torch.Tensor]:
    """Copies of what the optimizer changes."""
    return [parameter.detach().clone() for group in trained.optimizer.param_groups for parameter in group["params"]]
