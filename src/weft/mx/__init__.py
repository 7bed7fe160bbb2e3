"""Run MXNet 1.x's dialect, `nd`, `sym` and `gluon`, on Weft's engine and programs."""

from weft.mx import base, contrib, d2l, gluon, libinfo, log, numpy, profiler, runtime, test_utils, visualization
from weft.mx import numpy as np
from weft.mx import visualization as viz
from weft.mx.arrays import autograd, nd
from weft.mx.arrays import custom as operator
from weft.mx.arrays import nd as ndarray
from weft.mx.arrays import queue as engine
from weft.mx.arrays.nd import random
from weft.mx.arrays.nd import random as rnd
from weft.mx.base import MXNetError, context
from weft.mx.base import numpy_mode as util
from weft.mx.base.context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from weft.mx.base.numpy_mode import is_np_array, is_np_shape, np_shape, use_np
from weft.mx.gluon.to_torch import to_torch
from weft.mx.installing import install
from weft.mx.numpy.extension import Extension, SymbolFunctions, npx
from weft.mx.numpy.extension import npx as numpy_extension
from weft.mx.symbols import executor, sym
from weft.mx.symbols import names as attribute
from weft.mx.symbols import names as name
from weft.mx.symbols import sym as symbol
from weft.mx.symbols.names import AttrScope
from weft.mx.symbols.symbol import FRONTEND
from weft.mx.training import (
    image,
    initializer,
    io,
    kvstore,
    lr_scheduler,
    metric,
    model,
    module,
    monitor,
    optimizer,
    recordio,
)
from weft.mx.training import image as img
from weft.mx.training import initializer as init
from weft.mx.training import kvstore as kv
from weft.mx.training import legacy_rnn as rnn
from weft.mx.training import model as callback
from weft.mx.training import module as mod
from weft.mx.training import monitor as mon

vars(sym).update(np=SymbolFunctions("mxnet.symbol.numpy", FRONTEND), npx=Extension("npx", FRONTEND))

__version__ = libinfo.__version__

__all__ = [
    "AttrScope",
    "Context",
    "MXNetError",
    "attribute",
    "autograd",
    "base",
    "callback",
    "context",
    "contrib",
    "cpu",
    "cpu_pinned",
    "current_context",
    "d2l",
    "engine",
    "executor",
    "gluon",
    "gpu",
    "image",
    "img",
    "init",
    "initializer",
    "install",
    "io",
    "is_np_array",
    "is_np_shape",
    "kv",
    "kvstore",
    "libinfo",
    "log",
    "lr_scheduler",
    "metric",
    "mod",
    "model",
    "mon",
    "monitor",
    "module",
    "name",
    "nd",
    "ndarray",
    "np",
    "np_shape",
    "npx",
    "num_gpus",
    "numpy",
    "numpy_extension",
    "operator",
    "optimizer",
    "profiler",
    "random",
    "recordio",
    "rnd",
    "rnn",
    "runtime",
    "sym",
    "symbol",
    "test_utils",
    "to_torch",
    "use_np",
    "util",
    "visualization",
    "viz",
]
