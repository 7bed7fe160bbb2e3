"""The losses of Gluon: `gluon.loss`."""

from __future__ import annotations

import math
from typing import Any

from weft.mx.arrays import nd
from weft.mx.gluon.block import HybridBlock


def _weighed(F: Any, loss: Any, weight: float | None, sample_weight: Any) -> Any:
    if sample_weight is not None:
        loss = F.broadcast_mul(loss, sample_weight)
    return loss if weight is None else loss * weight


class GluonLoss(HybridBlock):
    """A number for each example, which is to become small."""

    def __init__(self, weight: float | None, batch_axis: int, **given: Any) -> None:
        super().__init__(**given)
        self._weight, self._batch_axis = weight, batch_axis

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_axis={self._batch_axis}, w={self._weight})"

    def _mean(self, F: Any, loss: Any, sample_weight: Any, weight: float | None = None) -> Any:
        found = _weighed(F, loss, self._weight if weight is None else weight, sample_weight)
        return F.mean(found, axis=self._batch_axis, exclude=True)


Loss = GluonLoss  # its name in MXNet, where `metric.Loss` is another


class L2Loss(GluonLoss):
    """Half the square of the difference."""

    def __init__(self, weight: float = 1.0, batch_axis: int = 0, **given: Any) -> None:
        super().__init__(weight, batch_axis, **given)

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        """Compute it."""
        label = F.reshape_like(label, pred)
        return self._mean(F, F.square(label - pred), sample_weight, (self._weight or 1.0) / 2)


class L1Loss(GluonLoss):
    """The difference without its sign."""

    def __init__(self, weight: float | None = None, batch_axis: int = 0, **given: Any) -> None:
        super().__init__(weight, batch_axis, **given)

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        """Compute it."""
        return self._mean(F, F.abs(F.reshape_like(label, pred) - pred), sample_weight)


class SoftmaxCrossEntropyLoss(GluonLoss):
    """Minus the logarithm of the probability of the label."""

    def __init__(
        self,
        axis: int = -1,
        sparse_label: bool = True,
        from_logits: bool = False,
        weight: float | None = None,
        batch_axis: int = 0,
        **given: Any,
    ) -> None:
        super().__init__(weight, batch_axis, **given)
        self._axis, self._sparse_label, self._from_logits = axis, sparse_label, from_logits

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        """Compute it."""
        if not self._from_logits:
            pred = F.log_softmax(pred, self._axis)
        if self._sparse_label:
            loss = -F.pick(pred, label, axis=self._axis, keepdims=True)
        else:
            loss = -F.sum(pred * F.reshape_like(label, pred), axis=self._axis, keepdims=True)
        return self._mean(F, loss, sample_weight)


SoftmaxCELoss = SoftmaxCrossEntropyLoss


class SigmoidBinaryCrossEntropyLoss(GluonLoss):
    """Minus the logarithm of the probability of each of two classes."""

    def __init__(
        self, from_sigmoid: bool = False, weight: float | None = None, batch_axis: int = 0, **given: Any
    ) -> None:
        super().__init__(weight, batch_axis, **given)
        self._from_sigmoid = from_sigmoid

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None, pos_weight: Any = None) -> Any:
        """Compute it."""
        label = F.reshape_like(label, pred)
        if self._from_sigmoid:
            eps = 1e-12
            positive = F.log(pred + eps) * label
            positive = positive if pos_weight is None else F.broadcast_mul(positive, pos_weight)
            loss = -(positive + F.log(1.0 - pred + eps) * (1.0 - label))
        elif pos_weight is None:
            loss = F.relu(pred) - pred * label + F.Activation(-F.abs(pred), act_type="softrelu")
        else:
            log_weight = 1 + F.broadcast_mul(pos_weight - 1, label)
            loss = pred - pred * label + log_weight * (F.Activation(-F.abs(pred), act_type="softrelu") + F.relu(-pred))
        return self._mean(F, loss, sample_weight)


SigmoidBCELoss = SigmoidBinaryCrossEntropyLoss


class KLDivLoss(GluonLoss):
    """How far one distribution is from another."""

    def __init__(
        self, from_logits: bool = True, axis: int = -1, weight: float | None = None, batch_axis: int = 0, **given: Any
    ) -> None:
        super().__init__(weight, batch_axis, **given)
        self._from_logits, self._axis = from_logits, axis

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        """Compute it."""
        if not self._from_logits:
            pred = F.log_softmax(pred, self._axis)
        loss = _weighed(F, label * (F.log(label + 1e-12) - pred), self._weight, sample_weight)
        return F.sum(loss, axis=self._batch_axis, exclude=True)


class HuberLoss(GluonLoss):
    """A square near 0, a line farther out."""

    def __init__(self, rho: float = 1, weight: float | None = None, batch_axis: int = 0, **given: Any) -> None:
        super().__init__(weight, batch_axis, **given)
        self._rho = rho

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        """Compute it."""
        loss = F.abs(F.reshape_like(label, pred) - pred)
        loss = F.where(loss > self._rho, loss - 0.5 * self._rho, (0.5 / self._rho) * F.square(loss))
        return self._mean(F, loss, sample_weight)


class HingeLoss(GluonLoss):
    """What is missing to a margin."""

    power = 1

    def __init__(self, margin: float = 1, weight: float | None = None, batch_axis: int = 0, **given: Any) -> None:
        super().__init__(weight, batch_axis, **given)
        self._margin = margin

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        """Compute it."""
        loss = F.relu(self._margin - pred * F.reshape_like(label, pred))
        return self._mean(F, loss if self.power == 1 else F.square(loss), sample_weight)


class SquaredHingeLoss(HingeLoss):
    """The square of what is missing to a margin."""

    power = 2


class LogisticLoss(GluonLoss):
    """The logistic loss of labels that are 1 and -1, or 1 and 0."""

    def __init__(
        self, weight: float | None = None, batch_axis: int = 0, label_format: str = "signed", **given: Any
    ) -> None:
        super().__init__(weight, batch_axis, **given)
        if label_format not in ("signed", "binary"):
            raise ValueError(f"label_format can only be signed or binary, recieved {label_format}.")
        self._label_format = label_format

    def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
        """Compute it."""
        label = F.reshape_like(label, pred)
        if self._label_format == "signed":
            label = (label + 1.0) / 2.0
        loss = F.relu(pred) - pred * label + F.Activation(-F.abs(pred), act_type="softrelu")
        return self._mean(F, loss, sample_weight)


class TripletLoss(GluonLoss):
    """How much nearer something alike is than something else."""

    def __init__(self, margin: float = 1, weight: float | None = None, batch_axis: int = 0, **given: Any) -> None:
        super().__init__(weight, batch_axis, **given)
        self._margin = margin

    def hybrid_forward(self, F: Any, pred: Any, positive: Any, negative: Any, sample_weight: Any = None) -> Any:
        """Compute it."""
        positive, negative = F.reshape_like(positive, pred), F.reshape_like(negative, pred)
        far = F.sum(F.square(positive - pred) - F.square(negative - pred), axis=self._batch_axis, exclude=True)
        return _weighed(F, F.relu(far + self._margin), self._weight, sample_weight)


class CTCLoss(GluonLoss):
    """Minus the logarithm of the probability of a sequence of labels, however its steps are spread over time."""

    def __init__(
        self, layout: str = "NTC", label_layout: str = "NT", weight: float | None = None, **given: Any
    ) -> None:
        if layout not in ("NTC", "TNC"):
            raise AssertionError(f"Only 'NTC' and 'TNC' layouts for pred are supported, got: {layout}")
        if label_layout not in ("NT", "TN"):
            raise AssertionError(f"Only 'NT' and 'TN' layouts for label are supported, got: {label_layout}")
        self._layout, self._label_layout = layout, label_layout
        super().__init__(weight, label_layout.find("N"), **given)

    def hybrid_forward(
        self,
        F: Any,
        pred: Any,
        label: Any,
        pred_lengths: Any = None,
        label_lengths: Any = None,
        sample_weight: Any = None,
    ) -> Any:
        """Compute it."""
        pred = F.swapaxes(pred, 0, 1) if self._layout == "NTC" else pred
        label = F.swapaxes(label, 0, 1) if self._batch_axis == 1 else label
        found = F.CTCLoss(
            pred,
            label,
            pred_lengths,
            label_lengths,
            use_data_lengths=pred_lengths is not None,
            use_label_lengths=label_lengths is not None,
            blank_label="last",
        )
        return _weighed(F, found, self._weight, sample_weight)


class PoissonNLLLoss(GluonLoss):
    """Minus the logarithm of the probability of a count: one number for the whole batch."""

    def __init__(
        self,
        weight: float | None = None,
        from_logits: bool = True,
        batch_axis: int = 0,
        compute_full: bool = False,
        **given: Any,
    ) -> None:
        super().__init__(weight, batch_axis, **given)
        self._from_logits, self._compute_full = from_logits, compute_full

    def hybrid_forward(self, F: Any, pred: Any, target: Any, sample_weight: Any = None, epsilon: float = 1e-08) -> Any:
        """Compute it."""
        target = F.reshape_like(target, pred)
        loss = F.exp(pred) - target * pred if self._from_logits else pred - target * F.log(pred + epsilon)
        if self._compute_full:
            stirling = target * F.log(target) - target + 0.5 * F.log(2 * target * math.pi)
            loss = loss + F.where(target > 1, stirling, F.zeros_like(target))
        return F.mean(_weighed(F, loss, self._weight, sample_weight))


class CosineEmbeddingLoss(GluonLoss):
    """How far the angle of two vectors is from what their label says: 1 alike, -1 not."""

    def __init__(self, weight: float | None = None, batch_axis: int = 0, margin: float = 0, **given: Any) -> None:
        super().__init__(weight, batch_axis, **given)
        self._margin = margin

    def hybrid_forward(self, F: Any, input1: Any, input2: Any, label: Any, sample_weight: Any = None) -> Any:
        """Compute it."""
        input1 = F.reshape_like(input1, input2)
        lengths = F.norm(input1, axis=-1).reshape((-1, 1)) * F.norm(input2, axis=-1).reshape((-1, 1))
        dots = F.sum(input1 * input2, axis=-1).reshape((-1, 1))
        cosine = dots / F.maximum(lengths, 1e-12)
        label = F.reshape(label, (-1, 1))
        alike = (1 - cosine) * (label == 1)
        loss = alike + F.maximum((label == -1) * (cosine - self._margin), 0.0)
        return _weighed(F, loss, self._weight, sample_weight)


class SDMLLoss(GluonLoss):
    """How well each vector of one batch finds its own among those of another."""

    def __init__(
        self, smoothing_parameter: float = 0.3, weight: float | None = 1.0, batch_axis: int = 0, **given: Any
    ) -> None:
        super().__init__(weight, batch_axis, **given)
        self._smoothing = smoothing_parameter
        self._divergence = KLDivLoss(from_logits=True)

    def forward(self, x1: Any, x2: Any) -> Any:
        """Compute it: how many examples there are must be known, so it is never a program of its own."""
        count = x1.shape[0]
        own = nd.eye(count, ctx=x1.context)
        labels = own * (1 - self._smoothing) + (1 - own) * self._smoothing / (count - 1)
        apart = x1.expand_dims(1).broadcast_to((count, *x2.shape)) - x2.expand_dims(0).broadcast_to((count, *x2.shape))
        return self._divergence(nd.log_softmax(-(apart**2).sum(axis=2), axis=1), labels)
