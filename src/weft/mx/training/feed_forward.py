"""Train a symbol on NumPy arrays, as before modules: `mx.model.FeedForward`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.mx.arrays.ndarray import NDArray
from weft.mx.base.context import Context
from weft.mx.symbols.symbol import Symbol
from weft.mx.training import initializer as init
from weft.mx.training.data_iter import DataIter, NDArrayIter
from weft.mx.training.saved_models import load_checkpoint, save_checkpoint
from weft.mx.training.symbol_module import SymbolModule

Arrays = Mapping[str, NDArray]


class FeedForward:
    """A symbol with its parameters, and how it is trained; a module does the work."""

    def __init__(
        self,
        symbol: Symbol,
        ctx: Context | list[Context] | None = None,
        num_epoch: int | None = None,
        epoch_size: int | None = None,
        optimizer: Any = "sgd",
        initializer: Any = init.Uniform(0.01),  # noqa: B008  # it keeps nothing
        numpy_batch_size: int = 128,
        arg_params: Arrays | None = None,
        aux_params: Arrays | None = None,
        allow_extra_params: bool = False,
        begin_epoch: int = 0,
        **given: Any,
    ) -> None:
        warnings.warn("FeedForward is deprecated. Please use Module instead.", DeprecationWarning, stacklevel=2)
        if epoch_size is not None:
            raise NotImplementedError("FeedForward(epoch_size=...) is not in weft.mx: use io.ResizeIter")
        self.symbol, self.ctx, self.num_epoch, self.begin_epoch = symbol, ctx, num_epoch, begin_epoch
        self.optimizer, self.initializer, self.kwargs = optimizer, initializer, given
        self.numpy_batch_size, self.allow_extra_params = numpy_batch_size, allow_extra_params
        self.arg_params, self.aux_params = arg_params, aux_params

    def _batches(self, data: Any, label: Any, *, trains: bool) -> DataIter:
        """Arrays as batches; iterators stay what they are."""
        if isinstance(data, DataIter):
            return data
        if label is None and trains:
            raise ValueError("y must be specified when X is numpy.ndarray")
        count = len(data)
        labels: Any = np.zeros(count) if label is None else np.asarray(label)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels.reshape(-1)
        if labels.ndim != 1:
            raise ValueError("Label must be 1D or 2D (with 2nd dimension being 1)")
        size = min(count, self.numpy_batch_size)
        handle = "roll_over" if trains else "pad"
        return NDArrayIter(data, labels, size, shuffle=trains, last_batch_handle=handle, label_name=self._label_name())

    def _label_name(self) -> str:
        return next((name for name in self.symbol.list_arguments() if name.endswith("label")), "softmax_label")

    def _module(self, batches: Any) -> SymbolModule:
        data = [each[0] for each in batches.provide_data]
        labels = [each[0] for each in batches.provide_label or ()]
        return SymbolModule(self.symbol, data, labels, context=self.ctx)

    def fit(
        self,
        X: Any,  # MXNet's name
        y: Any = None,
        eval_data: Any = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Any = None,
        batch_end_callback: Any = None,
        kvstore: Any = "local",
        logger: Any = None,
        work_load_list: Any = None,
        monitor: Any = None,
        eval_end_callback: Any = None,
        eval_batch_end_callback: Any = None,
    ) -> None:
        """Train for `num_epoch` epochs."""
        _ = work_load_list
        batches = self._batches(X, y, trains=True)
        if eval_data is not None and not isinstance(eval_data, DataIter):
            eval_data = self._batches(*eval_data, trains=False)
        module = self._module(batches)
        module.logger = logger or logging
        module.fit(
            batches,
            eval_data,
            eval_metric,
            epoch_end_callback,
            batch_end_callback,
            kvstore,
            self.optimizer,
            self.kwargs,
            eval_end_callback,
            eval_batch_end_callback,
            self.initializer,
            begin_epoch=self.begin_epoch,
            num_epoch=self.num_epoch,
            monitor=monitor,
            arg_params=self.arg_params,
            aux_params=self.aux_params,
            allow_missing=True,
        )
        self.arg_params, self.aux_params = module.get_params()

    def _bound(self, X: Any, y: Any = None) -> tuple[SymbolModule, DataIter]:  # MXNet's name
        if self.arg_params is None:
            raise AssertionError("fit, or give arg_params, before this")
        batches: Any = self._batches(X, y, trains=False)
        module = self._module(batches)
        module.bind(batches.provide_data, batches.provide_label, for_training=False)
        module.set_params(self.arg_params, self.aux_params or {})
        return module, batches

    def predict(
        self,
        X: Any,  # MXNet's name
        num_batch: int | None = None,
        return_data: bool = False,
        reset: bool = True,
    ) -> Any:
        """The outputs as NumPy arrays; with `return_data` the data and the labels, too."""
        module, batches = self._bound(X)
        if reset:
            batches.reset()
        parts: list[list[Any]] = [[], [], []]
        for outputs, _, batch in module.iter_predict(batches, num_batch, reset=False):
            last = batch.data[0].shape[0] - (batch.pad or 0)
            for part, arrays in zip(parts, (outputs, batch.data, batch.label or ()), strict=True):
                part.append([array[:last].asnumpy() for array in arrays])
        joined = [[np.concatenate(column) for column in zip(*part, strict=True)] for part in parts]
        found = [part[0] if len(part) == 1 else part for part in joined]
        return tuple(found) if return_data else found[0]

    def score(
        self,
        X: Any,  # MXNet's name
        eval_metric: Any = "acc",
        num_batch: int | None = None,
        batch_end_callback: Any = None,
        reset: bool = True,
    ) -> float:
        """What a metric finds."""
        module, batches = self._bound(X)
        return module.score(batches, eval_metric, num_batch, batch_end_callback, reset=reset)[0][1]

    def save(self, prefix: str, epoch: int | None = None, remove_amp_cast: bool = True) -> None:
        """Write a checkpoint."""
        _ = remove_amp_cast
        number = self.num_epoch if epoch is None else epoch
        if number is None:
            raise AssertionError("save needs an epoch")
        save_checkpoint(prefix, number, self.symbol, self.arg_params or {}, self.aux_params or {})

    @staticmethod
    def load(prefix: str, epoch: int, ctx: Any = None, **given: Any) -> FeedForward:
        """A model of a checkpoint."""
        symbol, arg_params, aux_params = load_checkpoint(prefix, epoch)
        return FeedForward(symbol, ctx, arg_params=arg_params, aux_params=aux_params, begin_epoch=epoch, **given)

    @staticmethod
    def create(
        symbol: Symbol,
        X: Any,  # MXNet's name
        y: Any = None,
        ctx: Any = None,
        num_epoch: int | None = None,
        eval_data: Any = None,
        eval_metric: Any = "acc",
        **given: Any,
    ) -> FeedForward:
        """A model that is trained."""
        names = (
            "epoch_end_callback", "batch_end_callback", "kvstore", "logger", "work_load_list", "eval_end_callback",
            "eval_batch_end_callback",
        )  # fmt: skip
        fits = {name: given.pop(name) for name in names if name in given}
        made = FeedForward(symbol, ctx, num_epoch, **given)
        made.fit(X, y, eval_data, eval_metric, **fits)
        return made
