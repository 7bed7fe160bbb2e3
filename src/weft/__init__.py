"""Weft: ordinary imperative PyTorch, run as whole compiled programs.

To add a public name, add it in three places: the block for type checkers, `__all__` and `HOMES`.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from weft.errors import (
    CheckpointError,
    ExecutionError,
    InternalError,
    MismatchError,
    OutOfMemoryError,
    UnsupportedError,
    UsageError,
    WeftError,
)
from weft.foreign_names import told_otherwise

if TYPE_CHECKING:
    from weft.api.asynchronous import engine_statistics, lazy, limit, on, ready, trace_to, wait, waitall
    from weft.api.calibrate import calibrate
    from weft.api.explain import explain
    from weft.api.export import export
    from weft.api.hybridize import hybridize, program
    from weft.api.load_program import load_program
    from weft.api.prepare import prepare
    from weft.api.source import compile_source
    from weft.api.spawn import spawn
    from weft.api.step import step
    from weft.train import data, models
    from weft.train.callbacks import BestCheckpoint, Callback, CSVLogger, EarlyStop, TensorBoardLogger
    from weft.train.chapter import (
        accuracy,
        evaluate_accuracy,
        evaluate_accuracy_gpu,
        evaluate_accuracy_gpus,
        load_data_fashion_mnist,
        scatter,
        sgd,
    )
    from weft.train.checkpoints.checkpoint import Checkpoints, load, save
    from weft.train.devices.choose_devices import try_all_gpus, try_gpu
    from weft.train.devices.data_parallel import DataParallel
    from weft.train.devices.replicas import allreduce, replicate
    from weft.train.devices.shares import split_and_load, split_batch
    from weft.train.evaluate import evaluate, predict
    from weft.train.metrics import Accumulator, Animator
    from weft.train.timing import BenchMark, Benchmark, Timer
    from weft.train.trainer import Trainer

__version__ = "0.1.0.dev0"

__all__ = [
    "Accumulator",
    "Animator",
    "BenchMark",
    "Benchmark",
    "BestCheckpoint",
    "CSVLogger",
    "Callback",
    "CheckpointError",
    "Checkpoints",
    "DataParallel",
    "EarlyStop",
    "ExecutionError",
    "InternalError",
    "MismatchError",
    "OutOfMemoryError",
    "TensorBoardLogger",
    "Timer",
    "Trainer",
    "UnsupportedError",
    "UsageError",
    "WeftError",
    "accuracy",
    "allreduce",
    "calibrate",
    "compile_source",
    "data",
    "engine_statistics",
    "evaluate",
    "evaluate_accuracy",
    "evaluate_accuracy_gpu",
    "evaluate_accuracy_gpus",
    "explain",
    "export",
    "hybridize",
    "lazy",
    "limit",
    "load",
    "load_data_fashion_mnist",
    "load_program",
    "models",
    "on",
    "predict",
    "prepare",
    "program",
    "ready",
    "replicate",
    "save",
    "scatter",
    "sgd",
    "spawn",
    "split_and_load",
    "split_batch",
    "step",
    "trace_to",
    "try_all_gpus",
    "try_gpu",
    "wait",
    "waitall",
]

# Where each name comes from: imported at its first use, because `weft --version` must not wait for PyTorch.
HOMES = {
    "Accumulator": "weft.train.metrics",
    "Animator": "weft.train.metrics",
    "BenchMark": "weft.train.timing",
    "Benchmark": "weft.train.timing",
    "BestCheckpoint": "weft.train.callbacks",
    "CSVLogger": "weft.train.callbacks",
    "Callback": "weft.train.callbacks",
    "Checkpoints": "weft.train.checkpoints.checkpoint",
    "DataParallel": "weft.train.devices.data_parallel",
    "EarlyStop": "weft.train.callbacks",
    "TensorBoardLogger": "weft.train.callbacks",
    "Timer": "weft.train.timing",
    "Trainer": "weft.train.trainer",
    "accuracy": "weft.train.chapter",
    "allreduce": "weft.train.devices.replicas",
    "compile_source": "weft.api.source",
    "data": "weft.train",
    "engine_statistics": "weft.api.asynchronous",
    "evaluate": "weft.train.evaluate",
    "evaluate_accuracy": "weft.train.chapter",
    "evaluate_accuracy_gpu": "weft.train.chapter",
    "evaluate_accuracy_gpus": "weft.train.chapter",
    "explain": "weft.api.explain",
    "export": "weft.api.export",
    "calibrate": "weft.api.calibrate",
    "hybridize": "weft.api.hybridize",
    "lazy": "weft.api.asynchronous",
    "limit": "weft.api.asynchronous",
    "load": "weft.train.checkpoints.checkpoint",
    "load_data_fashion_mnist": "weft.train.chapter",
    "load_program": "weft.api.load_program",
    "models": "weft.train",
    "on": "weft.api.asynchronous",
    "predict": "weft.train.evaluate",
    "prepare": "weft.api.prepare",
    "program": "weft.api.hybridize",
    "ready": "weft.api.asynchronous",
    "replicate": "weft.train.devices.replicas",
    "save": "weft.train.checkpoints.checkpoint",
    "scatter": "weft.train.chapter",
    "sgd": "weft.train.chapter",
    "spawn": "weft.api.spawn",
    "split_and_load": "weft.train.devices.shares",
    "split_batch": "weft.train.devices.shares",
    "step": "weft.api.step",
    "trace_to": "weft.api.asynchronous",
    "try_all_gpus": "weft.train.devices.choose_devices",
    "try_gpu": "weft.train.devices.choose_devices",
    "wait": "weft.api.asynchronous",
    "waitall": "weft.api.asynchronous",
}

MODULES = {"data", "models"}  # those of the names that are modules

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that this function knows

    def __getattr__(name: str) -> object:
        home = HOMES.get(name)
        if home is None and (told := told_otherwise(name)) is not None:
            raise AttributeError(str(told))
        if home is None:
            # With the module, so that Python may add which name was meant.
            raise AttributeError(f"module 'weft' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        torch = sys.modules.get("torch")
        # Tensors that are made by an import are for all who come later.
        with nullcontext() if torch is None else torch.inference_mode(False):
            if name in MODULES:
                found: object = importlib.import_module(f"{home}.{name}")
            else:
                found = getattr(importlib.import_module(home), name)
        globals()[name] = found  # so that the next use is a plain attribute
        return found

    def __dir__() -> list[str]:
        # What a reader may use: the rooms of the package are no part of that.
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
