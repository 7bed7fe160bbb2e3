"""Give the modules that users contributed to MXNet: `mx.contrib`."""

from typing import NoReturn

from weft.mx.arrays.nd import contrib as nd
from weft.mx.contrib import autograd, text
from weft.mx.symbols.sym import contrib as sym
from weft.mx.training import io  # for its DataLoaderIter

ndarray, symbol = nd, sym

__all__ = ["autograd", "io", "nd", "ndarray", "sym", "symbol", "text"]

# What is not there, with what to use instead.
REFUSED = {
    "amp": "cast networks by net.cast('float16')",
    "onnx": "weft.mx.to_torch(net, x) writes a torch module, which torch.onnx exports",
    "quantization": "the quantized operators are in nd.contrib",
    "svrg_optimization": "it was an experiment of MXNet's",
    "tensorboard": "callbacks of mx.callback log what a callback of mxboard wrote",
    "tensorrt": "networks run as Weft programs",
}


def __getattr__(name: str) -> NoReturn:
    if name in REFUSED:  # as an ImportError, `from mxnet.contrib import onnx` tells it, too
        raise ImportError(f"mx.contrib.{name} is not in weft.mx: {REFUSED[name]}")
    raise AttributeError(f"module 'mxnet.contrib' has no attribute {name!r}")
