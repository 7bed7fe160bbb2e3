"""What networks need beside NumPy's functions, under the names of `mx.npx`: operators of `nd`, and the switch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.mx.arrays import nd
from weft.mx.arrays.array_file import load, save
from weft.mx.arrays.frontend import PAIRS, Frontend, apply_pair
from weft.mx.arrays.queue import waitall
from weft.mx.base.context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from weft.mx.base.numpy_mode import is_np_array, is_np_shape, np_array, np_shape, reset_np, set_np, use_np
from weft.mx.numpy.array import array
from weft.mx.numpy.functions import OF_ELEMENTS
from weft.mx.operators.table import OPERATORS

# The operators of `nd` by their names here.
OPERATORS_HERE = {
    **{
        name: name
        for name in (
            *(
                "relu",
                "sigmoid",
                "softmax",
                "log_softmax",
                "batch_dot",
                "one_hot",
                "pick",
                "topk",
                "erf",
                "erfinv",
                "gamma",
            ),
            *("gammaln", "smooth_l1", "reshape_like", "shape_array", "gather_nd", "ctc_loss", "slice", "hard_sigmoid"),
        )
    },
    "activation": "Activation",
    "arange_like": "_contrib_arange_like",
    "batch_flatten": "Flatten",
    "batch_norm": "BatchNorm",
    "broadcast_like": "broadcast_like",
    "cast": "Cast",
    "convolution": "Convolution",
    "deconvolution": "Deconvolution",
    "dropout": "Dropout",
    "embedding": "Embedding",
    "fully_connected": "FullyConnected",
    "group_norm": "GroupNorm",
    "instance_norm": "InstanceNorm",
    "layer_norm": "LayerNorm",
    "leaky_relu": "LeakyReLU",
    "multibox_detection": "_contrib_MultiBoxDetection",
    "multibox_prior": "_contrib_MultiBoxPrior",
    "multibox_target": "_contrib_MultiBoxTarget",
    "pooling": "Pooling",
    "rnn": "RNN",
    "roi_pooling": "ROIPooling",
    "sequence_last": "SequenceLast",
    "sequence_mask": "SequenceMask",
    "sequence_reverse": "SequenceReverse",
    "stop_gradient": "BlockGrad",
}


def seed(seed: int, ctx: Any = "all") -> None:
    """Begin the random numbers anew."""
    nd.random.seed(seed, ctx)


def from_numpy(ndarray: Any, zero_copy: bool = True) -> Any:
    """An array of NumPy's elements."""
    return nd.from_numpy(ndarray).as_np_ndarray() if zero_copy else array(ndarray)


def save_arrays(file: Any, arr: Any) -> None:
    """Write arrays, or named ones, to a file."""
    save(file, arr)


def load_arrays(file: Any) -> Any:
    """The arrays of a file."""
    found = load(file)
    if isinstance(found, dict):
        return {name: each.as_np_ndarray() for name, each in found.items()}
    return [each.as_np_ndarray() for each in found]


def nonzero(a: Any) -> Any:
    """Where elements are not 0, a line of places for each: waits for them."""
    return array(np.argwhere(a.asnumpy()))


OWN: dict[str, Any] = {
    "nonzero": nonzero,
    "Context": Context, "cpu": cpu, "cpu_pinned": cpu_pinned, "current_context": current_context, "gpu": gpu,
    "from_numpy": from_numpy, "is_np_array": is_np_array, "is_np_shape": is_np_shape, "load": load_arrays,
    "np_array": np_array, "np_shape": np_shape, "num_gpus": num_gpus, "reset_np": reset_np, "save": save_arrays,
    "seed": seed, "set_np": set_np, "use_np": use_np, "waitall": waitall,
}  # fmt: skip


class Extension:
    """`npx` for arrays, or for symbols."""

    def __init__(self, name: str, frontend: Frontend) -> None:
        self.__name__ = name
        self._frontend = frontend
        self.__dict__.update(OWN)

    def __getattr__(self, name: str) -> Any:
        if name in OPERATORS_HERE:
            return self._frontend.function(OPERATORS_HERE[name])
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"npx.{name} is not in weft.mx; nd.{name} takes arrays of mx.np too, if there is one")

    def __dir__(self) -> list[str]:
        return sorted({*OWN, *OPERATORS_HERE})


class SymbolFunctions:
    """Those functions of `np` that symbols have: of each element, and of pairs."""

    def __init__(self, name: str, frontend: Frontend) -> None:
        self.__name__ = name
        self._frontend = frontend

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in OF_ELEMENTS and name in OPERATORS:
            return self._frontend.function(name)
        if name in PAIRS:
            return lambda x1, x2: apply_pair(self._frontend, PAIRS[name], x1, x2)
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"np.{name} of symbols is not in weft.mx: call the block that has it without hybridize()")


npx = Extension("mxnet.numpy_extension", nd.FRONTEND)
