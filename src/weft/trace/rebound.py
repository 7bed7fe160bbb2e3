"""Attributes of modules that traced code gave new values -> what a program assigns to them at each run.

`self.weights = softmax(scores)` keeps the weights for whoever looks at the module later, and pruning computes a
module's weight anew before each forward: as in eager, the attribute is another tensor after each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from weft.trace.capture import TreeSpec, is_stand_in, tree_flatten
from weft.trace.containers import MISSING
from weft.trace.facts import APART, SIMPLE, content
from weft.trace.opened import opened


@dataclass(frozen=True, slots=True, eq=False)
class Rebound:
    """An attribute, or a registered buffer, that gets a new value: a tensor, something with tensors in it, a number."""

    container: dict[str, Any]
    key: str
    before: Any
    leaves: tuple[Any, ...]
    structure: TreeSpec

    def count(self) -> float | None:
        """How much is added to a number, if it is one and was one."""
        value = self.leaves[0] if self.structure.is_leaf() else None
        return value - self.before if type(value) in (int, float) and type(self.before) in (int, float) else None

    def described(self, leaves: Iterable[Any]) -> Rebound:
        """The same with leaves that say what a run puts there; a tensor that was there before is let go."""
        before = self.before if type(self.before) in SIMPLE else None
        return replace(self, before=before, leaves=tuple(leaves))

    def is_change(self, real: Mapping[int, torch.Tensor]) -> bool:
        """Whether it is more than what `self.count += 1` leaves, the tensor that was there.

        `real` gives the tensor that a stand-in stands for.
        """
        found = real.get(id(self.leaves[0])) if self.structure.is_leaf() else None
        return found is None or found is not self.before


def take_back(modules: Iterable[nn.Module], before: Mapping[int, Mapping[str, Any]]) -> tuple[Rebound, ...]:
    """Find the attributes of modules that stand-ins or other plain values were assigned to; put back what was there.

    `before` has a copy of each dictionary from before the trace, by the identity of the dictionary.
    """
    found: list[Rebound] = []
    for module in modules:
        for container in (module.__dict__, module.__dict__["_buffers"]):
            former = before[id(container)]
            for key, value in list(container.items()):
                earlier = former.get(key, MISSING)
                if key in APART or value is earlier or isinstance(value, Iterator):
                    continue
                leaves, structure = tree_flatten(opened(value))
                if any(map(is_stand_in, leaves)) or _is_other_value(value, earlier):
                    found.append(Rebound(container, key, earlier, tuple(leaves), structure))
                    _put(container, key, earlier)
    return tuple(found)


def _is_other_value(value: Any, earlier: Any) -> bool:
    plain = type(value) in SIMPLE and (earlier is MISSING or type(earlier) in SIMPLE)
    return plain and content(value) != content(earlier)


def _put(container: dict[str, Any], key: str, value: Any) -> None:
    if value is MISSING:
        del container[key]
    else:
        container[key] = value
