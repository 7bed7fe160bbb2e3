"""Train a network as handlers say: `gluon.contrib.estimator`."""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from typing import Any

from weft.mx.arrays import autograd
from weft.mx.base.context import Context, cpu, gpu, num_gpus
from weft.mx.gluon.data import DataLoader
from weft.mx.gluon.event_handlers import (
    BatchBegin,
    BatchEnd,
    CheckpointHandler,
    EarlyStoppingHandler,
    EpochBegin,
    EpochEnd,
    GradientUpdateHandler,
    LoggingHandler,
    MetricHandler,
    StoppingHandler,
    TrainBegin,
    TrainEnd,
    ValidationHandler,
    handlers_of,
    metrics_of,
)
from weft.mx.gluon.loss import GluonLoss, SoftmaxCrossEntropyLoss
from weft.mx.gluon.splitting import split_and_load
from weft.mx.gluon.trainer import GluonTrainer
from weft.mx.training.metric import Accuracy, EvalMetric
from weft.mx.training.metric import Loss as LossMetric

__all__ = [
    "BatchBegin",
    "BatchEnd",
    "BatchProcessor",
    "CheckpointHandler",
    "EarlyStoppingHandler",
    "EpochBegin",
    "EpochEnd",
    "Estimator",
    "GradientUpdateHandler",
    "LoggingHandler",
    "MetricHandler",
    "StoppingHandler",
    "TrainBegin",
    "TrainEnd",
    "ValidationHandler",
]

ONLY_LOADERS = (
    "Estimator only support input as Gluon DataLoader. Alternatively, you can transform your DataIter or any NDArray "
    "into Gluon DataLoader. Refer to gluon.data.DataLoader"
)


class BatchProcessor:
    """Compute outputs, losses and gradients of one batch; users may write their own."""

    def _get_data_and_label(self, batch: Any, ctx: Any, batch_axis: int = 0) -> tuple[list[Any], list[Any]]:
        data, label = (split_and_load(part, ctx_list=ctx, batch_axis=batch_axis) for part in batch[:2])
        return data, label

    def evaluate_batch(self, estimator: Any, val_batch: Any, batch_axis: int = 0) -> Any:
        """Data, labels, outputs and losses."""
        data, label = self._get_data_and_label(val_batch, estimator.context, batch_axis)
        pred = [estimator.val_net(x) for x in data]
        return data, label, pred, [estimator.val_loss(y_hat, y) for y_hat, y in zip(pred, label, strict=True)]

    def fit_batch(self, estimator: Any, train_batch: Any, batch_axis: int = 0) -> Any:
        """Data, labels, outputs and losses; the gradients are computed, too."""
        data, label = self._get_data_and_label(train_batch, estimator.context, batch_axis)
        with autograd.record():
            pred = [estimator.net(x) for x in data]
            loss = [estimator.loss(y_hat, y) for y_hat, y in zip(pred, label, strict=True)]
        for each in loss:
            each.backward()
        return data, label, pred, loss


class Estimator:
    """A network with its loss, metrics and trainer: `fit` and `evaluate` call handlers for all else."""

    def __init__(
        self,
        net: Any,
        loss: Any,
        train_metrics: Any = None,
        val_metrics: Any = None,
        initializer: Any = None,
        trainer: Any = None,
        context: Any = None,
        val_net: Any = None,
        val_loss: Any = None,
        batch_processor: Any = None,
    ) -> None:
        for each in (loss, val_loss):
            if not isinstance(each, GluonLoss) and not (each is None and each is val_loss):
                raise ValueError(f"loss must be a Loss, refer to gluon.loss.Loss:{each}")
        self.net, self.loss = net, loss
        self.val_net, self.val_loss = net if val_net is None else val_net, loss if val_loss is None else val_loss
        self._train_metrics, self._val_metrics = self._named_metrics(train_metrics, val_metrics)
        self.logger = logging.Logger("Estimator", logging.INFO)  # noqa: LOG001  # one of its own, as MXNet's
        self.logger.addHandler(logging.StreamHandler(sys.stdout))
        self.context = _contexts(context)
        self._initialize(initializer)
        if trainer is None:
            warnings.warn("No trainer specified, default SGD optimizer with learning rate 0.001 is used.", stacklevel=2)
            trainer = GluonTrainer(net.collect_params(), "sgd", {"learning_rate": 0.001})
        elif not isinstance(trainer, GluonTrainer):
            raise ValueError(f"Trainer must be a Gluon Trainer instance, refer to gluon.Trainer:{trainer}")
        self.trainer = trainer
        self.batch_processor = BatchProcessor() if batch_processor is None else batch_processor
        if not all(callable(getattr(self.batch_processor, name, None)) for name in ("fit_batch", "evaluate_batch")):
            raise ValueError("Customized Batch Processor must contain fit_batch() and evaluate_batch() methods")
        self.max_epoch: int | None = None
        self.max_batch: int | None = None
        self.batch_axis = 0

    def _named_metrics(self, train: Any, val: Any) -> tuple[list[EvalMetric], list[EvalMetric]]:
        """The metrics of training and of validation, with names that say so."""
        trained, validated = metrics_of(train), metrics_of(val)
        if not trained:
            trained = [Accuracy()] if isinstance(self.loss, SoftmaxCrossEntropyLoss) else []
            trained.append(LossMetric(self.loss.name.rstrip("1234567890")))
        for metric in trained:
            metric.name = "training " + metric.name
        validated = validated or [copy.deepcopy(metric) for metric in trained]
        for metric in validated:
            bare = metric.name.replace("training", "validation")
            metric.name = bare if bare != metric.name else "validation " + metric.name
        return trained, validated

    def _initialize(self, initializer: Any) -> None:
        missing = [each for each in self.net.collect_params().values() if each._data is None and each._deferred is None]
        if missing:
            self.net.initialize(initializer, ctx=self.context)
        elif initializer:
            warnings.warn(
                "Network already fully initialized, skipping initialization. You don't need to pass initializer if you "
                "already initialized your net. You can use net.initialize(init=your_initializer, force_reinit=True)"
                "to force re-initialize.",
                stacklevel=3,
            )

    @property
    def train_metrics(self) -> list[EvalMetric]:
        """The metrics of training."""
        return self._train_metrics

    @property
    def val_metrics(self) -> list[EvalMetric]:
        """The metrics of validation."""
        return self._val_metrics

    def evaluate(self, val_data: Any, batch_axis: int = 0, event_handlers: Any = None) -> None:
        """Let the metrics of validation see all batches."""
        if not isinstance(val_data, DataLoader):
            raise ValueError(ONLY_LOADERS)  # noqa: TRY004  # MXNet's
        for metric in self.val_metrics:
            metric.reset()
        added = [MetricHandler(self.val_metrics), LoggingHandler(metrics=self.val_metrics)]
        handlers = self._prepared(event_handlers, added, self.val_metrics)
        self._told(handlers, EpochBegin, "epoch_begin")
        for batch in val_data:
            self._told(handlers, BatchBegin, "batch_begin", batch=batch)
            _, label, pred, loss = self.batch_processor.evaluate_batch(self, batch, batch_axis)
            self._told(handlers, BatchEnd, "batch_end", batch=batch, pred=pred, label=label, loss=loss)
        self._told(handlers, EpochEnd, "epoch_end")

    def fit(
        self,
        train_data: Any,
        val_data: Any = None,
        epochs: int | None = None,
        event_handlers: Any = None,
        batches: int | None = None,
        batch_axis: int = 0,
    ) -> None:
        """Train for so many epochs, or batches."""
        if not isinstance(train_data, DataLoader):
            raise ValueError(ONLY_LOADERS)  # noqa: TRY004  # MXNet's
        if (not epochs) == (not batches):
            raise ValueError(
                "Fit only support exactly one type of iteration, train by number of epochs or number of batches."
                "Please specify one and only one of: epochs or batches."
            )
        self.max_epoch, self.max_batch, self.batch_axis = epochs, batches, batch_axis
        added: list[Any] = [StoppingHandler(epochs, batches), GradientUpdateHandler()]
        added.append(MetricHandler(self.train_metrics))
        if val_data:
            added.append(ValidationHandler(val_data, self.evaluate))
        added.append(LoggingHandler(metrics=self.train_metrics))
        handlers = self._prepared(event_handlers, added, [*self.train_metrics, *self.val_metrics])
        self._told(handlers, TrainBegin, "train_begin")
        is_over = False
        while not is_over:
            self._told(handlers, EpochBegin, "epoch_begin")
            for batch in train_data:
                self._told(handlers, BatchBegin, "batch_begin", batch=batch)
                _, label, pred, loss = self.batch_processor.fit_batch(self, batch, batch_axis)
                if self._told(handlers, BatchEnd, "batch_end", batch=batch, pred=pred, label=label, loss=loss):
                    break
            is_over = self._told(handlers, EpochEnd, "epoch_end")
        self._told(handlers, TrainEnd, "train_end")

    def _prepared(self, given: Any, added: list[Any], known: list[EvalMetric]) -> list[Any]:
        """The user's handlers with those that are missing, in their order."""
        own = handlers_of(given)
        handlers = [*own]
        kinds = tuple(type(each) for each in own)
        handlers += [each for each in added if isinstance(each, StoppingHandler) or not _is_one_of(each, kinds)]
        for handler in handlers if own else ():
            for metric in getattr(handler, "metrics", ()):
                if not any(metric is each for each in known):
                    raise ValueError(
                        f"Event handler {type(handler).__name__} refers to a metric instance {metric} outside of the "
                        "known training and validation metrics. Please use the metrics from estimator.train_metrics "
                        "and estimator.val_metrics instead."
                    )
        return sorted(handlers, key=lambda handler: getattr(handler, "priority", 0))

    def _told(self, handlers: list[Any], kind: type, name: str, **facts: Any) -> bool:
        """Call the handlers of a kind; whether one of them says that it is enough."""
        answers = [getattr(each, name)(self, **facts) for each in handlers if isinstance(each, kind)]
        return any(answers)  # all of them are called


def _is_one_of(handler: Any, kinds: tuple[type, ...]) -> bool:
    return any(issubclass(kind, type(handler)) for kind in kinds)


def _contexts(given: Any) -> list[Context]:
    if not given:
        return [gpu(0)] if num_gpus() else [cpu()]
    listed = [given] if isinstance(given, Context) else given
    if not isinstance(listed, list) or not all(isinstance(each, Context) for each in listed):
        raise ValueError(
            "context must be a Context or a list of Context, for example mx.cpu() or [mx.gpu(0), mx.gpu(1)], refer to "
            f"mxnet.Context:{given}"
        )
    return listed
