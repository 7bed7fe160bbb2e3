"""What a step refuses -> an error whose way out is one that a step has."""

from __future__ import annotations

from weft.errors import UnsupportedError
from weft.trace.refusals import KEEP_EAGER

IN_A_LOOP = (
    'train in an ordinary loop with the parts hybridized that can be, or with hybridize(net, fallback="eager"), '
    "loss.backward() and optimizer.step()"
)


def with_loop(error: UnsupportedError) -> UnsupportedError:
    """What hybridize gives as the last way out, as it is done with a training step."""
    fix = error.fix and error.fix.replace(KEEP_EAGER, IN_A_LOOP)
    return UnsupportedError(error.fact, where=error.where, why=error.why, fix=fix)


def hooked(index: int) -> UnsupportedError:
    """Give the error about a parameter whose gradient a hook wants to see."""
    return UnsupportedError(
        f"parameter {index} of the optimizer has a gradient hook",
        why="gradients of a step are computed inside its program, where Python does not run",
        fix="remove the hook (clip_norm= and clip_value= limit gradients), or train with hybridize and loss.backward()",
    )
