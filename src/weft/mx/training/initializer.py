"""Fill new parameters: `mx.init`."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from weft.mx.arrays.nd import random
from weft.mx.arrays.ndarray import NDArray

# What a parameter whose name ends so begins with, whatever the initializer.
BY_SUFFIX = {
    "bias": 0.0,
    "gamma": 1.0,
    "beta": 0.0,
    "running_mean": 0.0,
    "moving_mean": 0.0,
    "running_var": 1.0,
    "moving_var": 1.0,
}


class Initializer:
    """Fills weights; biases and the like begin with what their names say."""

    def __init__(self, **given: Any) -> None:
        self._given = given

    def dumps(self) -> str:
        """The name and the parameters as JSON."""
        return json.dumps([type(self).__name__.lower(), self._given])

    def __call__(self, name: str, array: NDArray) -> None:
        """Fill the array of a parameter of this name."""
        for suffix, value in BY_SUFFIX.items():
            if name.endswith(suffix):
                array[:] = value
                return
        self._init_weight(name, array)

    def _init_weight(self, name: str, array: NDArray) -> None:
        """Fill a weight."""
        raise NotImplementedError(f"{type(self).__name__} fills no weights, and {name} is one")


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
        self._given = {}


class One(Constant):
    """All 1."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self._given = {}


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
        self._given = {"factor_type": factor_type, "slope": slope}


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


NAMES: dict[str, type[Initializer]] = {
    kind.__name__.lower(): kind
    for kind in (Constant, Zero, One, Uniform, Normal, Xavier, MSRAPrelu, Bilinear, LSTMBias)
}
NAMES.update({"zeros": Zero, "ones": One, "gaussian": Normal})


def create(given: Any) -> Initializer:
    """An initializer, which may be given by its name."""
    if isinstance(given, str):
        if given.lower() not in NAMES:
            raise ValueError(f"Cannot find initializer {given}. Valid initializers are: {', '.join(sorted(NAMES))}")
        return NAMES[given.lower()]()
    found: Initializer = given
    return found
