"""Measure predictions, batch by batch: `mx.metric`."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy  # noqa: ICN001  # `np` is MXNet's name of a function here

from weft.mx.arrays.ndarray import NDArray
from weft.mx.base.errors import MXNetError

REGISTERED: dict[str, Any] = {}


def register(kind: Any) -> Any:
    """Make a metric known by its name."""
    REGISTERED[kind.__name__.lower()] = kind
    return kind


def alias(*names: str) -> Callable[[Any], Any]:
    """Make a metric known by other names."""

    def note(kind: Any) -> Any:
        REGISTERED.update(dict.fromkeys(names, kind))
        return kind

    return note


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _numbers(array: Any) -> Any:
    return array.asnumpy() if isinstance(array, NDArray) else numpy.asarray(array)


def check_label_shapes(labels: Any, preds: Any, wrap: bool = False, shape: bool = False) -> Any:
    """Raise if there are not as many labels as predictions."""
    left, right = (labels.shape, preds.shape) if shape else (len(labels), len(preds))
    if left != right:
        raise ValueError(f"Shape of labels {left} does not match shape of predictions {right}")
    return (_listed(labels), _listed(preds)) if wrap else (labels, preds)


class EvalMetric:
    """A sum over what was seen, divided by how much that was: since the last reset, and since the last local one."""

    _all: tuple[float, int] = (0.0, 0)  # the sum and the count since `reset`

    def __init__(
        self,
        name: str,
        output_names: Sequence[str] | None = None,
        label_names: Sequence[str] | None = None,
        **given: Any,
    ) -> None:
        self.name = str(name)
        self.output_names, self.label_names = output_names, label_names
        self._given = given
        self.reset()

    def __str__(self) -> str:
        return f"EvalMetric: {dict(self.get_name_value())}"

    def get_config(self) -> dict[str, Any]:
        """What would make it anew."""
        own = {"metric": type(self).__name__, "name": self.name}
        return {**self._given, **own, "output_names": self.output_names, "label_names": self.label_names}

    def reset(self) -> None:
        """Forget what was seen."""
        self.num_inst, self.sum_metric = 0, 0.0
        self._all = (0.0, 0)

    def reset_local(self) -> None:
        """Begin a new part of what is seen; `get_global` still tells of all."""
        if self._all[1]:
            self.num_inst, self.sum_metric = 0, 0.0
        else:  # a user's metric that counts by itself
            self.reset()

    def update(self, labels: Any, preds: Any) -> None:
        """See batches: waits for them."""
        labels, preds = check_label_shapes(_listed(labels), _listed(preds))
        for label, pred in zip(labels, preds, strict=True):
            self._add(*self._measure(_numbers(label), _numbers(pred)))

    def update_dict(self, label: dict[str, Any], pred: dict[str, Any]) -> None:
        """See a batch whose labels and predictions have names."""
        preds = [pred[name] for name in self.output_names] if self.output_names is not None else list(pred.values())
        labels = [label[name] for name in self.label_names] if self.label_names is not None else list(label.values())
        self.update(labels, preds)

    def _add(self, total: float, count: int) -> None:
        self.sum_metric += total
        self.num_inst += count
        self._all = (self._all[0] + total, self._all[1] + count)

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        raise NotImplementedError

    def _value(self) -> float:
        return self.sum_metric / self.num_inst

    def get(self) -> Any:
        """The name and the figure; nan before anything was seen."""
        return self.name, float(self._value()) if self.num_inst else float("nan")

    def get_global(self) -> Any:
        """The name and the figure of all that was seen since `reset`."""
        if not self._all[1]:
            return self.get()
        part = self.sum_metric, self.num_inst
        self.sum_metric, self.num_inst = self._all
        try:
            return self.get()
        finally:
            self.sum_metric, self.num_inst = part

    def get_name_value(self) -> list[tuple[str, float]]:
        """Names and figures."""
        name, value = self.get()
        return list(zip(_listed(name), _listed(value), strict=True))

    def get_global_name_value(self) -> list[tuple[str, float]]:
        """Names and figures of all that was seen since `reset`."""
        name, value = self.get_global()
        return list(zip(_listed(name), _listed(value), strict=True))


@alias("composite")
@register
class CompositeEvalMetric(EvalMetric):
    """Several metrics."""

    def __init__(self, metrics: Any = None, name: str = "composite", **given: Any) -> None:
        self.metrics = [create(metric) for metric in metrics or ()]
        super().__init__(name, **given)

    def add(self, metric: Any) -> None:
        """Put in another one."""
        self.metrics.append(create(metric))

    def get_metric(self, index: int) -> Any:
        """One of them."""
        return self.metrics[index]

    def update(self, labels: Any, preds: Any) -> None:
        """See batches."""
        for metric in self.metrics:
            metric.update(labels, preds)

    def update_dict(self, label: dict[str, Any], pred: dict[str, Any]) -> None:
        """See a batch whose labels and predictions have names."""
        for metric in self.metrics:
            metric.update_dict(OrderedDict(label), OrderedDict(pred))

    def reset(self) -> None:
        """Forget what was seen."""
        for metric in self.metrics:
            metric.reset()

    def reset_local(self) -> None:
        """Begin a new part of what is seen."""
        for metric in self.metrics:
            metric.reset_local()

    def get(self) -> Any:
        """The names and the figures."""
        pairs = [pair for metric in self.metrics for pair in metric.get_name_value()]
        return [name for name, _ in pairs], [value for _, value in pairs]

    def get_global(self) -> Any:
        """The names and the figures of all that was seen since `reset`."""
        pairs = [pair for metric in self.metrics for pair in metric.get_global_name_value()]
        return [name for name, _ in pairs], [value for _, value in pairs]


@alias("acc")
@register
class Accuracy(EvalMetric):
    """The share of predictions that are the label."""

    def __init__(self, axis: int = 1, name: str = "accuracy", *places: Any, **given: Any) -> None:
        super().__init__(name, *places, axis=axis, **given)
        self.axis = axis

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        if pred.shape != label.shape:
            if not -pred.ndim <= self.axis < pred.ndim:
                raise MXNetError(f"axis {self.axis} exceeds the {pred.ndim} dimensions of the predictions")
            pred = pred.argmax(axis=self.axis)
        found, wanted = pred.astype("int32").reshape(-1), label.astype("int32").reshape(-1)
        check_label_shapes(wanted, found)
        return int((found == wanted).sum()), len(found)


@alias("top_k_accuracy", "top_k_acc")
@register
class TopKAccuracy(EvalMetric):
    """The share of labels that are among the likeliest predictions."""

    def __init__(self, top_k: int = 1, name: str = "top_k_accuracy", *places: Any, **given: Any) -> None:
        if top_k <= 1:
            raise AssertionError("Please use Accuracy if top_k is no more than 1")
        super().__init__(f"{name}_{top_k}", *places, top_k=top_k, **given)
        self.top_k = top_k

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        if pred.ndim > 2:
            raise AssertionError("Predictions should be no more than 2 dims")
        if pred.ndim == 1:
            return int((numpy.argsort(pred.astype("float32")) == label).sum()), len(pred)
        best = numpy.argpartition(pred.astype("float32"), -self.top_k)[:, -self.top_k :]
        return int((best == label.astype("int32").reshape(-1, 1)).sum()), len(pred)


class _Binary(EvalMetric):
    """What figures of two classes share: the counts of right and wrong answers."""

    def __init__(self, name: str, *places: Any, average: str = "macro", **given: Any) -> None:
        self.average = average
        super().__init__(name, *places, **given)

    def reset(self) -> None:
        """Forget what was seen."""
        super().reset()
        self._counts, self._counts_of_all = numpy.zeros((2, 2, 2))  # of labels (rows) and predictions (columns)

    def reset_local(self) -> None:
        """Begin a new part of what is seen."""
        self.num_inst, self.sum_metric, self._counts = 0, 0.0, numpy.zeros((2, 2))

    def get_global(self) -> Any:
        """The name and the figure of all that was seen since `reset`."""
        if self.average == "macro":
            return super().get_global()
        return self.name, float(self._figure(self._counts_of_all)) if self._counts_of_all.any() else float("nan")

    def update(self, labels: Any, preds: Any) -> None:
        """See batches: waits for them."""
        labels, preds = check_label_shapes(_listed(labels), _listed(preds))
        for label, pred in zip(labels, preds, strict=True):
            wanted, found = _numbers(label).astype("int32").reshape(-1), _numbers(pred).argmax(axis=1).reshape(-1)
            if len(numpy.unique(wanted)) > 2:
                raise ValueError(f"{type(self).__name__} currently only supports binary classification.")
            for counts in (self._counts, self._counts_of_all):
                numpy.add.at(counts, (wanted, found), 1)
        if self.average == "macro":
            self._add(self._figure(self._counts), 1)
            self._counts[:] = 0
        else:
            self.num_inst = int(self._counts.sum())
            self.sum_metric = self._figure(self._counts) * self.num_inst

    def _figure(self, counts: Any) -> float:
        raise NotImplementedError


@register
class F1(_Binary):
    """The harmonic mean of precision and recall."""

    def __init__(
        self, name: str = "f1", output_names: Any = None, label_names: Any = None, average: str = "macro"
    ) -> None:
        super().__init__(name, output_names, label_names, average=average)

    def _figure(self, counts: Any) -> float:
        right, found, wanted = counts[1, 1], counts[:, 1].sum(), counts[1].sum()
        precision, recall = right / found if found else 0.0, right / wanted if wanted else 0.0
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@register
class MCC(_Binary):
    """The correlation of labels and predictions of two classes."""

    def __init__(
        self, name: str = "mcc", output_names: Any = None, label_names: Any = None, average: str = "macro"
    ) -> None:
        super().__init__(name, output_names, label_names, average=average)

    def _figure(self, counts: Any) -> float:
        (true_no, false_yes), (false_no, true_yes) = counts
        terms = [true_yes + false_yes, true_yes + false_no, true_no + false_yes, true_no + false_no]
        below = math.prod(term for term in terms if term)
        return float((true_yes * true_no - false_yes * false_no) / math.sqrt(below)) if counts.sum() else 0.0


@register
class PCC(EvalMetric):
    """The correlation of labels and predictions of any number of classes."""

    def __init__(self, name: str = "pcc", output_names: Any = None, label_names: Any = None) -> None:
        super().__init__(name, output_names, label_names)

    def reset(self) -> None:
        """Forget what was seen."""
        super().reset()
        self._counts = self._counts_of_all = numpy.zeros((2, 2))  # of predictions (rows) and labels (columns)

    def reset_local(self) -> None:
        """Begin a new part of what is seen."""
        self.num_inst, self._counts = 0, numpy.zeros((2, 2))

    def update(self, labels: Any, preds: Any) -> None:
        """See batches: waits for them."""
        labels, preds = check_label_shapes(_listed(labels), _listed(preds))
        for label, pred in zip(labels, preds, strict=True):
            wanted, found = _numbers(label).astype("int32"), _numbers(pred)
            found = found.argmax(axis=1) if found.shape != wanted.shape else found.astype("int32")
            count = max(2, 1 + int(max(found.max(), wanted.max())))
            seen = numpy.zeros((count, count))
            numpy.add.at(seen, (found.reshape(-1), wanted.reshape(-1)), 1)
            self._counts, self._counts_of_all = (_sum_grown(each, seen) for each in (self._counts, self._counts_of_all))
        self.num_inst += 1

    def get(self) -> Any:
        """The name and the figure; nan before anything was seen."""
        return self.name, _correlation(self._counts)

    def get_global(self) -> Any:
        """The name and the figure of all that was seen since `reset`."""
        return self.name, _correlation(self._counts_of_all)


def _sum_grown(one: Any, other: Any) -> Any:
    """The sum of two square matrices, the smaller one filled up with zeros."""
    size = max(len(one), len(other))
    return sum(numpy.pad(each, (0, size - len(each))) for each in (one, other))


def _correlation(counts: Any) -> float:
    count, rows, columns = counts.sum(), counts.sum(axis=1), counts.sum(axis=0)
    below = numpy.sum(rows * (count - rows)) * numpy.sum(columns * (count - columns))
    above = numpy.sum(counts.diagonal() * count - rows * columns)
    return float(above / math.sqrt(below)) if below else float("nan")


class _Difference(EvalMetric):
    """What means of differences share."""

    default = ""

    def __init__(self, name: str | None = None, output_names: Any = None, label_names: Any = None) -> None:
        super().__init__(name or self.default, output_names, label_names)

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        columns = [x.reshape(-1, 1) if x.ndim == 1 else x for x in (label, pred)]
        return float(self._mean(columns[0] - columns[1])), 1

    def _mean(self, difference: Any) -> Any:
        raise NotImplementedError


@register
class MAE(_Difference):
    """The mean of differences without their signs."""

    default = "mae"

    def _mean(self, difference: Any) -> Any:
        return numpy.abs(difference).mean()


@register
class MSE(_Difference):
    """The mean of squared differences."""

    default = "mse"

    def _mean(self, difference: Any) -> Any:
        return (difference**2).mean()


@register
class RMSE(_Difference):
    """The root of the mean of squared differences."""

    default = "rmse"

    def _mean(self, difference: Any) -> Any:
        return numpy.sqrt((difference**2).mean())


class _Likelihood(EvalMetric):
    """What logarithms of the labels' probabilities share."""

    def __init__(self, name: str, eps: float, output_names: Any = None, label_names: Any = None) -> None:
        super().__init__(name, output_names, label_names, eps=eps)
        self.eps = eps

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        label = label.reshape(-1)
        if label.shape[0] != pred.shape[0]:
            raise AssertionError((label.shape[0], pred.shape[0]))
        likely = pred[numpy.arange(label.shape[0]), label.astype("int64")]
        return float(-numpy.log(likely + self.eps).sum()), label.shape[0]


@alias("ce")
@register
class CrossEntropy(_Likelihood):
    """Minus the mean logarithm of the label's probability."""

    def __init__(self, eps: float = 1e-12, name: str = "cross-entropy", *places: Any, **given: Any) -> None:
        super().__init__(name, eps, *places, **given)


REGISTERED["cross-entropy"] = CrossEntropy


@alias("nll_loss", "nll-loss")
@register
class NegativeLogLikelihood(_Likelihood):
    """Minus the mean logarithm of the label's probability."""

    def __init__(self, eps: float = 1e-12, name: str = "nll-loss", *places: Any, **given: Any) -> None:
        super().__init__(name, eps, *places, **given)


@register
class Perplexity(EvalMetric):
    """The exponential of the mean of minus the logarithms of the labels' probabilities."""

    def __init__(
        self, ignore_label: int | None, axis: int = -1, name: str = "perplexity", *places: Any, **given: Any
    ) -> None:
        super().__init__(name, *places, ignore_label=ignore_label, **given)
        self.ignore_label, self.axis = ignore_label, axis

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        if label.size != pred.size / pred.shape[-1]:
            raise AssertionError(f"shape mismatch: {label.shape} vs. {pred.shape}")
        places = numpy.expand_dims(label.astype("int64").reshape(pred.shape[:-1]), self.axis)
        likely = numpy.take_along_axis(pred, places, self.axis).reshape(-1)
        count = label.size
        if self.ignore_label is not None:
            ignored = label.reshape(-1) == self.ignore_label
            likely, count = numpy.where(ignored, 1, likely), count - int(ignored.sum())
        return float(-numpy.log(numpy.maximum(1e-10, likely)).sum()), count

    def _value(self) -> float:
        return math.exp(self.sum_metric / self.num_inst)


@alias("pearsonr")
@register
class PearsonCorrelation(EvalMetric):
    """The correlation of labels and predictions."""

    def __init__(self, name: str = "pearsonr", *places: Any, **given: Any) -> None:
        given.pop("average", None)
        super().__init__(name, *places, **given)

    def _measure(self, label: Any, pred: Any) -> tuple[float, int]:
        check_label_shapes(label, pred, shape=True)
        return float(numpy.corrcoef(pred.ravel(), label.ravel())[0, 1]), 1


@register
class Loss(EvalMetric):
    """The mean of outputs, whatever the labels."""

    def __init__(self, name: str = "loss", *places: Any, **given: Any) -> None:
        super().__init__(name, *places, **given)

    def update(self, labels: Any, preds: Any) -> None:  # noqa: ARG002
        """See batches: waits for them."""
        for pred in _listed(preds):
            values = _numbers(pred)
            self._add(float(values.sum()), values.size)


class CustomMetric(EvalMetric):
    """A function of labels and predictions, as NumPy arrays, that gives a figure, or a sum and a count."""

    def __init__(
        self,
        feval: Callable[[Any, Any], Any],
        name: str | None = None,
        allow_extra_outputs: bool = False,
        *places: Any,
        **given: Any,
    ) -> None:
        if name is None:
            name = feval.__name__
            name = f"custom({name})" if "<" in name else name
        super().__init__(name, *places, **given)
        self._feval, self._allow_extra_outputs = feval, allow_extra_outputs

    def update(self, labels: Any, preds: Any) -> None:
        """See batches: waits for them."""
        labels, preds = _listed(labels), _listed(preds)
        if not self._allow_extra_outputs:
            check_label_shapes(labels, preds)
        for label, pred in zip(labels, preds, strict=False):
            found = self._feval(_numbers(label), _numbers(pred))
            self._add(*(found if isinstance(found, tuple) else (found, 1)))


def create(metric: Any, *args: Any, **given: Any) -> Any:
    """A metric by its name, of a function, or several as one."""
    if isinstance(metric, EvalMetric):
        return metric
    if isinstance(metric, (list, tuple)):
        return CompositeEvalMetric(metric)
    if isinstance(metric, str):
        if metric.lower() not in REGISTERED:
            raise AssertionError(f"{metric} is not registered. Please register with metric.register first")
        return REGISTERED[metric.lower()](*args, **given)
    if not callable(metric):
        raise AssertionError("metric must be of string type")  # noqa: TRY004  # MXNet's
    return CustomMetric(metric, *args, **given)


def np(numpy_feval: Callable[[Any, Any], Any], name: str | None = None, allow_extra_outputs: bool = False) -> Any:
    """A metric of a function of NumPy arrays."""
    return CustomMetric(numpy_feval, name, allow_extra_outputs)
