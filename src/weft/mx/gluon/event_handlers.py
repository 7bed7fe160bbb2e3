"""Act at the beginnings and ends of trainings, epochs and batches: what an `Estimator` calls."""

from __future__ import annotations

import math
import operator
import re
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from weft.mx.training.metric import CompositeEvalMetric, EvalMetric
from weft.mx.training.metric import Loss as LossMetric


class EventHandler:
    """What an estimator may be given."""


class TrainBegin(EventHandler):
    """It acts before the first epoch."""

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Act."""


class TrainEnd(EventHandler):
    """It acts after the last epoch."""

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Act."""


class EpochBegin(EventHandler):
    """It acts before each epoch."""

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Act."""


class EpochEnd(EventHandler):
    """It acts after each epoch, and may end the training."""

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool | None:  # noqa: ARG002
        """Act; true ends the training."""
        return False


class BatchBegin(EventHandler):
    """It acts before each batch."""

    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> None:
        """Act."""


class BatchEnd(EventHandler):
    """It acts after each batch, and may end the epoch."""

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> bool | None:  # noqa: ARG002
        """Act; true ends the epoch."""
        return False


def handlers_of(given: Any) -> list[EventHandler]:
    """One handler or several as a list."""
    listed = [given] if isinstance(given, EventHandler) else list(given or ())
    if not all(isinstance(each, EventHandler) for each in listed):
        raise ValueError(f"handlers must be an EventHandler or a list of EventHandler, got: {listed}")
    return listed


def metrics_of(given: Any) -> list[EvalMetric]:
    """One metric or several as a list."""
    if isinstance(given, CompositeEvalMetric):
        return [each for metric in given.metrics for each in metrics_of(metric)]
    listed = [given] if isinstance(given, EvalMetric) else list(given or ())
    if not all(isinstance(each, EvalMetric) for each in listed):
        raise ValueError(f"metrics must be a Metric or a list of Metric, refer to mxnet.metric.EvalMetric: {listed}")
    return listed


class StoppingHandler(TrainBegin, BatchEnd, EpochEnd):
    """End after so many epochs or batches."""

    def __init__(self, max_epoch: int | None = None, max_batch: int | None = None) -> None:
        self.max_epoch, self.max_batch = max_epoch, max_batch
        self.current_batch = self.current_epoch = 0
        self.stop_training = False

    def train_begin(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:
        """Count anew."""
        self.max_epoch, self.max_batch = estimator.max_epoch, estimator.max_batch
        self.current_batch = self.current_epoch = 0

    def batch_end(self, estimator: Any, *_args: Any, **_kwargs: Any) -> bool:  # noqa: ARG002
        """Count a batch."""
        self.current_batch += 1
        self.stop_training = self.stop_training or self.current_batch == self.max_batch
        return self.stop_training

    def epoch_end(self, estimator: Any, *_args: Any, **_kwargs: Any) -> bool:  # noqa: ARG002
        """Count an epoch."""
        self.current_epoch += 1
        self.stop_training = self.stop_training or self.current_epoch == self.max_epoch
        return self.stop_training


class MetricHandler(EpochBegin, BatchEnd):
    """Let metrics see all batches of an epoch."""

    def __init__(self, metrics: Any, priority: float = -1000) -> None:
        self.metrics, self.priority = metrics_of(metrics), priority

    def epoch_begin(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        """Forget what was seen."""
        for metric in self.metrics:
            metric.reset()

    def batch_end(self, estimator: Any, *_args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """See a batch."""
        for metric in self.metrics:
            if isinstance(metric, LossMetric):
                metric.update(0, kwargs["loss"])
            else:
                metric.update(kwargs["label"], kwargs["pred"])


class ValidationHandler(TrainBegin, BatchEnd, EpochEnd):
    """Evaluate every so many epochs or batches."""

    def __init__(
        self,
        val_data: Any,
        eval_fn: Callable[..., Any],
        epoch_period: int | None = 1,
        batch_period: int | None = None,
        priority: float = -1000,
        event_handlers: Any = None,
    ) -> None:
        self.val_data, self.eval_fn, self.event_handlers = val_data, eval_fn, event_handlers
        self.epoch_period, self.batch_period, self.priority = epoch_period, batch_period, priority
        self.current_batch = self.current_epoch = 0

    def train_begin(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        """Count anew."""
        self.current_batch = self.current_epoch = 0

    def _evaluate(self, estimator: Any, count: int, period: int | None) -> None:
        if period and count % period == 0:
            self.eval_fn(val_data=self.val_data, batch_axis=estimator.batch_axis, event_handlers=self.event_handlers)

    def batch_end(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:
        """Count a batch."""
        self.current_batch += 1
        self._evaluate(estimator, self.current_batch, self.batch_period)

    def epoch_end(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:
        """Count an epoch."""
        self.current_epoch += 1
        self._evaluate(estimator, self.current_epoch, self.epoch_period)


def _shown(metrics: Sequence[EvalMetric]) -> str:
    return ", ".join("{}: {:.4f}".format(*metric.get()) for metric in metrics)


class LoggingHandler(TrainBegin, TrainEnd, EpochBegin, EpochEnd, BatchBegin, BatchEnd):
    """Log how training goes: epochs, or every so many batches too."""

    def __init__(self, log_interval: int | str = "epoch", metrics: Any = None, priority: float = math.inf) -> None:
        if not isinstance(log_interval, int) and log_interval != "epoch":
            raise ValueError("log_interval must be either an integer or string 'epoch'")
        self.metrics, self.log_interval, self.priority = metrics_of(metrics), log_interval, priority
        self.batch_index = self.current_epoch = self.processed_samples = 0
        self.log_interval_time = 0.0

    def train_begin(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:
        """Log what is to come."""
        self.train_start = time.time()
        estimator.logger.info(
            "Training begin: using optimizer %s with current learning rate %.4f ",
            type(estimator.trainer.optimizer).__name__,
            estimator.trainer.learning_rate,
        )
        count, unit = (estimator.max_epoch, "epochs") if estimator.max_epoch else (estimator.max_batch, "batches")
        estimator.logger.info("Train for %d %s.", count, unit)
        self.batch_index = self.current_epoch = self.processed_samples = 0
        self.log_interval_time = 0.0

    def train_end(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:
        """Log the end."""
        took = time.time() - self.train_start
        text = f"Train finished using total {int(took)}s with {self.current_epoch} epochs. {_shown(self.metrics)}"
        estimator.logger.info(text)

    def batch_begin(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        """Note the time."""
        self.batch_start = time.time()

    def batch_end(self, estimator: Any, *_args: Any, **kwargs: Any) -> None:
        """Log a batch, if its turn has come."""
        if isinstance(self.log_interval, int):
            self.processed_samples += kwargs["batch"][0].shape[0]
            self.log_interval_time += time.time() - self.batch_start
            if self.batch_index % self.log_interval == 0:
                place = f"[Epoch {self.current_epoch}][Batch {self.batch_index}][Samples {self.processed_samples}] "
                text = f"{place}time/interval: {self.log_interval_time:.3f}s {_shown(self.metrics)}"
                estimator.logger.info(text.rstrip())
                self.log_interval_time = 0.0
        self.batch_index += 1

    def epoch_begin(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:
        """Log the beginning."""
        self.epoch_start = time.time()
        if any("training" in metric.name for metric in self.metrics):
            rate = estimator.trainer.learning_rate
            estimator.logger.info("[Epoch %d] Begin, current learning rate: %.4f", self.current_epoch, rate)
        else:
            estimator.logger.info("Validation Begin")

    def epoch_end(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:
        """Log the figures."""
        took = time.time() - self.epoch_start
        text = f"[Epoch {self.current_epoch}] Finished in {took:.3f}s, {_shown(self.metrics)}"
        estimator.logger.info(text)
        self.current_epoch += 1
        self.batch_index = 0


def _better(monitor: Any, mode: str) -> Callable[[float, float], bool]:
    """Whether a figure is better than the best: MXNet takes more for better where it is not told."""
    if mode not in ("auto", "min", "max"):
        warnings.warn(f"mode {mode} is unknown, fallback to auto mode.", RuntimeWarning, stacklevel=4)
        mode = "auto"
    if mode == "auto":
        warnings.warn(
            f"`greater` operator will be used to determine if {monitor.get()[0]} has improved. Please specify "
            "`mode='min'` to use the `less` operator. Specify `mode='max' to disable this warning.`",
            stacklevel=4,
        )
    return operator.lt if mode == "min" else operator.gt


def _worst(better: Callable[[float, float], bool]) -> float:
    return math.inf if better is operator.lt else -math.inf


class CheckpointHandler(TrainBegin, BatchEnd, EpochEnd):
    """Write parameters and trainer states every so many epochs or batches, perhaps the best ones too."""

    def __init__(
        self,
        model_dir: str,
        model_prefix: str = "model",
        monitor: Any = None,
        verbose: int = 0,
        save_best: bool = False,
        mode: str = "auto",
        epoch_period: int | None = 1,
        batch_period: int | None = None,
        max_checkpoints: int = 5,
        resume_from_checkpoint: bool = False,
    ) -> None:
        if save_best and not isinstance(monitor, EvalMetric):
            raise ValueError(
                "To save best model only, please provide one of the metric objects from estimator.train_metrics and "
                "estimator.val_metrics as monitor."
            )
        Path(model_dir).mkdir(parents=True, exist_ok=True)
        self.model_dir, self.model_prefix, self.monitor, self.verbose = model_dir, model_prefix, monitor, verbose
        self.epoch_period, self.batch_period, self.max_checkpoints = epoch_period, batch_period, max_checkpoints
        self.save_best, self.resume_from_checkpoint = save_best, resume_from_checkpoint
        self.current_batch = self.current_epoch = 0
        self.saved_checkpoints: list[str] = []
        self._before = (0, 0)  # epochs and batches of the training that goes on
        self._better = _better(monitor, mode) if save_best else operator.lt
        self.best = _worst(self._better)

    def train_begin(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:
        """Count anew, and go on from the last checkpoint if that is wanted."""
        self.current_batch = self.current_epoch = 0
        self.best = _worst(self._better)
        if self.resume_from_checkpoint:
            self._resume(estimator)

    def batch_end(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:
        """Count a batch."""
        if self.current_batch == 0:
            self._save_symbol(estimator)
        if self.batch_period and (self.current_batch + 1) % self.batch_period == 0:
            self._save(estimator)
        self.current_batch += 1

    def epoch_end(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:
        """Count an epoch."""
        if self.epoch_period and (self.current_epoch + 1) % self.epoch_period == 0:
            self._save(estimator)
        self.current_epoch += 1

    def _save_symbol(self, estimator: Any) -> None:
        path = Path(self.model_dir) / f"{self.model_prefix}-symbol.json"
        graph = getattr(estimator.net, "_graph", None)
        if graph is not None:
            graph[1].save(str(path))
        else:
            estimator.logger.info(
                "Model architecture(symbol file) is not saved, please use HybridBlock to construct your model, and "
                "call net.hybridize() before passing to Estimator in order to save model architecture as %s.",
                path,
            )

    def _save(self, estimator: Any) -> None:
        epochs, batches = self._before
        name = f"{self.model_prefix}-epoch{epochs + self.current_epoch}batch{batches + self.current_batch}"
        self._write(estimator, name)
        self.saved_checkpoints.append(name)
        if len(self.saved_checkpoints) > self.max_checkpoints:
            old = self.saved_checkpoints.pop(0)
            for suffix in (".params", ".states"):
                (Path(self.model_dir) / (old + suffix)).unlink(missing_ok=True)
        if self.verbose > 0:
            estimator.logger.info(
                "[Epoch %d] CheckpointHandler: trained total %d batches, saving model at %s with prefix: %s",
                self.current_epoch, self.current_batch + 1, self.model_dir, name,
            )  # fmt: skip
        if self.save_best:
            self._save_best(estimator)

    def _save_best(self, estimator: Any) -> None:
        name, value = self.monitor.get()
        if math.isnan(value):
            warnings.warn(
                f"Skipping save best because {name} is not updated, make sure you pass one of the metric objects "
                "estimator.train_metrics and estimator.val_metrics as monitor",
                RuntimeWarning,
                stacklevel=2,
            )
        elif self._better(value, self.best):
            self._write(estimator, f"{self.model_prefix}-best")
            if self.verbose > 0:
                text = "[Epoch %d] CheckpointHandler: %s improved from %0.5f to %0.5f"
                estimator.logger.info(text, self.current_epoch, name, self.best, value)
            self.best = value

    def _write(self, estimator: Any, name: str) -> None:
        estimator.net.save_parameters(str(Path(self.model_dir) / f"{name}.params"))
        estimator.trainer.save_states(str(Path(self.model_dir) / f"{name}.states"))

    def _resume(self, estimator: Any) -> None:
        pattern = re.compile(re.escape(self.model_prefix) + r"-epoch(\d+)batch(\d+)\.params")
        found = [match for file in Path(self.model_dir).iterdir() if (match := pattern.fullmatch(file.name))]
        if not found:
            estimator.logger.info("CheckpointHandler: No checkpoint found, training from scratch")
            return
        epoch, batch = max((int(match[1]), int(match[2])) for match in found)
        for unit, most, done in (("epoch", "max_epoch", epoch), ("batch", "max_batch", batch)):
            limit = getattr(estimator, most)
            if limit and done >= limit - 1:
                raise ValueError(
                    f"Found checkpoint with maximum number of {unit} {limit} reached, please specify "
                    "resume_from_checkpoint=False (default value) if you wan to train from scratch."
                )
            if limit:
                setattr(estimator, most, limit - done - 1)
        self._before = epoch + 1, batch if estimator.max_epoch else batch + 1
        name = f"{self.model_prefix}-epoch{epoch}batch{batch}"
        estimator.net.load_parameters(str(Path(self.model_dir) / f"{name}.params"), ctx=estimator.context)
        estimator.trainer.load_states(str(Path(self.model_dir) / f"{name}.states"))
        estimator.logger.warning("CheckpointHandler: Checkpoint resumed from epoch %d batch %d", epoch, batch)


class EarlyStoppingHandler(TrainBegin, EpochEnd, TrainEnd):
    """End when a figure no longer gets better."""

    def __init__(
        self,
        monitor: Any,
        min_delta: float = 0,
        patience: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
    ) -> None:
        if not isinstance(monitor, EvalMetric):
            raise ValueError(  # noqa: TRY004  # MXNet's
                "Please provide one of the metric objects from estimator.train_metrics and estimator.val_metrics as "
                "monitor."
            )
        if isinstance(monitor, CompositeEvalMetric):
            raise ValueError(  # noqa: TRY004  # MXNet's
                "CompositeEvalMetric is not supported for EarlyStoppingHandler, please specify a simple metric instead."
            )
        self.monitor, self.patience, self.baseline = monitor, patience, baseline
        self._better = _better(monitor, mode)
        self.min_delta = -min_delta if self._better is operator.lt else min_delta
        self.wait = self.stopped_epoch = self.current_epoch = 0
        self.stop_training = False
        self.best = _worst(self._better)

    def train_begin(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        """Count anew."""
        self.wait = self.stopped_epoch = self.current_epoch = 0
        self.stop_training = False
        self.best = _worst(self._better) if self.baseline is None else self.baseline

    def epoch_end(self, estimator: Any, *_args: Any, **_kwargs: Any) -> bool:  # noqa: ARG002
        """See whether the figure is better."""
        name, value = self.monitor.get()
        if math.isnan(value):
            warnings.warn(
                f"{name} is not updated, make sure you pass one of the metric objects from estimator.train_metrics and "
                "estimator.val_metrics as monitor.",
                RuntimeWarning,
                stacklevel=2,
            )
        elif self._better(value - self.min_delta, self.best):
            self.best, self.wait = value, 0
        else:
            self.wait += 1
            if self.wait >= self.patience:
                self.stopped_epoch, self.stop_training = self.current_epoch, True
        self.current_epoch += 1
        return self.stop_training

    def train_end(self, estimator: Any, *_args: Any, **_kwargs: Any) -> None:
        """Log why it ended."""
        if self.stopped_epoch > 0:
            text = "[Epoch %d] EarlyStoppingHanlder: early stopping due to %s not improving"
            estimator.logger.info(text, self.stopped_epoch, self.monitor.get()[0])


class GradientUpdateHandler(BatchEnd):
    """Change the parameters by the gradients of a batch."""

    def __init__(self, priority: float = -2000) -> None:
        self.priority = priority

    def batch_end(self, estimator: Any, *_args: Any, **kwargs: Any) -> None:
        """Step."""
        losses = kwargs["loss"]
        estimator.trainer.step(sum(each.shape[0] for each in (losses if isinstance(losses, list) else [losses])))
