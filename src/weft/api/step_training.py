"""Write one training step as a Python function to trace, and as the usual loop of PyTorch that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from weft.api.loss_and_optimizer import refuse_no_loss, refuse_no_optimizer
from weft.api.optimizers.library import by_library
from weft.api.optimizers.rules import Tensors, UpdateRule
from weft.api.optimizers.several import one_optimizer
from weft.api.optimizers.state import NARROW, Prepared
from weft.errors import UnsupportedError, UsageError, named
from weft.programs.boundary import SECOND_TIME
from weft.trace.backward import refuse_reentrant
from weft.trace.interception.capture import (
    has_gradient_hooks,
    real_stand_in,
    storage_key,
    tree_flatten,
    tree_map_only,
    without_functions,
)
from weft.tracebacks import calls_users

Gradients = list[torch.Tensor | None]
MEMORY = ("normal", "low")
ORDER = "weft.step(net, loss, optimizer)"


@dataclass(frozen=True, slots=True)
class Clipping:
    """How gradients are limited before an update: by their norm over all parameters, or each element."""

    norm: float | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TrainingTask:
    """What a step trains: a module, its loss, the rule of its optimizer if Weft has one, and what limits gradients.

    `deterministic` steps give the same bits however many cores there are; those of `low_memory` compute cheap values
    again in the backward.
    """

    net: Callable[..., Any]
    loss: Callable[..., Any] | None
    rule: UpdateRule | None
    clipping: Clipping
    accumulate: int
    deterministic: bool
    low_memory: bool


@calls_users
def losses_of(task: TrainingTask, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Forward and loss: the last argument is the target, all others are the net's.

    A net that gives its loss itself may give it among other results, as their attribute `loss`.
    """
    if task.loss is None:
        found = task.net(*arguments, **keywords)
        loss = getattr(found, "loss", None)
        return loss if isinstance(loss, torch.Tensor) else found
    if not arguments:
        raise UsageError(
            "a step was given no target",
            why="its last argument that has no name is the target, and goes to the loss",
            fix="step(x, target), or step(target, x=x); weft.step(net, None, optimizer) where the net gives its loss",
        )
    *inputs, target = arguments
    return task.loss(task.net(*inputs, **keywords), target)


def refuse_nothing(trained: Sequence[torch.Tensor]) -> None:
    """Refuse a step that has no parameters to train."""
    if not trained:
        raise UsageError(
            "there is nothing to train: all parameters are frozen",
            why="none of them has requires_grad",
            fix="net.requires_grad_(True), or that of the parts that are to be trained",
        )


def total_gradients(
    task: TrainingTask, losses: Any, parameters: Sequence[torch.Tensor], spent: Sequence[torch.Tensor] = ()
) -> Gradients:
    """The gradients of the sum of all losses, each laid out as its parameter, in memory of its own.

    A gradient of a `spent` tensor would have to go on into the graph of an earlier step.
    """
    roots = _differentiated_of(losses)
    if not roots:
        raise UsageError(
            "the loss function gave no tensor", fix="return a zero-dimensional tensor, or a tuple or dict of them"
        )
    refuse_nothing(parameters)
    carrying = [root for root in roots if root.requires_grad] or roots
    weights = None  # of one number each autograd makes a gradient of 1 itself
    if task.accumulate > 1 or any(root.numel() != 1 for root in carrying):
        weights = [torch.full_like(root, 1 / task.accumulate) for root in carrying]
    found = _differentiated(carrying, [*parameters, *spent], weights)
    if any(gradient is not None for gradient in found[len(parameters) :]):
        raise RuntimeError(SECOND_TIME)
    seen: set[int] = set()
    return [
        None if gradient is None else _own(gradient, parameter, seen)
        for gradient, parameter in zip(found, parameters, strict=False)
    ]


def _differentiated_of(losses: Any) -> list[torch.Tensor]:
    """What is differentiated of losses: the one that a dict calls `loss`, or else all of them."""
    one = losses.get("loss") if isinstance(losses, dict) else None
    if isinstance(one, torch.Tensor):
        return [one]
    return [leaf for leaf in tree_flatten(losses)[0] if isinstance(leaf, torch.Tensor)]


def _differentiated(
    roots: list[torch.Tensor], parameters: Sequence[torch.Tensor], weights: list[torch.Tensor] | None
) -> Gradients:
    # Code that goes around the Python interface (autograd.Function.apply) reaches parameters themselves, other code
    # the stand-ins that a trace puts in their place.
    stand_ins = [real_stand_in(parameter) for parameter in parameters]
    refuse_reentrant(roots)
    with without_functions():
        found = torch.autograd.grad(roots, [*stand_ins, *parameters], weights, allow_unused=True)
    direct = found[len(stand_ins) :] if any(map(_differs, stand_ins, parameters)) else [None] * len(parameters)
    return [_sum(first, second) for first, second in zip(found[: len(stand_ins)], direct, strict=True)]


def _differs(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first is not second


def _sum(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    return (first if second is None else second) if first is None or second is None else first + second


def _own(gradient: torch.Tensor, parameter: torch.Tensor, seen: set[int]) -> torch.Tensor:
    """A gradient as autograd would leave it in `.grad`: the parameter's layout, memory that nobody else has."""
    key = storage_key(gradient)
    is_whole = gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size()
    if gradient.stride() == parameter.stride() and is_whole and key not in seen:
        seen.add(key)
        return gradient
    return torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(gradient)


def added_up(gradients: Gradients, before: Sequence[torch.Tensor | None]) -> Gradients:
    """Gradients of several calls: added into what is there, new ones as they are."""
    return [
        there if gradient is None else gradient if there is None else there.add_(gradient)
        for gradient, there in zip(gradients, before, strict=True)
    ]


def clipped(gradients: Gradients, clipping: Clipping) -> None:
    """Limit gradients in place, as torch.nn.utils does."""
    found = [gradient for gradient in gradients if gradient is not None]
    if clipping.norm is not None and found:
        norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in found])
        scale = torch.clamp(clipping.norm / (torch.linalg.vector_norm(norms) + 1e-6), max=1.0)
        for gradient in found:
            gradient.mul_(scale)
    if clipping.value is not None:
        for gradient in found:
            gradient.clamp_(-clipping.value, clipping.value)


def update(
    rule: UpdateRule, prepared: Prepared, gradients: Gradients, numbers: Mapping[torch.dtype, torch.Tensor]
) -> None:
    """Apply an optimizer's rule to every parameter that has a gradient."""
    split = {dtype: given.unbind() for dtype, given in numbers.items()}
    for parameter, kept, gradient, index in zip(
        prepared.parameters, prepared.kept, gradients, prepared.form.of_parameter, strict=True
    ):
        if gradient is None:
            continue
        bucket = prepared.form.buckets[index]
        dtype = number_dtype(parameter)
        own = split[dtype][bucket.first : bucket.first + bucket.count]
        wide: Tensors = {name: tensor if name in rule.alone else tensor.to(dtype) for name, tensor in kept.items()}
        new, new_kept = rule.update(bucket.form, parameter.to(dtype), gradient.to(dtype), wide, own)
        parameter.copy_(new)
        for name, tensor in new_kept.items():
            kept[name].copy_(tensor)


def count_nodes(roots: Sequence[torch.Tensor]) -> int:
    """How many nodes autograd's graph of some tensors has."""
    found: set[Any] = set()
    waiting = [root.grad_fn for root in roots]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    return len(found)


def number_dtype(parameter: torch.Tensor) -> torch.dtype:
    """In which precision a parameter is updated: its own, but float32 for the narrow ones."""
    return torch.float32 if parameter.dtype in NARROW else parameter.dtype


@dataclass(frozen=True, slots=True, eq=False)
class UsualLoop:
    """What the loop trains, its parameters, how many calls it has added up since its last update."""

    task: TrainingTask
    optimizer: torch.optim.Optimizer
    parameters: Sequence[torch.Tensor]
    calls: int
    note: Callable[[Sequence[torch.Tensor]], None] | None = None  # is given losses with their graph

    def run(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Make a step; gives the losses, without a gradient."""
        if not self.updates:
            return self.differentiate(arguments, keywords)
        return by_library(self.optimizer, lambda: self.differentiate(arguments, keywords))

    @property
    def updates(self) -> bool:
        """Whether the next call is the last one before an update."""
        return self.calls + 1 >= self.task.accumulate

    def differentiate(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Leave gradients in parameters, limited before an update; gives the losses, without a gradient."""
        losses, clipping = self._differentiate(arguments, keywords), self.task.clipping
        if self.updates and clipping.norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, clipping.norm)
        if self.updates and clipping.value is not None:
            torch.nn.utils.clip_grad_value_(self.parameters, clipping.value)
        return losses

    def _differentiate(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        if not self.calls:
            self.optimizer.zero_grad()
        trained = [one for one in self.parameters if one.requires_grad]
        refuse_nothing(trained)
        with torch.inference_mode(False), torch.enable_grad():
            losses = losses_of(self.task, arguments, keywords)
            is_one = isinstance(losses, torch.Tensor)  # trees of PyTorch's take as long as a small operator
            roots = [losses] if is_one else _differentiated_of(losses)
            carrying = [root for root in roots if root.requires_grad] or roots
            if self.note is not None:
                self.note(carrying)
            # Of one number autograd makes a gradient of 1 itself; that of somebody else it compares by symbols.
            is_alone = is_one and self.task.accumulate == 1 and losses.numel() == 1 and losses.is_floating_point()
            weights = None if is_alone else [torch.full_like(root, 1 / self.task.accumulate) for root in carrying]
            torch.autograd.backward(carrying, weights, inputs=trained)
        return losses.detach() if is_one else tree_map_only(torch.Tensor, torch.Tensor.detach, losses)


def buffers_of(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """List the buffers of modules, each once; PyTorch's generators give them with names, and take ten times as long."""
    waiting, seen, found = [*modules], set[int](), dict[int, torch.Tensor]()
    while waiting:
        module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        is_scripted, own = isinstance(module, torch.jit.ScriptModule), vars(module)
        buffers = module.buffers() if is_scripted else own["_buffers"].values()
        found.update((id(buffer), buffer) for buffer in buffers if buffer is not None)
        waiting += [] if is_scripted else [inside for inside in own["_modules"].values() if inside is not None]
    return list(found.values())


def checked_optimizer(net: Any, loss: Any, given: Any) -> torch.optim.Optimizer:
    """Refuse what a step cannot be made of; gives its optimizer, which may stand for several."""
    optimizer = one_optimizer(given)
    if not callable(net):
        raise UsageError(f"{named(net)} is neither a module nor a function")
    if loss is not None:
        refuse_no_loss(loss, ORDER)
    refuse_no_optimizer(optimizer, ORDER)
    assert isinstance(optimizer, torch.optim.Optimizer)
    parts = [part for part in (net, loss) if isinstance(part, nn.Module)]
    own = {id(parameter) for part in parts for parameter in part.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if own and isinstance(net, nn.Module) and not any(id(parameter) in own for parameter in held):
        raise UsageError(
            "the optimizer has none of the module's parameters",
            why="it was made for another module, or for a copy of this one",
            fix="make it of net.parameters(), after net.to(...)",
        )
    return optimizer


def refuse_options(*, accumulate: int, memory: str, limits: Mapping[str, float | None]) -> None:
    """Refuse what a step cannot be told."""
    if accumulate < 1:
        raise UsageError(f"accumulate is {accumulate}", why="it is a number of calls", fix="pass 1 or more")
    if memory not in MEMORY:
        raise UsageError(f"memory is {memory!r}", why="a step knows two ways", fix='pass "normal" or "low"')
    for name, limit in limits.items():
        if limit is not None and not limit >= 0:
            raise UsageError(
                f"clip_{name} is {limit!r}", why="it is a limit of sizes", fix="pass a number of at least 0"
            )


def refusal_of_hooks(parameters: Sequence[torch.Tensor]) -> UnsupportedError | None:
    """The error about a parameter whose gradient a hook wants to see, if there is one."""
    index = next((at for at, one in enumerate(parameters) if has_gradient_hooks(one)), None)
    if index is None:
        return None
    return UnsupportedError(
        f"parameter {index} of the optimizer has a gradient hook",
        why="gradients of a step are computed inside its program, where Python does not run",
        fix="remove the hook (clip_norm= and clip_value= limit gradients); without whole=True Python makes the step",
    )
