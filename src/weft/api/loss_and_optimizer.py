"""Refuse what is no loss, or no optimizer, where one is asked for."""

from __future__ import annotations

from typing import Any

import torch

from weft.errors import UsageError, named


def refuse_no_loss(loss: Any, order: str) -> None:
    """Refuse what cannot be called with output and target: an optimizer, a name, a class of losses."""
    makes = "called with output and target it makes a module of them; one that it has made computes losses"
    _refuse_class(loss, torch.nn.Module, "loss", why=makes, made="()")
    if isinstance(loss, torch.optim.Optimizer) or not callable(loss):
        raise UsageError(f"{named(loss)} is no loss", why="it is called with output and target", fix=order)


def refuse_no_optimizer(optimizer: Any, order: str) -> None:
    """Refuse what is not made by one of torch.optim's classes, or of those that are derived from them."""
    makes = "it makes one of the parameters that are to be trained"
    _refuse_class(optimizer, torch.optim.Optimizer, "optimizer", why=makes, made="(net.parameters(), ...)")
    if not isinstance(optimizer, torch.optim.Optimizer):
        swapped = "the loss and the optimizer are given in the other order" if callable(optimizer) else None
        raise UsageError(
            f"{named(optimizer)} is no optimizer",
            why=swapped or "one of torch.optim, or derived from it, is",
            fix=order,
        )


def _refuse_class(given: Any, base: type, role: str, *, why: str, made: str) -> None:
    """Refuse a class in the place of what it makes."""
    if isinstance(given, type) and issubclass(given, base):
        raise UsageError(f"the class {given.__name__} is no {role}", why=why, fix=f"make it: {given.__name__}{made}")
