"""Find tensors that traced code has made require a gradient, or made not require one: each run does that too.

`x.requires_grad_()` on what the code is given changes the tensor of each call. A tensor that the code makes, and gives
back as a leaf that requires a gradient, is one at each run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from weft.ir.graph import Place
from weft.trace.interception.capture import is_stand_in
from weft.trace.interception.refusals import refuse


class GivenTensor(Protocol):
    """A tensor that goes in."""

    @property
    def tensor(self) -> torch.Tensor:
        """The real one."""

    @property
    def stand_in(self) -> torch.Tensor:
        """What stands for it."""

    @property
    def leaf(self) -> torch.Tensor:
        """What its gradient is asked of."""


@dataclass(frozen=True, slots=True)
class GradientFlags:
    """Which inputs a run makes require a gradient or not, by number, and which results it makes leaves of."""

    inputs: tuple[tuple[int, bool], ...] = ()
    results: tuple[int, ...] = ()

    def set_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        """Change what is given to a run."""
        for index, flag in self.inputs:
            inputs[index].requires_grad_(flag)


def changed_flags(inputs: Sequence[GivenTensor]) -> tuple[tuple[int, bool], ...]:
    """The inputs whose flag the code has changed, with what it is now."""
    found = []
    for index, entry in enumerate(inputs):
        if entry.leaf.is_leaf and entry.leaf.requires_grad != carries_gradient(entry.tensor):
            others = (other for other in inputs if other is not entry and other.tensor is entry.tensor)
            if entry.leaf is not entry.stand_in or any(others):
                refuse("gradient flag", None)
            found.append((index, entry.leaf.requires_grad))
    return tuple(found)


def carries_gradient(tensor: torch.Tensor) -> bool:
    """Whether operators on a tensor are followed by autograd."""
    return tensor.requires_grad and not tensor.is_inference()


def made_leaves(inputs: Iterable[GivenTensor], leaves: Sequence[Any]) -> list[tuple[int, torch.Tensor]]:
    """The results that are leaves which require a gradient, and are not given, with their numbers among `leaves`."""
    given = {id(entry.stand_in) for entry in inputs}
    return [
        (number, leaf)
        for number, leaf in enumerate(leaves)
        if is_stand_in(leaf) and leaf.requires_grad and leaf.is_leaf and id(leaf) not in given
    ]


def refuse_results_of(leaf: torch.Tensor, others: Iterable[torch.Tensor], place: Place | None) -> None:
    """Refuse to give back what was computed of a leaf that is given back too: nothing would tie the two."""
    waiting = [other.grad_fn for other in others if other.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        if getattr(node, "variable", None) is leaf:
            refuse("made leaf", place)
        sources = {source for source, _ in node.next_functions if source is not None} - seen
        seen |= sources
        waiting += sources
