"""Run MXNet 1.x's dialect, `nd`, `sym` and `gluon`, on Weft's engine and programs."""

from weft.mx import autograd, base, engine, executor, gluon, initializer, nd, optimizer, random, symbol
from weft.mx import initializer as init
from weft.mx import symbol as sym
from weft.mx.base import MXNetError
from weft.mx.context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus
from weft.mx.symbol import AttrScope

__all__ = [
    "AttrScope",
    "Context",
    "MXNetError",
    "autograd",
    "base",
    "cpu",
    "cpu_pinned",
    "current_context",
    "engine",
    "executor",
    "gluon",
    "gpu",
    "init",
    "initializer",
    "nd",
    "num_gpus",
    "optimizer",
    "random",
    "sym",
    "symbol",
]
