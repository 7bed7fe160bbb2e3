"""Fill new parameters: `mx.init`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from typing_extensions import Self

from weft.mx.arrays.array_file import load as load_arrays
from weft.mx.arrays.nd import random
from weft.mx.arrays.ndarray import NDArray
from weft.mx.training.fused_weights import inputs_of, parts_of

# What a parameter whose name ends so begins with, whatever the initializer: the method that fills it.
BY_SUFFIX = {
    "weight": "_init_weight",
    "bias": "_init_bias",
    "gamma": "_init_gamma",
    "beta": "_init_beta",
    "min": "_init_zero",
    "max": "_init_one",
    "running_mean": "_init_zero",
    "moving_mean": "_init_zero",
    "moving_inv_var": "_init_zero",
    "moving_avg": "_init_zero",
    "running_var": "_init_one",
    "moving_var": "_init_one",
}
UNKNOWN = (
    'Unknown initialization pattern for {}. Default initialization is now limited to "weight", "bias", "gamma" (1.0), '
    'and "beta" (0.0).Please use mx.sym.Variable(init=mx.init.*) to set initialization pattern'
)
NAMES: dict[str, Callable[..., Any]] = {}


class InitDesc(str):  # noqa: SLOT000  # it has notes
    """The name of what is to be filled, with notes of the variable."""

    attrs: dict[str, str]
    global_init: Any

    def __new__(cls, name: str, attrs: dict[str, str] | None = None, global_init: Any = None) -> Self:
        """A name."""
        made = super().__new__(cls, name)
        made.attrs = attrs or {}
        made.global_init = global_init
        return made


class Initializer:
    """Fills weights; biases and the like begin with what their names say."""

    def __init__(self, **given: Any) -> None:
        self._kwargs = given

    def dumps(self) -> str:
        """The name and the parameters as JSON."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Initializer) and type(self) is type(other) and self._kwargs == other._kwargs

    __hash__ = object.__hash__

    def __call__(self, name: str, array: NDArray) -> None:
        """Fill the array of a parameter of this name."""
        noted = name.attrs.get("__init__") if isinstance(name, InitDesc) else None
        if isinstance(name, InitDesc) and name.global_init is None:
            name.global_init = self
        if noted:
            create(noted)._init_weight(name, array)
            return
        for suffix, method in BY_SUFFIX.items():
            if name.endswith(suffix):
                getattr(self, method)(name, array)
                return
        self._init_default(name, array)

    def _init_weight(self, name: str, array: NDArray) -> None:
        """Fill a weight."""
        raise NotImplementedError("Must override it")

    def _init_zero(self, _name: str, array: NDArray) -> None:
        array[:] = 0.0

    def _init_one(self, _name: str, array: NDArray) -> None:
        array[:] = 1.0

    _init_bias = _init_beta = _init_zero
    _init_gamma = _init_one

    def _init_default(self, name: str, _array: NDArray) -> None:
        raise ValueError(UNKNOWN.format(name))


def register(kind: type[Initializer]) -> type[Initializer]:
    """Make an initializer known by the name of its class."""
    NAMES[kind.__name__.lower()] = kind
    return kind


def alias(*names: str) -> Callable[[type[Initializer]], type[Initializer]]:
    """Make an initializer known by other names, too."""

    def note(kind: type[Initializer]) -> type[Initializer]:
        NAMES.update(dict.fromkeys((name.lower() for name in names), kind))
        return register(kind)

    return note


class Constant(Initializer):
    """One number, or given elements."""

    def __init__(self, value: Any = 0.0) -> None:
        super().__init__(value=value if isinstance(value, (int, float)) else 0)
        self.value = value

    def _init_weight(self, name: str, array: NDArray) -> None:  # noqa: ARG002
        array[:] = self.value


class Zero(Constant):
    """All 0."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self._kwargs = {}


class One(Constant):
    """All 1."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self._kwargs = {}


class Uniform(Initializer):
    """Uniform numbers around 0."""

    def __init__(self, scale: float = 0.07) -> None:
        super().__init__(scale=scale)
        self.scale = scale

    def _init_weight(self, name: str, array: NDArray) -> None:  # noqa: ARG002
        random.uniform(-self.scale, self.scale, out=array)


class Normal(Initializer):
    """Normal numbers around 0."""

    def __init__(self, sigma: float = 0.01) -> None:
        super().__init__(sigma=sigma)
        self.sigma = sigma

    def _init_weight(self, name: str, array: NDArray) -> None:  # noqa: ARG002
        random.normal(0, self.sigma, out=array)


class Xavier(Initializer):
    """Numbers as large as keeps the variance from layer to layer."""

    def __init__(self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3) -> None:
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        self.rnd_type, self.factor_type, self.magnitude = rnd_type, factor_type, float(magnitude)

    def _init_weight(self, name: str, array: NDArray) -> None:
        shape = array.shape
        if len(shape) < 2:
            raise ValueError(f"Xavier initializer cannot be applied to vector {name}. It requires at least 2D.")
        area = math.prod(shape[2:])
        fans: dict[str, float] = {"in": shape[1] * area, "out": shape[0] * area}
        fans["avg"] = (fans["in"] + fans["out"]) / 2.0
        if self.factor_type not in fans:
            raise ValueError("Incorrect factor type")
        scale = math.sqrt(self.magnitude / fans[self.factor_type])
        if self.rnd_type == "uniform":
            random.uniform(-scale, scale, out=array)
        elif self.rnd_type == "gaussian":
            random.normal(0, scale, out=array)
        else:
            raise ValueError("Unknown random type")


class MSRAPrelu(Xavier):
    """Xavier for layers with leaky relus."""

    def __init__(self, factor_type: str = "avg", slope: float = 0.25) -> None:
        super().__init__("gaussian", factor_type, 2.0 / (1 + slope**2))
        self._kwargs = {"factor_type": factor_type, "slope": slope}


class Bilinear(Initializer):
    """Weights of a deconvolution that enlarges images."""

    def _init_weight(self, name: str, array: NDArray) -> None:  # noqa: ARG002
        shape = array.shape
        half = math.ceil(shape[3] / 2.0)
        center = (2 * half - 1 - half % 2) / (2.0 * half)
        line = 1 - np.abs(np.arange(shape[3]) / half - center)
        array[:] = np.broadcast_to(line[: shape[2], None] * line, shape)


class LSTMBias(Initializer):
    """0, but for the bias of the forget gate."""

    def __init__(self, forget_bias: float = 1.0) -> None:
        super().__init__(forget_bias=forget_bias)
        self.forget_bias = forget_bias

    def _init_weight(self, name: str, array: NDArray) -> None:  # noqa: ARG002
        array[:] = 0.0
        count = array.shape[0] // 4
        array[count : 2 * count] = self.forget_bias


class Orthogonal(Initializer):
    """Lines, or columns, that are orthogonal to each other."""

    def __init__(self, scale: float = 1.414, rand_type: str = "uniform") -> None:
        super().__init__(scale=scale, rand_type=rand_type)
        self.scale, self.rand_type = scale, rand_type

    def _init_weight(self, name: str, array: NDArray) -> None:  # noqa: ARG002
        rows, columns = array.shape[0], math.prod(array.shape[1:])
        if self.rand_type == "uniform":
            drawn = random.uniform(-1.0, 1.0, shape=(rows, columns)).asnumpy()
        else:
            drawn = random.normal(0.0, 1.0, shape=(rows, columns)).asnumpy()
        left, _, right = np.linalg.svd(drawn, full_matrices=False)
        found = left if left.shape == drawn.shape else right
        array[:] = (self.scale * found).reshape(array.shape)


class FusedRNN(Initializer):
    """Fills the one array of a recurrent operator gate by gate: by an initializer, or by the global one."""

    def __init__(
        self,
        init: Any,
        num_hidden: int,
        num_layers: int,
        mode: str,
        bidirectional: bool = False,
        forget_bias: float = 1.0,
    ) -> None:
        inner = create(init)
        super().__init__(
            init=None if inner is None else inner.dumps(),
            num_hidden=num_hidden,
            num_layers=num_layers,
            mode=mode,
            bidirectional=bidirectional,
            forget_bias=forget_bias,
        )
        self._inner, self._forget_bias = inner, forget_bias
        self._form = mode, num_layers, num_hidden
        self._directions = "lr"[: 1 + bool(bidirectional)]

    def _init_weight(self, name: str, array: NDArray) -> None:
        inputs = inputs_of(array.size, *self._form, self._directions)
        outer = getattr(name, "global_init", None)
        for part, view in parts_of(array, *self._form, inputs, self._directions).items():
            if part.endswith("_f_bias"):
                view[:] = self._forget_bias
                continue
            inner = self._inner or outer
            if inner is None:
                raise ValueError("FusedRNN without an initializer of its own needs a global one")
            inner(InitDesc(part, global_init=outer), view)


class Load:
    """Takes what files have, and fills the rest by another initializer."""

    def __init__(self, param: Any, default_init: Any = None, verbose: bool = False) -> None:
        _ = verbose
        found = load_arrays(param) if isinstance(param, str) else param
        self.param = {name.removeprefix("arg:").removeprefix("aux:"): array for name, array in found.items()}
        self.default_init = default_init

    def __call__(self, name: str, array: NDArray) -> None:
        """Fill the array of a parameter of this name."""
        if name in self.param:
            given = self.param[name]
            if given.shape != array.shape:
                raise AssertionError(
                    f"Parameter {name} cannot be initialized from loading. Shape mismatch, target {array.shape} vs "
                    f"loaded {given.shape}"
                )
            array[:] = given
        elif self.default_init is None:
            raise AssertionError(
                f"Cannot Initialize {name}. Not found in loaded param and no default Initializer is provided."
            )
        else:
            self.default_init(name, array)


class Mixed:
    """Chooses an initializer by the first pattern that a name begins with."""

    def __init__(self, patterns: Sequence[str], initializers: Sequence[Any]) -> None:
        if len(patterns) != len(initializers):
            raise AssertionError("patterns and initializers must be as many")
        self.map = [(re.compile(pattern), each) for pattern, each in zip(patterns, initializers, strict=True)]

    def __call__(self, name: str, array: NDArray) -> None:
        """Fill the array of a parameter of this name."""
        for pattern, initializer in self.map:
            if pattern.match(name):
                initializer(name, array)
                return
        raise ValueError(
            f'Parameter name {name} did not match any pattern. Consider adding a ".*" pattern at the and with default '
            "Initializer."
        )

    _init_weight = __call__


for _kind in (Constant, Zero, One, Uniform, Normal, Xavier, MSRAPrelu, Bilinear, LSTMBias, Orthogonal, FusedRNN):
    register(_kind)
NAMES.update({"zeros": Zero, "ones": One, "gaussian": Normal})


def create(given: Any) -> Any:
    """An initializer, which may be given by its name, or by its name and parameters as JSON."""
    if not isinstance(given, str):
        return given
    name, options = json.loads(given) if given.startswith("[") else (given, {})
    kind = NAMES.get(name.lower())
    if kind is None:
        raise AssertionError(f"{name} is not registered. Please register with initializer.register first")
    return kind(**options)
