"""A number and a noun -> words: `1 stop`, `2 stops`."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Give a number of things in words."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
