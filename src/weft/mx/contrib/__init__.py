"""What MXNet keeps apart as not yet settled: `mx.contrib`."""

from typing import NoReturn

from weft.mx.arrays.nd import contrib as nd
from weft.mx.contrib import autograd, io, text
from weft.mx.symbols.sym import contrib as sym

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
    reason = f": {REFUSED[name]}" if name in REFUSED else ""
    raise AttributeError(f"mx.contrib.{name} is not in weft.mx{reason}")
