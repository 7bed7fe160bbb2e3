"""A step -> what another one is made of, with a module and an optimizer of its own: by copy, deepcopy or pickle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.api.step import Step

Parts = tuple[Any, dict[str, Any], list[Any]]  # what it trains, how it does so, gradients that are still to be used


def parts_of(step: Step) -> Parts:
    """Everything that a step is but its programs, which are made anew."""
    task = step.task
    options = {
        "clip_norm": task.clipping.norm,
        "clip_value": task.clipping.value,
        "accumulate": task.accumulate,
        "deterministic": task.deterministic,
        "memory": "low" if task.low_memory else "normal",
    }
    # Copies of parameters have no gradients; those that were added up so far belong to the next update.
    gradients = [parameter.grad for parameter in step._parameters()] if step._calls else []
    return (task.net, task.loss, step.optimizer), options, gradients
