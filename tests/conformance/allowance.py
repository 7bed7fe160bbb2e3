"""Two tensors that differ in their bits -> whether a trial's rule allows it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tests.conformance.cases import Contestant, Outcome, Player, Rule, Trial
from tests.conformance.compare import (
    is_truth,
    largest_error,
    same_rounding,
    within_grown_rounding,
    within_model_bound,
    within_native_bound,
    within_variation,
)
from torch.utils import _pytree as pytree

from weft.config import config

NEIGHBOURS = 32  # eager's own error on them was seen to range over a factor of fourteen

PARTS: dict[str, Callable[[Outcome], Sequence[Any]]] = {
    "result": lambda outcome: pytree.tree_leaves(outcome.result),
    "argument": lambda outcome: outcome.arguments,
    "state": lambda outcome: outcome.state,
    "gradient": lambda outcome: outcome.gradients,
}
"""What a call leaves behind, by the name that reports use."""


class Reference:
    """Eager's outcomes of a trial's calls in another precision, played when they are asked for."""

    def __init__(self, start: Callable[[Contestant], Player] | None) -> None:
        self._player = None if start is None else start(lambda target: target)
        self._outcomes: list[Outcome] = []

    def of(self, number: int, part: str, place: int) -> Any:
        """Give what one call left in one place; None where that precision has no answer."""
        if self._player is None:
            return None
        while len(self._outcomes) <= number:
            self._outcomes.append(self._player(len(self._outcomes)))
        found = PARTS[part](self._outcomes[number])
        return found[place] if self._outcomes[number].error is None and place < len(found) else None


class Allowance:
    """What one trial may differ in from eager, under the code generation in force."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._exact = Reference(trial.exact_start)
        self._narrow = Reference(trial.narrow_start)
        self._neighbours: list[tuple[Reference, Reference]] = []
        self._is_native = config().codegen == "native"
        self.ignores_values = trial.rule is Rule.SHAPE

    def allows(
        self, expected: torch.Tensor, actual: torch.Tensor, where: tuple[int, str, int], scale: float = 0.0
    ) -> bool:
        """Say whether values may differ as they do; `where` is the call's number, the part and the place in it.

        `scale` is the size of what they were computed from: a difference of such numbers is not exact where it is 0.
        """
        rule = self._trial.rule
        if self._trial.disputed and self._is_native:
            actual = actual.where(~actual.isnan(), expected)
        if rule is Rule.CLOSE:
            return self._is_close(expected, actual, where, scale)
        if rule is Rule.BITS and not self._is_native:
            return False
        exact = self._exact.of(*where)
        if isinstance(exact, torch.Tensor) and is_truth(exact, expected) and exact.dtype != expected.dtype:
            whole = self._trial.whole_model and within_model_bound(actual, expected, exact)
            if whole or within_native_bound(actual, expected, exact) or self._as_neighbours(expected, actual, where):
                return True
            return self._trial.any_order and self._is_close(expected, actual, where, scale)
        return (self._is_native or self._trial.any_order) and self._is_close(expected, actual, where, scale)

    def _as_neighbours(self, expected: torch.Tensor, actual: torch.Tensor, where: tuple[int, str, int]) -> bool:
        """Judge by eager's error on the same sample moved by a last bit: a few elements may be right by chance."""
        if self._trial.neighbour is None:
            return False
        errors = [
            largest_error(eager, exact)
            for eager, exact in self._moved(where)
            if isinstance(eager, torch.Tensor) and isinstance(exact, torch.Tensor)
        ]
        exact = self._exact.of(*where)
        return bool(errors) and within_native_bound(actual, expected, exact, max(errors))

    def _moved(self, where: tuple[int, str, int]) -> list[tuple[Any, Any]]:
        """Give eager's answers to the neighbours of the sample, in its own precision and in float64."""
        if self._trial.neighbour is not None and not self._neighbours:
            pairs = [self._trial.neighbour(seed) for seed in range(NEIGHBOURS)]
            self._neighbours = [(Reference(start), Reference(exact)) for start, exact in pairs]
        return [(one.of(*where), other.of(*where)) for one, other in self._neighbours]

    def _is_close(
        self, expected: torch.Tensor, actual: torch.Tensor, where: tuple[int, str, int], scale: float
    ) -> bool:
        if same_rounding(expected, actual, self._trial.precision, scale):
            return True
        narrow = self._narrow.of(*where)
        if isinstance(narrow, torch.Tensor) and within_grown_rounding(expected, actual, narrow):
            return True
        moved = [eager for eager, _ in self._moved(where) if isinstance(eager, torch.Tensor)]
        return within_variation(expected, actual, moved)
