"""Change weights by their gradients: `mx.optimizer`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from weft.mx.arrays.array_file import read_arrays, written_arrays
from weft.mx.arrays.invoke import call_operator
from weft.mx.arrays.ndarray import NDArray, ready, zeros
from weft.mx.base.context import cpu
from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import operator

REGISTERED: dict[str, type[Optimizer]] = {}


def register(kind: type[Optimizer]) -> type[Optimizer]:
    """Make an optimizer known by its name."""
    REGISTERED[kind.__name__.lower()] = kind
    return kind


class Optimizer:
    """The rule by which weights change, and what it is told: learning rate, decay, clipping."""

    def __init__(
        self,
        rescale_grad: float = 1.0,
        param_idx2name: dict[int, str] | None = None,
        wd: float = 0.0,
        clip_gradient: float | None = None,
        learning_rate: float | None = None,
        lr_scheduler: Callable[[int], float] | None = None,
        begin_num_update: int = 0,
        param_dict: dict[int, Any] | None = None,
        **_given: Any,
    ) -> None:
        self.rescale_grad, self.wd, self.clip_gradient = rescale_grad, wd, clip_gradient
        self.lr = 0.01 if learning_rate is None else learning_rate
        self.lr_scheduler = lr_scheduler
        if lr_scheduler is not None and learning_rate is not None:
            if lr_scheduler.base_lr != learning_rate:  # type: ignore[attr-defined]
                print(  # noqa: T201  # as MXNet does
                    "learning rate from ``lr_scheduler`` has been overwritten by ``learning_rate`` in optimizer."
                )
            lr_scheduler.base_lr = learning_rate  # type: ignore[attr-defined]
        self.num_update = begin_num_update
        self._counts: dict[Any, int] = {}
        self.idx2name = dict(param_idx2name or {})
        self.param_dict = param_dict or {}

    @property
    def learning_rate(self) -> float:
        """The rate now."""
        return self.lr if self.lr_scheduler is None else self.lr_scheduler(self.num_update)

    def set_learning_rate(self, lr: float) -> None:
        """Change the rate."""
        if self.lr_scheduler is not None:
            raise UserWarning("LRScheduler of the optimizer has already been defined.")
        self.lr = lr

    def create_state(self, index: int, weight: NDArray) -> Any:  # noqa: ARG002
        """What is kept for a weight between updates."""
        return None

    def _given(self, index: int) -> dict[str, Any]:
        """What the update operators are told, after counting one more update."""
        count = self._counts[index] = self._counts.get(index, 0) + 1
        self.num_update = max(self.num_update, count)
        parameter = self.param_dict.get(index)
        lr, wd = self.learning_rate, self.wd
        if parameter is not None:
            lr, wd = lr * parameter.lr_mult, wd * parameter.wd_mult
        found = {"lr": lr, "wd": wd, "rescale_grad": self.rescale_grad}
        return found if self.clip_gradient is None else {**found, "clip_gradient": self.clip_gradient}

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight."""
        raise NotImplementedError


def _apply(name: str, weight: NDArray, arrays: tuple[Any, ...], given: dict[str, Any]) -> None:
    call_operator(operator(name), [weight, *arrays], given, weight)


def _like(weight: NDArray) -> NDArray:
    return zeros(weight.shape, weight.context, weight.dtype)


@register
class SGD(Optimizer):
    """Go down the gradient, with momentum if there is one."""

    with_momentum = "sgd_mom_update"

    def __init__(self, learning_rate: float = 0.01, momentum: float = 0.0, **given: Any) -> None:
        super().__init__(learning_rate=learning_rate, **given)
        self.momentum = momentum

    def create_state(self, index: int, weight: NDArray) -> Any:  # noqa: ARG002
        """The momentum."""
        return _like(weight) if self.momentum else None

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight."""
        given = self._given(index)
        if state is None:
            _apply("sgd_update", weight, (grad,), given)
        else:
            _apply(self.with_momentum, weight, (grad, state), {**given, "momentum": self.momentum})


@register
class NAG(SGD):
    """Nesterov's momentum."""

    with_momentum = "nag_mom_update"


@register
class Adam(Optimizer):
    """Divide the mean of the gradients by the root of the mean of their squares."""

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        **given: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **given)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def create_state(self, index: int, weight: NDArray) -> Any:  # noqa: ARG002
        """The two means."""
        return _like(weight), _like(weight)

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight."""
        given = self._given(index)
        count = self._counts[index]
        given["lr"] *= (1.0 - self.beta2**count) ** 0.5 / (1.0 - self.beta1**count)
        options = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        _apply("adam_update", weight, (grad, *state), {**given, **options})


@register
class AdaGrad(Optimizer):
    """Divide the gradient by the root of the sum of its squares."""

    def __init__(self, eps: float = 1e-7, **given: Any) -> None:
        super().__init__(**given)
        self.eps = eps

    def create_state(self, index: int, weight: NDArray) -> Any:  # noqa: ARG002
        """The sum."""
        return _like(weight)

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight."""
        _apply("_sparse_adagrad_update", weight, (grad, state), {**self._given(index), "epsilon": self.eps})


@register
class RMSProp(Optimizer):
    """Divide the gradient by the root of the mean of its squares."""

    def __init__(self, learning_rate: float = 0.001, gamma1: float = 0.9, epsilon: float = 1e-8, **given: Any) -> None:
        if given.pop("centered", False):
            raise NotImplementedError("RMSProp(centered=True) is not in weft.mx")
        super().__init__(learning_rate=learning_rate, **given)
        self.gamma1, self.epsilon = gamma1, epsilon

    def create_state(self, index: int, weight: NDArray) -> Any:  # noqa: ARG002
        """The mean."""
        return _like(weight)

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight."""
        options = {"gamma1": self.gamma1, "epsilon": self.epsilon}
        _apply("rmsprop_update", weight, (grad, state), {**self._given(index), **options})


@register
class Ftrl(Optimizer):
    """Follow the regularized leader."""

    def __init__(self, lamda1: float = 0.01, learning_rate: float = 0.1, beta: float = 1, **given: Any) -> None:
        super().__init__(learning_rate=learning_rate, **given)
        self.lamda1, self.beta = lamda1, beta

    def create_state(self, index: int, weight: NDArray) -> Any:  # noqa: ARG002
        """The two sums."""
        return _like(weight), _like(weight)

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight."""
        options = {"lamda1": self.lamda1, "beta": self.beta}
        _apply("ftrl_update", weight, (grad, *state), {**self._given(index), **options})


def create(name: str | Optimizer, **given: Any) -> Optimizer:
    """An optimizer by its name."""
    if isinstance(name, Optimizer):
        return name
    if name.lower() not in REGISTERED:
        raise ValueError(f"Cannot find optimizer {name}")
    return REGISTERED[name.lower()](**given)


class Updater:
    """An optimizer with what it keeps for each key: `updater(key, grad, weight)`."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.states: dict[Any, Any] = {}

    def __call__(self, index: Any, grad: NDArray, weight: NDArray) -> None:
        """Change a weight."""
        if index not in self.states:
            self.states[index] = self.optimizer.create_state(index, weight)
        self.optimizer.update(index, weight, grad, self.states[index])

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """What is kept, as the content of an array file: no code is run when it is read."""
        _ = dump_optimizer
        return states_content(self.states, self.optimizer)

    def set_states(self, states: bytes) -> None:
        """Take what was kept."""
        self.states = read_states(states, self.optimizer)


def get_updater(optimizer: Optimizer) -> Updater:
    """An updater of an optimizer."""
    return Updater(optimizer)


def states_content(states: dict[Any, Any], optimizer: Optimizer) -> bytes:
    """States under keys, with the counts of updates, as the content of an array file."""
    named = {}
    for key, state in states.items():
        for slot, array in enumerate(state if isinstance(state, tuple) else (state,)):
            if array is not None:
                array.wait_to_read()
                named[json.dumps([key, slot if isinstance(state, tuple) else None])] = array.raw()
    counts = list(optimizer._counts.items())
    named[json.dumps(["counts", [key for key, _ in counts]])] = torch.tensor([count for _, count in counts] + [0])
    return written_arrays(list(named.values()), list(named))


def read_states(content: bytes, optimizer: Optimizer) -> dict[Any, Any]:
    """The states under their keys; the optimizer takes the counts."""
    arrays, names = read_arrays(content, "the states of an optimizer")
    found: dict[Any, Any] = {}
    for name, tensor in zip(names, arrays, strict=True):
        try:
            key, slot = json.loads(name)
        except ValueError as error:
            raise MXNetError(f"{name!r} is no name of an optimizer's state") from error
        if key == "counts":
            optimizer._counts = dict(zip(slot, map(int, tensor.tolist()), strict=False))
            optimizer.num_update = max([optimizer.num_update, *optimizer._counts.values()])
            continue
        key = tuple(key) if isinstance(key, list) else key
        array = ready(tensor, cpu())
        found[key] = array if slot is None else (*found.get(key, ()), array)
    return found
