"""JAX on the models that are simple to say twice, with PyTorch's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from bench.job import TRAINING_STEPS, CannotRunError, Job, Ready, inference, layers
from bench.models.subject import Subject, TrainingSubject

Weights = dict[str, Any]


def linear(weights: Weights, name: str, x: Any) -> Any:
    """Apply a linear layer stored as PyTorch stores it."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def perceptron(jax: Any, weights: Weights, x: Any) -> Any:
    """Linear layers with ReLU between them."""
    names = sorted({name.rpartition(".")[0] for name in weights}, key=int)
    for index, name in enumerate(names):
        x = linear(weights, name, jax.nn.relu(x) if index else x)
    return x


def towers(jax: Any, weights: Weights, x: Any) -> Any:
    """Equal towers side by side, then a linear layer."""
    count = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("towers."))
    found = []
    for tower in range(count):
        y = jax.nn.relu(linear(weights, f"towers.{tower}.0", x))
        y = jax.nn.relu(linear(weights, f"towers.{tower}.2", y))
        found.append(jax.numpy.tanh(linear(weights, f"towers.{tower}.4", y)))
    return linear(weights, "join", jax.numpy.concatenate(found, axis=1))


def lenet(jax: Any, weights: Weights, x: Any) -> Any:
    """LeNet of the chapter."""
    for name in ("0", "3"):
        x = jax.lax.conv_general_dilated(x, weights[f"{name}.weight"], (1, 1), "VALID")
        x = jax.nn.relu(x + weights[f"{name}.bias"].reshape(1, -1, 1, 1))
        x = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") * 0.25
    x = jax.nn.relu(linear(weights, "7", x.reshape(x.shape[0], -1)))
    return linear(weights, "9", x)


def chain(jax: Any, _: Weights, x: Any) -> Any:
    """Ten elementwise operators."""
    y = jax.nn.sigmoid(jax.numpy.tanh(x * 0.5 + 1.0) * x) - 0.25
    return abs(jax.numpy.sqrt(jax.nn.relu(y)) + x)


def fancy_func(_: Any, __: Weights, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Four tensors added up."""
    return (a + b) + (c + d)


MODELS: Mapping[str, Callable[..., Any]] = {
    "mlp": perceptron,
    "towers_1": towers,
    "towers_32": towers,
    "lenet": lenet,
    "chain": chain,
    "fancy_func": fancy_func,
    "train_mlp": perceptron,
    "train_lenet": lenet,
}
LEARNING_RATE = 0.01


def jax_jit(job: Job) -> Ready:
    """The model under jax.jit, its weights constants; a training step gives its old weights back to be reused."""
    model = MODELS.get(job.workload)
    if model is None:
        raise CannotRunError("there is no JAX version of this model here")
    import jax  # noqa: PLC0415 - one of the optional peers

    subject = job.subject
    state = subject.thing.state_dict() if isinstance(subject.thing, nn.Module) else {}
    weights = {name: jax.numpy.asarray(tensor.numpy()) for name, tensor in state.items()}
    inputs = [jax.numpy.asarray(tensor.numpy()) for tensor in subject.inputs]
    if isinstance(subject, Subject):
        compiled = jax.jit(lambda *given: model(jax, weights, *given))
        return inference(lambda: compiled(*inputs).block_until_ready())
    return _training(jax, model, subject, weights)


def _training(jax: Any, model: Callable[..., Any], subject: TrainingSubject, weights: Weights) -> Ready:
    inputs = [jax.numpy.asarray(tensor.numpy()) for tensor in subject.inputs]
    target = jax.numpy.asarray(subject.target.numpy())
    before = {name: np.asarray(array, dtype=np.float64) for name, array in weights.items()}
    losses: list[float] = []

    def loss_of(given: Weights) -> Any:
        scores = jax.nn.log_softmax(model(jax, given, *inputs), axis=1)
        return -jax.numpy.take_along_axis(scores, target[:, None], axis=1).mean()

    def update(given: Weights) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(given)
        return loss, jax.tree.map(lambda weight, gradient: weight - LEARNING_RATE * gradient, given, gradients)

    compiled = jax.jit(update, donate_argnums=0)
    # A copy: what is donated is overwritten, and may be the very memory of the tensors.
    current = {"weights": jax.tree.map(lambda array: array + 0, weights)}

    def step() -> None:
        loss, current["weights"] = compiled(current["weights"])
        jax.block_until_ready(current["weights"])
        if len(losses) < TRAINING_STEPS:
            losses.append(float(loss))

    def answer(_: Any) -> list[Any]:
        names = [name for name, _ in subject.thing.named_parameters()]
        moved = [np.asarray(current["weights"][name], dtype=np.float64) - before[name] for name in names]
        first = jax.grad(loss_of)({name: jax.numpy.asarray(array, dtype=np.float32) for name, array in before.items()})
        found = iter([np.asarray(first[name], dtype=np.float64).ravel() for name in names])
        gradients = [np.concatenate([next(found) for _ in layer]) for layer in layers(subject.thing)]
        return [np.asarray(losses), np.concatenate([array.ravel() for array in moved]), *gradients]

    return Ready(step, answer, TRAINING_STEPS)
