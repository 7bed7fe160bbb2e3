"""Train and predict with what can be bound, run and updated: `mx.mod.BaseModule`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weft.mx.arrays import nd
from weft.mx.arrays.array_file import save
from weft.mx.arrays.ndarray import NDArray
from weft.mx.training import initializer, metric
from weft.mx.training.data_iter import DataBatch
from weft.mx.training.saved_models import BatchEndParam, load_file


def _called(callbacks: Any, *args: Any) -> None:
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        if callback is not None:
            callback(*args)


@dataclass(frozen=True)
class ModuleBinding:
    """What a module is bound with: its inputs, and what a backward is to compute."""

    data_shapes: Any
    label_shapes: Any = None
    for_training: bool = True
    inputs_need_grad: bool = False
    force_rebind: bool = False
    shared_module: Any = None
    grad_req: str = "write"


@dataclass(frozen=True)
class ParameterFilling:
    """What parameters are filled with: arrays where they are given, else by an initializer."""

    initializer: Any
    arg_params: Mapping[str, NDArray] | None
    aux_params: Mapping[str, NDArray] | None
    allow_missing: bool
    allow_extra: bool

    def given_to(self, module: BaseModule) -> None:
        """Fill the parameters of a module, also where they are filled."""
        module.init_params(
            self.initializer, self.arg_params, self.aux_params, self.allow_missing, True, self.allow_extra
        )


class BaseModule:
    """What modules share: when they may be bound, filled and trained, and the loops over batches."""

    symbol: Any

    def __init__(self, logger: Any) -> None:
        self.logger = logger
        self.binded = self.params_initialized = self.optimizer_initialized = False
        self.for_training = self.inputs_need_grad = False

    # What a module does by itself.
    _bind: Callable[[ModuleBinding], None]
    _fill: Callable[[ParameterFilling], None]
    _choose_optimizer: Callable[[Any, Any], None]
    get_params: Any
    forward: Any
    backward: Any
    update: Any
    get_outputs: Any
    update_metric: Any
    install_monitor: Any

    # What follows.

    def bind(
        self,
        data_shapes: Any,
        label_shapes: Any = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: str = "write",
    ) -> None:
        """Make the arrays for inputs of these sizes."""
        if self.binded and not force_rebind:
            self.logger.warning("Already bound, ignoring bind()")
            return
        self.for_training, self.inputs_need_grad = for_training, inputs_need_grad
        self._bind(
            ModuleBinding(
                data_shapes, label_shapes, for_training, inputs_need_grad, force_rebind, shared_module, grad_req
            )
        )
        self.binded = True

    def init_params(
        self,
        initializer: Any = initializer.Uniform(0.01),  # noqa: B008  # it keeps nothing
        arg_params: Mapping[str, NDArray] | None = None,
        aux_params: Mapping[str, NDArray] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Fill the parameters: from arrays where they are given, else by the initializer."""
        if self.params_initialized and not force_init:
            self._are_filled()
            return
        if not self.binded:
            raise AssertionError("call bind before initializing the parameters")
        self._fill(ParameterFilling(initializer, arg_params, aux_params, allow_missing, allow_extra))
        self.params_initialized = True

    def _are_filled(self) -> None:
        """Do nothing: they stay what they are."""

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Choose how `update` changes parameters; gradients are divided by the size of the batch."""
        _ = kvstore  # where sums are made is no difference within a process
        if self.optimizer_initialized and not force_init:
            self.logger.warning("optimizer already initialized, ignoring...")
            return
        self._choose_optimizer(optimizer, optimizer_params)
        self.optimizer_initialized = True

    def set_params(
        self,
        arg_params: Mapping[str, NDArray],
        aux_params: Mapping[str, NDArray],
        allow_missing: bool = False,
        force_init: bool = True,
        allow_extra: bool = False,
    ) -> None:
        """Fill the parameters from arrays."""
        self.init_params(None, arg_params, aux_params, allow_missing, force_init, allow_extra)

    def save_params(self, fname: str) -> None:
        """Write the parameters, and the auxiliary states, into a file."""
        arg_params, aux_params = self.get_params()
        named = {f"arg:{name}": array for name, array in arg_params.items()}
        save(fname, named | {f"aux:{name}": array for name, array in aux_params.items()})

    def load_params(self, fname: str) -> None:
        """Fill the parameters from a file."""
        self.set_params(*load_file(fname))

    def forward_backward(self, data_batch: Any) -> None:
        """Compute outputs and gradients."""
        self.forward(data_batch, is_train=True)
        self.backward()

    def iter_predict(self, eval_data: Any, num_batch: int | None = None, reset: bool = True) -> Iterator[Any]:
        """The outputs of each batch, without what fills it."""
        if reset:
            eval_data.reset()
        for number, batch in enumerate(eval_data):
            if number == num_batch:
                return
            self.forward(batch, is_train=False)
            last = batch.data[0].shape[0] - (batch.pad or 0)
            yield [output[0:last].copy() for output in self.get_outputs()], number, batch

    def predict(
        self,
        eval_data: Any,
        num_batch: int | None = None,
        merge_batches: bool = True,
        reset: bool = True,
        always_output_list: bool = False,
        **_given: Any,
    ) -> Any:
        """The outputs of all batches."""
        if isinstance(eval_data, NDArray):
            self.forward(DataBatch([eval_data]), is_train=False)
            return self.get_outputs()[0]
        parts = [outputs for outputs, _, _ in self.iter_predict(eval_data, num_batch, reset)]
        if not parts or not merge_batches:
            return parts
        merged = [nd.concatenate(list(column)) for column in zip(*parts, strict=True)]
        return merged[0] if len(merged) == 1 and not always_output_list else merged

    def score(
        self,
        eval_data: Any,
        eval_metric: Any,
        num_batch: int | None = None,
        batch_end_callback: Any = None,
        score_end_callback: Any = None,
        reset: bool = True,
        epoch: int = 0,
        sparse_row_id_fn: Any = None,
    ) -> list[tuple[str, float]]:
        """What a metric finds of the batches."""
        _ = sparse_row_id_fn
        if reset:
            eval_data.reset()
        measured = metric.create(eval_metric)
        measured.reset()
        count = 0
        for number, batch in enumerate(eval_data):
            if number == num_batch:
                break
            self.forward(batch, is_train=False)
            self.update_metric(measured, batch.label)
            _called(batch_end_callback, BatchEndParam(epoch, number, measured, locals()))
            count = number + 1
        _called(score_end_callback, BatchEndParam(epoch, count, measured, locals()))
        found: list[tuple[str, float]] = measured.get_name_value()
        return found

    def fit(
        self,
        train_data: Any,
        eval_data: Any = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Any = None,
        batch_end_callback: Any = None,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        eval_end_callback: Any = None,
        eval_batch_end_callback: Any = None,
        initializer: Any = initializer.Uniform(0.01),  # noqa: B008  # it keeps nothing
        arg_params: Mapping[str, NDArray] | None = None,
        aux_params: Mapping[str, NDArray] | None = None,
        allow_missing: bool = False,
        force_rebind: bool = False,
        force_init: bool = False,
        begin_epoch: int = 0,
        num_epoch: int | None = None,
        validation_metric: Any = None,
        monitor: Any = None,
        sparse_row_id_fn: Any = None,
    ) -> None:
        """Train for some epochs."""
        _ = sparse_row_id_fn
        if num_epoch is None:
            raise AssertionError("please specify number of epochs")
        self.bind(train_data.provide_data, train_data.provide_label, True, force_rebind=force_rebind)
        if monitor is not None:
            self.install_monitor(monitor)
        self.init_params(initializer, arg_params, aux_params, allow_missing, force_init)
        self.init_optimizer(kvstore, optimizer, optimizer_params)
        measured = metric.create(eval_metric)
        checked = eval_metric if validation_metric is None else validation_metric
        for epoch in range(begin_epoch, num_epoch):
            began = time.time()
            measured.reset()
            for number, batch in enumerate(train_data):
                if monitor is not None:
                    monitor.tic()
                self.forward_backward(batch)
                self.update()
                self.update_metric(measured, batch.label)
                if monitor is not None:
                    monitor.toc_print()
                _called(batch_end_callback, BatchEndParam(epoch, number, measured, locals()))
            for name, value in measured.get_global_name_value():
                self.logger.info("Epoch[%d] Train-%s=%f", epoch, name, value)
            self.logger.info("Epoch[%d] Time cost=%.3f", epoch, time.time() - began)
            params = self.get_params()
            self.set_params(*params)  # auxiliary states of several devices are one from here on
            _called(epoch_end_callback, epoch, self.symbol, *params)
            if eval_data is not None:
                ends = {"score_end_callback": eval_end_callback, "batch_end_callback": eval_batch_end_callback}
                for name, value in self.score(eval_data, checked, epoch=epoch, **ends):
                    self.logger.info("Epoch[%d] Validation-%s=%f", epoch, name, value)
            train_data.reset()
