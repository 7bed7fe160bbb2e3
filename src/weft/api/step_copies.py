"""A step -> what another one is made of, with a module and an optimizer of its own: by copy, deepcopy or pickle."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.api.optimizers.library import needs_closure
from weft.errors import UnsupportedError

if TYPE_CHECKING:
    from weft.api.step import Step

# What it trains, how it does so, gradients that are still to be used, of how many calls these are.
Parts = tuple[Any, dict[str, Any], list[Any], int]


def parts_of(step: Step) -> Parts:
    """Everything that a step is but its programs, which are made anew."""
    if needs_closure(step.optimizer):
        raise UnsupportedError(
            f"a step with {type(step.optimizer).__name__} cannot be copied or pickled",
            why="a copy that PyTorch makes of this optimizer does not know its parameters",
            fix="copy the module, make an optimizer of its parameters, give it optimizer.state_dict(), and make a step "
            "of the two",
        )
    task = step.task
    options = {
        "clip_norm": task.clipping.norm,
        "clip_value": task.clipping.value,
        "accumulate": task.accumulate,
        "deterministic": task.deterministic,
        "memory": "low" if task.low_memory else "normal",
        "check": step.checked,
    }
    # Copies of parameters have no gradients; those that were added up so far belong to the next update.
    gradients = [parameter.grad for parameter in step._parameters()] if step._calls else []
    return (task.net, task.loss, step.optimizer), options, gradients, step._calls


def again(make: Callable[..., Step], trained: Any, options: Any, gradients: list[Any], calls: int) -> Step:
    """Make another step of these parts."""
    made = make(*trained, **options)
    for parameter, gradient in zip(made._parameters(), gradients, strict=False):
        parameter.grad = gradient
    made._calls = calls
    return made
