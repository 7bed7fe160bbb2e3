"""Let several optimizers make one step, each with its own parameters: Muon the matrices, say, and AdamW the rest."""

from __future__ import annotations

import copy
from collections.abc import Iterator, MutableMapping, Sequence
from itertools import chain
from typing import Any, NoReturn

import torch

from weft.api.optimizers.library import needs_closure
from weft.errors import UsageError

Optimizer = torch.optim.Optimizer


class SeveralOptimizers(Optimizer):
    """Optimizers in a row, as one that has the parameter groups and the states of all of them."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        # What the base class would set up belongs to each of them.
        self.optimizers = tuple(optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all of them."""
        return [group for one in self.optimizers for group in one.param_groups]

    @property
    def state(self) -> MutableMapping[Any, Any]:  # type: ignore[override]
        """What all of them keep."""
        return _States(self.optimizers)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Let each make its step."""
        del closure
        for one in self.optimizers:
            one.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let each forget its gradients."""
        for one in self.optimizers:
            one.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """What all of them keep, as one optimizer gives it: parameters are numbered through all groups."""
        states: dict[Any, Any] = {}
        groups: list[dict[str, Any]] = []
        for first, own in zip(self._first_numbers(), (one.state_dict() for one in self.optimizers), strict=True):
            states.update({_moved(key, first): entry for key, entry in own["state"].items()})
            numbers = ([number + first for number in group["params"]] for group in own["param_groups"])
            groups += ({**group, "params": moved} for group, moved in zip(own["param_groups"], numbers, strict=True))
        return {"state": states, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each what it kept; all or none of them take it."""
        groups = list(state_dict["param_groups"])
        sizes, own = ([len(group["params"]) for group in found] for found in (groups, self.param_groups))
        if sizes != own:
            raise UsageError(
                f"the state is of groups of {sizes} parameters",
                why=f"those of these optimizers have {own}",
                fix="make the optimizers, and their order, as they were when the state was taken",
            )
        before: list[tuple[Optimizer, dict[str, Any]]] = []
        try:
            for first, one in zip(self._first_numbers(), self.optimizers, strict=True):
                mine, groups = groups[: len(one.param_groups)], groups[len(one.param_groups) :]
                held = range(first, first + len(_parameters(one)))
                kept = copy.deepcopy(one.state_dict())
                one.load_state_dict(
                    {
                        "state": {
                            _moved(key, -first): entry
                            for key, entry in state_dict["state"].items()
                            if not isinstance(key, int) or key in held
                        },
                        "param_groups": [
                            {**group, "params": [number - first for number in group["params"]]} for group in mine
                        ],
                    }
                )
                before.append((one, kept))
        except BaseException:
            for one, kept in before:
                one.load_state_dict(kept)
            raise

    def _first_numbers(self) -> list[int]:
        """The number of the first parameter of each."""
        counts = [len(_parameters(one)) for one in self.optimizers]
        return [sum(counts[:index]) for index in range(len(counts))]

    def __getattr__(self, name: str) -> NoReturn:
        """Tell what belongs to each of them: groups to add, hooks, defaults."""
        why = "each of them has its own"
        fix = "ask each: step.optimizer.optimizers are those that were given"
        raise AttributeError(str(UsageError(f"several optimizers in a row have no {name}", why=why, fix=fix)))

    def __reduce__(self) -> tuple[Any, ...]:
        return SeveralOptimizers, (self.optimizers,)

    def __repr__(self) -> str:
        return f"[{', '.join(type(one).__name__ for one in self.optimizers)}]"


class _States(MutableMapping[Any, Any]):
    """What optimizers keep of their parameters."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers

    def __getitem__(self, key: Any) -> Any:
        for one in self._optimizers:
            if key in one.state:  # first: a state is a defaultdict
                return one.state[key]
        raise KeyError(key)

    def __setitem__(self, key: Any, entry: Any) -> None:
        self._owner(key).state[key] = entry

    def __delitem__(self, key: Any) -> None:
        for one in self._optimizers:
            one.state.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return any(key in one.state for one in self._optimizers)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable([*one.state] for one in self._optimizers)

    def __len__(self) -> int:
        return sum(len(one.state) for one in self._optimizers)

    def _owner(self, key: Any) -> Optimizer:
        owners = (one for one in self._optimizers if any(held is key for held in _parameters(one)))
        return next(owners, self._optimizers[0])


def _moved(key: Any, by: int) -> Any:
    """The number of a parameter, counted otherwise; what is kept under another key is kept for none of them."""
    return key + by if isinstance(key, int) else key


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def one_optimizer(given: Any) -> Any:  # of whatever a user gives
    """Give what stands for a row of optimizers; anything else is given back."""
    if not isinstance(given, list | tuple) or not given or not all(isinstance(one, Optimizer) for one in given):
        return given
    if len(given) == 1:
        return given[0]
    for one in given:
        if needs_closure(one):
            raise UsageError(
                f"{type(one).__name__} makes no step beside others",
                why="it computes the loss itself, as often as it likes, and the others would update in between",
                fix="weft.step(net, loss, optimizer) with this one alone, for all parameters",
            )
    held = [id(parameter) for one in given for parameter in _parameters(one)]
    if len(set(held)) < len(held):
        raise UsageError(
            "two of the optimizers have the same parameter",
            why="one backward gives each parameter one gradient, and both would update by it",
            fix="give each parameter to one of them",
        )
    return SeveralOptimizers(given)


def parts_of(optimizer: Optimizer) -> Optimizer | tuple[Optimizer, ...]:
    """The optimizers in a row; one that is none is itself."""
    return optimizer.optimizers if isinstance(optimizer, SeveralOptimizers) else optimizer
