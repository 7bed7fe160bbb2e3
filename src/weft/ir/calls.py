"""Describe calls of PyTorch operators as immutable data: which overload, and what its arguments are.

A call keeps the nesting of its arguments (lists, keywords) and points to tensor values by position: `Operand(i)` stands
for the i-th operand of the value that carries the call, `Written(k)` for its k-th written argument (see `Update` rules
in ops.py), `HOLE` for the tensor that a view step is applied to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Operand:
    """Stands for the operand at this position."""

    index: int


@dataclass(frozen=True, slots=True)
class WrittenArgument:
    """Stands for the written argument at this position of `Call.written`."""

    index: int


@dataclass(frozen=True, slots=True)
class Hole:
    """Stands for the tensor that a view step is applied to."""


HOLE = Hole()
Literal = Any  # int, float, bool, complex, str, None, dtype, device, layout, memory format; tuples of arguments
Argument = Any  # Literal | Operand | WrittenArgument | Hole


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operator on the way from a tensor to a view of it; `item` picks from operators with several results."""

    target: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...] = ()
    item: int | None = None


Path = tuple[ViewStep, ...]


@dataclass(frozen=True, slots=True)
class WrittenPlace:
    """Where a writing operator writes: the view at `path` of the operand at position `base`."""

    base: int
    path: Path = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one operator overload, by its name such as `aten.add.Tensor`."""

    target: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...] = ()
    written: tuple[WrittenPlace, ...] = ()


def map_arguments(argument: Argument, change: Callable[[Argument], Any]) -> Any:
    """Rebuild nested tuples of arguments with `change` applied to every leaf."""
    if isinstance(argument, tuple):
        return tuple(map_arguments(item, change) for item in argument)
    return change(argument)


def flat_results(result: Any) -> list[Any]:
    """An operator's results in order: nested lists opened, absent ones kept as None."""
    if isinstance(result, (list, tuple)):
        return [leaf for item in result for leaf in flat_results(item)]
    return [result]
