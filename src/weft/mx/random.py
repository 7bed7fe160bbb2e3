"""Draw numbers and set seeds: `mx.random`."""

from __future__ import annotations

from weft.mx import queue
from weft.mx.context import Context
from weft.mx.frontend import random_functions
from weft.mx.nd import FRONTEND

globals().update(random_functions(FRONTEND))


def seed(seed_state: int, ctx: Context | str = "all") -> None:
    """Begin the random numbers of a context, or of all, anew."""
    queue.seed(int(seed_state), None if isinstance(ctx, str) else ctx)
