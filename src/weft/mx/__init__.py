"""Run MXNet 1.x's dialect, `nd`, `sym` and `gluon`, on Weft's engine and programs."""

from weft.mx import autograd, base, engine, nd, random
from weft.mx.base import MXNetError
from weft.mx.context import Context, cpu, cpu_pinned, current_context, gpu, num_gpus

__all__ = [
    "Context",
    "MXNetError",
    "autograd",
    "base",
    "cpu",
    "cpu_pinned",
    "current_context",
    "engine",
    "gpu",
    "nd",
    "num_gpus",
    "random",
]
