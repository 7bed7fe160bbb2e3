"""Do the same work with whole programs and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import weft


def both(work: Callable[[Callable[[Any], Any]], Any]) -> None:
    """What work does with programs is what it does without."""
    found = []
    for wrap in (lambda one: one, lambda one: weft.hybridize(one, whole=True)):
        torch.manual_seed(0)
        found.append(work(wrap))
    torch.testing.assert_close(found[1], found[0])
