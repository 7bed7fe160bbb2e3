"""How far the reading or writing of a file is -> whoever asked to be told."""

from __future__ import annotations

from collections.abc import Callable

Told = Callable[[str, int, int], None]  # what is done with which file, bytes so far, bytes in all


def nobody(what: str, done: int, total: int) -> None:
    """Nobody asked."""
