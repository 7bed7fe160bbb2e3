"""What a step refuses -> an error whose way out is one that a step has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from weft.errors import UnsupportedError, UsageError
from weft.trace.interception.refusals import KEEP_EAGER

MEMORY = ("normal", "low")
ORDER = "weft.step(net, loss, optimizer)"
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


def refuse_wrong(net: Any, loss: Any, optimizer: Any) -> None:
    """Refuse what a step cannot be made of."""
    if not callable(net):
        raise UsageError(f"{net!r} is neither a module nor a function")
    if isinstance(loss, torch.optim.Optimizer) or not (loss is None or callable(loss)):
        raise UsageError(f"{loss!r} is no loss", why="it is called with output and target", fix=ORDER)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"{optimizer!r} is no optimizer", why="one of torch.optim, or derived from it, is", fix=ORDER)
    parts = [part for part in (net, loss) if isinstance(part, nn.Module)]
    own = {id(parameter) for part in parts for parameter in part.parameters()}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if own and isinstance(net, nn.Module) and not any(id(parameter) in own for parameter in held):
        raise UsageError(
            "the optimizer has none of the module's parameters",
            why="it was made for another module, or for a copy of this one",
            fix="make it of net.parameters(), after net.to(...)",
        )


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
