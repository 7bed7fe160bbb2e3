"""Express sizes that vary by others: a mask is as long as a cache and the new tokens, in every call that was seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

SizeSpot = tuple[int, int]  # an argument, and a dimension of it


def shape_of(leaf: Any) -> tuple[int, ...]:
    """The sizes of a tensor; a whole number is one, as where code counts how long a cache is."""
    return tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else (leaf,)


@dataclass(frozen=True, slots=True)
class SizeTie:
    """A size that is the sum of others and a number."""

    others: tuple[SizeSpot, ...]
    difference: int

    def size(self, size_of: Callable[[SizeSpot], Any]) -> Any:
        """The size, where the others are known."""
        found = size_of(self.others[0])
        for other in self.others[1:]:
            found = found + size_of(other)
        return found + self.difference


Group = tuple[SizeSpot, ...]  # sizes that have been the same in every call


def tied(
    histories: Mapping[Group, Sequence[int]], named: Collection[Group] = ()
) -> tuple[list[Group], dict[SizeSpot, SizeTie]]:
    """The sizes by which all others can be expressed, and these others.

    `histories` has what each was in the calls that were seen; those that have names are made of no others.
    """
    free: dict[Group, Sequence[int]] = {}
    ties: dict[SizeSpot, SizeTie] = {}
    for group, history in sorted(histories.items(), key=lambda item: (item[1][-1], item[0])):
        tie = None if group in named else _tie(history, free)
        if tie is None:
            free[group] = history
        else:
            ties |= dict.fromkeys(group, tie)
    return sorted(free), ties


def _tie(history: Sequence[int], free: Mapping[Group, Sequence[int]]) -> SizeTie | None:
    for (first, *_), other in free.items():
        differences = {now - then for now, then in zip(history, other, strict=True)}
        if len(differences) == 1:
            return SizeTie((first,), differences.pop())
    for ((first, *_), one), ((second, *_), other) in combinations(free.items(), 2):
        if all(now == a + b for now, a, b in zip(history, one, other, strict=True)):
            return SizeTie((first, second), 0)
    return None
