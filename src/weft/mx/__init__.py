"""Run MXNet 1.x's dialect, `nd`, `sym` and `gluon`, on Weft's engine and programs."""

from weft.mx import autograd, base, context, d2l, engine, executor, gluon, initializer, nd, optimizer, random, symbol
from weft.mx import initializer as init
from weft.mx import nd as ndarray
from weft.mx import symbol as sym
from weft.mx.base import MXNetError
from weft.mx.context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from weft.mx.installing import install
from weft.mx.symbol import AttrScope

__version__ = "1.9.1"  # of MXNet, whose dialect this is

__all__ = [
    "AttrScope",
    "Context",
    "MXNetError",
    "autograd",
    "base",
    "context",
    "cpu",
    "cpu_pinned",
    "current_context",
    "d2l",
    "engine",
    "executor",
    "gluon",
    "gpu",
    "init",
    "initializer",
    "install",
    "nd",
    "ndarray",
    "num_gpus",
    "optimizer",
    "random",
    "sym",
    "symbol",
]
