"""Change weights by their gradients: `mx.optimizer`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch

from weft.errors import CheckpointError
from weft.mx.arrays import nd
from weft.mx.arrays.invoke import call_operator
from weft.mx.arrays.ndarray import NDArray, ready, zeros
from weft.mx.arrays.sparse import call_stored
from weft.mx.base.context import cpu
from weft.mx.base.errors import MXNetError
from weft.mx.operators.table import operator
from weft.params_file import read_arrays, written_arrays

REGISTERED: dict[str, type[Optimizer]] = {}


def register(kind: type[Optimizer]) -> type[Optimizer]:
    """Make an optimizer known by its name."""
    REGISTERED[kind.__name__.lower()] = kind
    return kind


class Optimizer:
    """The rule by which weights change, and what it is told: learning rate, decay, clipping."""

    register = staticmethod(register)
    opt_registry = REGISTERED

    @staticmethod
    def create_optimizer(name: str, **given: Any) -> Optimizer:
        """An optimizer by its name."""
        return create(name, **given)

    def __init__(
        self,
        rescale_grad: float = 1.0,
        param_idx2name: dict[int, str] | None = None,
        wd: float = 0.0,
        clip_gradient: float | None = None,
        learning_rate: float | None = None,
        lr_scheduler: Callable[[int], float] | None = None,
        sym: Any = None,
        begin_num_update: int = 0,
        multi_precision: bool = False,
        param_dict: dict[int, Any] | None = None,
    ) -> None:
        self.multi_precision = multi_precision
        self.rescale_grad, self.wd, self.clip_gradient = rescale_grad, wd, clip_gradient
        self.lr: Any = 0.01 if learning_rate is None and lr_scheduler is None else learning_rate
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
        self._notes = {} if sym is None else sym.attr_dict()  # of each variable
        self.set_lr_mult({})
        self.set_wd_mult({})

    def _noted(self, key: str) -> dict[Any, float]:
        return {name: float(notes[key]) for name, notes in self._notes.items() if key in notes}

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        """Change the rates of single parameters, by their names or numbers."""
        self.lr_mult = self._noted("__lr_mult__") | args_lr_mult

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        """Change the decays of single parameters; of what has a name, only weights decay otherwise."""
        still: dict[Any, float] = {name: 0.0 for name in self.idx2name.values() if not name.endswith("_weight")}
        self.wd_mult = still | self._noted("__wd_mult__") | args_wd_mult

    def _multiplier(self, index: Any, of_parameter: str, given: dict[Any, float]) -> float:
        if index in self.param_dict:
            found: float = getattr(self.param_dict[index], of_parameter)
            return found
        return given[index] if index in given else given.get(self.idx2name.get(index), 1.0)

    def _get_lr(self, index: Any) -> float:
        """The rate of a parameter."""
        return self.learning_rate * self._multiplier(index, "lr_mult", self.lr_mult)

    def _get_wd(self, index: Any) -> float:
        """The decay of a parameter."""
        return self.wd * self._multiplier(index, "wd_mult", self.wd_mult)

    def _get_lrs(self, indices: list[Any]) -> list[float]:
        """The rates of parameters; optimizers of users ask for them."""
        return [self._get_lr(index) for index in indices]

    def _get_wds(self, indices: list[Any]) -> list[float]:
        """The decays of parameters."""
        return [self._get_wd(index) for index in indices]

    def _update_count(self, index: Any) -> None:
        """Count one more update of a parameter."""
        count = self._counts[index] = self._counts.get(index, 0) + 1
        self.num_update = max(self.num_update, count)

    @property
    def learning_rate(self) -> float:
        """The rate now."""
        rate: float = self.lr
        return rate if self.lr_scheduler is None else self.lr_scheduler(self.num_update)

    def set_learning_rate(self, lr: float) -> None:
        """Change the rate."""
        if self.lr_scheduler is not None:
            raise UserWarning(
                "LRScheduler of the optimizer has already been defined. Note that set_learning_rate can mutate the "
                "value of the learning rate of the optimizer only when the LRScheduler of the optimizer is undefined."
            )
        self.lr = lr

    def create_state(self, index: int, weight: NDArray) -> Any:  # noqa: ARG002
        """What is kept for a weight between updates."""
        return None

    def _given(self, index: int) -> dict[str, Any]:
        """What the update operators are told, after counting one more update."""
        self._update_count(index)
        found = {"lr": self._get_lr(index), "wd": self._get_wd(index), "rescale_grad": self.rescale_grad}
        return found if self.clip_gradient is None else {**found, "clip_gradient": self.clip_gradient}

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight."""
        raise NotImplementedError

    def create_state_multi_precision(self, index: int, weight: NDArray) -> Any:
        """What is kept for a weight between updates: with `multi_precision` first a float32 copy of a float16 one."""
        if not self._keeps_copy(weight):
            return self.create_state(index, weight)
        copy = weight.astype("float32")
        state = self.create_state(index, copy)
        return (copy, *(state if isinstance(state, (tuple, list)) else () if state is None else (state,)))

    def _keeps_copy(self, weight: NDArray) -> bool:
        return self.multi_precision and weight.dtype == np.float16

    def update_multi_precision(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight, by way of its float32 copy if it has one."""
        if not self._keeps_copy(weight):
            self.update(index, weight, grad, state)
            return
        copy, *kept = state
        self.update(index, copy, grad.astype("float32"), tuple(kept) if len(kept) > 1 else kept[0] if kept else None)
        weight[:] = copy.astype(weight.dtype)


def _apply(name: str, weight: NDArray, arrays: tuple[Any, ...], given: dict[str, Any]) -> None:
    call_stored(operator(name), [weight, *arrays], given, weight)


def _like(weight: NDArray) -> NDArray:
    return zeros(weight.shape, weight.context, weight.dtype)


class _ByOperator(Optimizer):
    """An optimizer that is one operator: its name, the options that it is given, and how many arrays it keeps."""

    rate = 0.01
    rate_first = True  # whether the rate is the first argument by place
    options: ClassVar[dict[str, Any]] = {}
    operator = ""
    kept = 0

    def __init__(self, *places: Any, **given: Any) -> None:
        order = [*(["learning_rate"] if self.rate_first else []), *self.options]
        rate = {"learning_rate": self.rate} if self.rate_first else {}  # the others take that of a schedule
        given = {**rate, **self.options, **dict(zip(order, places, strict=False)), **given}
        own = {name: given.pop(name) for name in self.options}
        super().__init__(**given)
        self.__dict__.update(own)

    def create_state(self, index: int, weight: NDArray) -> Any:  # noqa: ARG002
        """What is kept for a weight between updates."""
        made = tuple(_like(weight) for _ in range(self.kept))
        return made if len(made) > 1 else made[0] if made else None

    def _options(self, index: int) -> dict[str, Any]:
        """What the operator is told besides rate and decay."""
        _ = index
        return {name: value for name in self.options if (value := getattr(self, name)) is not None}

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight."""
        states = state if isinstance(state, tuple) else () if state is None else (state,)
        given = self._given(index)
        _apply(self.operator, weight, (grad, *states), {**given, **self._options(index)})


@register
class SGD(_ByOperator):
    """Go down the gradient, with momentum if there is one."""

    options: ClassVar[dict[str, Any]] = {"momentum": 0.0, "lazy_update": True}
    operators = "sgd_update", "sgd_mom_update"  # without momentum, and with it
    rate_first = False
    momentum: float

    def __init__(self, *places: Any, **given: Any) -> None:
        super().__init__(*places, **given)
        self.operator, self.kept = self.operators[bool(self.momentum)], int(bool(self.momentum))

    def _options(self, index: int) -> dict[str, Any]:
        found = super()._options(index)
        return {name: value for name, value in found.items() if self.momentum or name == "lazy_update"}


@register
class ccSGD(SGD):  # MXNet's name, from before SGD was its
    """The same as SGD."""


@register
class LBSGD(SGD):
    """SGD for large batches: gradients of several are one, and rates grow while it warms up, or go by layers' norms."""

    options: ClassVar[dict[str, Any]] = {
        "momentum": 0.0, "multi_precision": False, "warmup_strategy": "linear", "warmup_epochs": 5, "batch_scale": 1,
        "updates_per_epoch": 32, "begin_epoch": 0, "num_epochs": 60,
    }  # fmt: skip
    warmup_strategy: str
    warmup_epochs: int
    batch_scale: int
    updates_per_epoch: int
    begin_epoch: int

    def __init__(self, *places: Any, **given: Any) -> None:
        super().__init__(*places, **given)
        self._gathered: dict[int, tuple[int, NDArray]] = {}  # how many gradients, and the sum of those since the last

    def _grown(self, count: int) -> float:
        """By how much rates are larger after as many gradients."""
        last = self.warmup_epochs * self.updates_per_epoch
        if count >= last:
            return float(self.batch_scale)
        part = count / last if last > 1 else 0.0
        powers = {"linear": 1.0, "power2": 2.0, "sqrt": 0.5}
        power = powers.get(self.warmup_strategy)
        return 1.0 if power is None or not part else 1.0 + (self.batch_scale - 1) * part**power

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight, if its large batch is complete."""
        begun, total = self._gathered.get(index, (self.begin_epoch * self.updates_per_epoch, None))
        count, total = begun + 1, grad if total is None else total + grad
        if count % self.batch_scale:
            self._gathered[index] = count, total.copy()
            self._update_count(index)
            return
        self._gathered[index] = count, nd.zeros_like(grad)
        given, mean = self._given(index), total / self.batch_scale
        if self.warmup_strategy == "lars":
            sizes = [float((array * array).sum().asscalar()) for array in (weight, mean)]
            ratio = (sizes[0] / (sizes[1] + given["wd"] * sizes[0] + 1e-18)) ** 0.5
            given["lr"] *= min(max(ratio, 0.01), 100.0)
        else:
            given["lr"] *= self._grown(count)
        if self.momentum:
            given["momentum"] = self.momentum
        _apply(self.operator, weight, (mean,) if state is None else (mean, state), given)


@register
class Test(Optimizer):
    """Add gradients to weights, and keep the weights: for tests of what calls optimizers."""

    __test__ = False  # to pytest

    def create_state(self, index: int, weight: NDArray) -> NDArray:  # noqa: ARG002
        """A copy of the weight, of zeros at first."""
        return _like(weight)

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:  # noqa: ARG002
        """Change one weight."""
        weight += grad * self.rescale_grad
        state[:] = weight


@register
class NAG(SGD):
    """Nesterov's momentum."""

    options: ClassVar[dict[str, Any]] = {"momentum": 0.0}
    operators = "sgd_update", "nag_mom_update"


@register
class Signum(SGD):
    """Go by the sign of the gradient, or of the momentum."""

    rate_first = True
    options: ClassVar[dict[str, Any]] = {"momentum": 0.9, "wd_lh": 0.0}
    operators = "signsgd_update", "signum_update"


@register
class Adam(_ByOperator):
    """Divide the mean of the gradients by the root of the mean of their squares."""

    rate = 0.001
    options: ClassVar[dict[str, Any]] = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "lazy_update": True}
    operator, kept = "adam_update", 2
    beta1: float
    beta2: float

    def _given(self, index: int) -> dict[str, Any]:
        given = super()._given(index)
        count = self._counts[index]
        given["lr"] *= (1.0 - self.beta2**count) ** 0.5 / (1.0 - self.beta1**count)
        return given


@register
class AdaGrad(_ByOperator):
    """Divide the gradient by the root of the sum of its squares."""

    operator, kept = "_sparse_adagrad_update", 1
    rate_first = False
    options: ClassVar[dict[str, Any]] = {"eps": 1e-7}
    eps: float

    def _options(self, index: int) -> dict[str, Any]:  # noqa: ARG002
        return {"epsilon": self.eps}


@register
class RMSProp(_ByOperator):
    """Divide the gradient by the root of the mean of its squares, or by its deviation."""

    rate = 0.001
    options: ClassVar[dict[str, Any]] = {
        "gamma1": 0.9, "gamma2": 0.9, "epsilon": 1e-8, "centered": False, "clip_weights": None,
    }  # fmt: skip
    centered: bool

    def __init__(self, *places: Any, **given: Any) -> None:
        super().__init__(*places, **given)
        self.operator = "rmspropalex_update" if self.centered else "rmsprop_update"
        self.kept = 3 if self.centered else 1

    def _options(self, index: int) -> dict[str, Any]:
        unused = {"centered"} if self.centered else {"centered", "gamma2"}
        return {name: value for name, value in super()._options(index).items() if name not in unused}


@register
class Ftrl(_ByOperator):
    """Follow the regularized leader."""

    options: ClassVar[dict[str, Any]] = {"lamda1": 0.01, "beta": 1}
    operator, kept = "ftrl_update", 2
    rate_first = False

    def __init__(self, lamda1: float = 0.01, learning_rate: float = 0.1, beta: float = 1, **given: Any) -> None:
        super().__init__(lamda1, beta, **given)
        self.lr = learning_rate  # a schedule keeps its own


@register
class FTML(_ByOperator):
    """Follow the moving leader."""

    operator, kept = "ftml_update", 3
    options: ClassVar[dict[str, Any]] = {"beta1": 0.6, "beta2": 0.999, "epsilon": 1e-8}
    rate_first = False

    def _given(self, index: int) -> dict[str, Any]:
        given = super()._given(index)
        if "clip_gradient" in given:
            given["clip_grad"] = given.pop("clip_gradient")
        return {**given, "t": self._counts[index]}


def _clipped(slope: NDArray, most: float | None) -> NDArray:
    found: NDArray = slope if most is None else nd.clip(slope, -most, most)
    return found


class _ByHand(_ByOperator):
    """An optimizer that is several operators."""

    def _slope(self, given: dict[str, Any], weight: NDArray, grad: NDArray) -> NDArray:
        """The gradient, scaled, with the decay of the weight, clipped."""
        return _clipped(grad * given["rescale_grad"] + given["wd"] * weight, self.clip_gradient)

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight."""
        given = self._given(index)
        self._step(given, self._counts[index], weight, (self._slope(given, weight, grad), *state))

    def _step(self, given: dict[str, Any], count: int, weight: NDArray, arrays: tuple[NDArray, ...]) -> None:
        raise NotImplementedError


@register
class AdaDelta(_ByHand):
    """Let steps be as long as those before, by the gradients before."""

    kept = 2
    rate_first = False
    options: ClassVar[dict[str, Any]] = {"rho": 0.9, "epsilon": 1e-5}
    rho: float
    epsilon: float

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight: the decay is apart."""
        given = self._given(index)
        slope = self._slope({**given, "wd": 0.0}, weight, grad)
        seen, moved = state
        seen[:] = self.rho * seen + (1 - self.rho) * slope * slope
        step = nd.sqrt(moved + self.epsilon) / nd.sqrt(seen + self.epsilon) * slope
        moved[:] = self.rho * moved + (1 - self.rho) * step * step
        weight[:] = weight - (step + given["wd"] * weight)


@register
class Adamax(_ByHand):
    """Adam with the largest gradient in the place of the mean of squares."""

    rate, kept = 0.002, 2
    options: ClassVar[dict[str, Any]] = {"beta1": 0.9, "beta2": 0.999}
    beta1: float
    beta2: float

    def _step(self, given: dict[str, Any], count: int, weight: NDArray, arrays: tuple[NDArray, ...]) -> None:
        slope, mean, largest = arrays
        mean[:] = self.beta1 * mean + (1 - self.beta1) * slope
        largest[:] = nd.maximum(self.beta2 * largest, nd.abs(slope))
        weight[:] = weight - given["lr"] / (1 - self.beta1**count) * mean / largest


@register
class Nadam(_ByHand):
    """Adam with Nesterov's momentum."""

    rate, kept = 0.001, 2
    options: ClassVar[dict[str, Any]] = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "schedule_decay": 0.004}
    beta1: float
    beta2: float
    epsilon: float
    schedule_decay: float

    def __init__(self, *places: Any, **given: Any) -> None:
        super().__init__(*places, **given)
        self.m_schedule = 1.0

    def _step(self, given: dict[str, Any], count: int, weight: NDArray, arrays: tuple[NDArray, ...]) -> None:
        slope, mean, var = arrays
        now, then = (self.beta1 * (1 - 0.5 * 0.96 ** (at * self.schedule_decay)) for at in (count, count + 1))
        self.m_schedule *= now
        mean[:] = self.beta1 * mean + (1 - self.beta1) * slope
        var[:] = self.beta2 * var + (1 - self.beta2) * slope * slope
        direction = (1 - now) * slope / (1 - self.m_schedule) + then * mean / (1 - self.m_schedule * then)
        weight[:] = weight - given["lr"] * direction / (nd.sqrt(var / (1 - self.beta2**count)) + self.epsilon)


@register
class LAMB(_ByHand):
    """Adam with steps as long as weights are to them."""

    rate, kept = 0.001, 2
    options: ClassVar[dict[str, Any]] = {
        "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6,
        "lower_bound": None, "upper_bound": None, "bias_correction": True,
    }  # fmt: skip
    BOUNDS = ("lower_bound", "upper_bound")

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight."""
        given = self._given(index)
        rate, options = given.pop("lr"), self._options(index)
        bounds = {name: options.pop(name) for name in self.BOUNDS if name in options}
        first = {**given, **options, "t": self._counts[index]}
        direction = call_operator(operator("lamb_update_phase1"), [weight, grad, *state], first)
        norms = weight.norm(), direction.norm()
        call_operator(operator("lamb_update_phase2"), [weight, direction, *norms], {"lr": rate, **bounds}, weight)


@register
class SGLD(Optimizer):
    """Go down the gradient, and by chance: draws from a posterior distribution."""

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:  # noqa: ARG002
        """Change one weight."""
        given = self._given(index)
        slope = _clipped(grad * self.rescale_grad, self.clip_gradient)
        drawn = nd.random.normal(0, given["lr"] ** 0.5, weight.shape, weight.dtype, weight.context)
        weight[:] = weight - given["lr"] / 2 * (slope + given["wd"] * weight) + drawn


@register
class DCASGD(Optimizer):
    """Make up for the delay of a gradient by how far the weight has come since."""

    def __init__(self, momentum: float = 0.0, lamda: float = 0.04, **given: Any) -> None:
        super().__init__(**given)
        self.momentum, self.lamda = momentum, lamda

    def create_state(self, index: int, weight: NDArray) -> Any:  # noqa: ARG002
        """The momentum, and the weight before."""
        return _like(weight), weight.copy()

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight."""
        given, (moved, before) = self._given(index), state
        slope = _clipped(grad * self.rescale_grad, self.clip_gradient)
        slope = slope + given["wd"] * weight + self.lamda * slope * slope * (weight - before)
        moved[:] = self.momentum * moved - given["lr"] * slope
        before[:] = weight
        weight += moved


@register
class LARS(SGD):
    """SGD whose rates are by the norms of weights and gradients, but for biases and norms."""

    options: ClassVar[dict[str, Any]] = {"momentum": 0.0, "eta": 0.001, "eps": 0.0, "momentum_correction": True}
    eta: float
    eps: float
    momentum_correction: bool

    def __init__(self, *places: Any, **given: Any) -> None:
        super().__init__(*places, **given)
        self._rates: tuple[float, float] | None = None  # the one before, and now

    def _options(self, index: int) -> dict[str, Any]:  # noqa: ARG002
        if not self.momentum:
            return {}
        before, now = self._rates or (1.0, 1.0)
        return {"momentum": self.momentum * (now / before if self.momentum_correction and before else 1)}

    def update(self, index: int, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Change one weight."""
        given, now = self._given(index), self.learning_rate
        self._rates = (self._rates[1] if self._rates else now), now
        if not self.idx2name.get(index, str(index)).endswith(("gamma", "beta", "bias")):
            norm, slope = (float(each.norm().asscalar()) for each in (weight, grad))
            if norm > 0 and slope > 0:
                given["lr"] *= self.eta * norm / (slope * self.rescale_grad + given["wd"] * norm + self.eps)
        _apply(self.operator, weight, (grad, *(() if state is None else (state,))), {**given, **self._options(index)})


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
            self.states[index] = self.optimizer.create_state_multi_precision(index, weight)
        self.optimizer.update_multi_precision(index, weight, grad, self.states[index])

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
    try:
        arrays, names = read_arrays(content, "the states of an optimizer")
    except CheckpointError as error:
        raise MXNetError(error.fact) from error
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
