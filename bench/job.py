"""What a contestant gets and gives back: a job with its setting, and a call that is ready to be timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from bench.models.subject import Subject, TrainingSubject

TRAINING_STEPS = 3  # taken before the answer is looked at


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to set a contestant up; of several, the fastest on this workload is measured."""

    label: str
    threads: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """A workload's name, its freshly made subject, and how many threads may be used with this setting."""

    workload: str
    subject: Any
    threads: int
    setting: Setting


@dataclass(frozen=True, slots=True)
class Ready:
    """A call to be timed, and what turns its last result into arrays that can be compared."""

    call: Callable[[], Any]
    answer: Callable[[Any], list[Any]]
    calls_before_answer: int = 1
    noting: Callable[[], float] = float
    """The seconds that taking notes for the answer has cost so far: no part of a first call."""
    compiles: Callable[[], bool] = lambda: True
    """Whether, after a call, there was anything that the contestant compiled."""


class CannotRunError(Exception):
    """A contestant has no way to run a workload: the sentence goes into the report."""


def flat(result: Any) -> list[Any]:
    """List the tensors of a nested result in order."""
    if isinstance(result, Mapping):
        return [tensor for item in result.values() for tensor in flat(item)]
    if isinstance(result, list | tuple):
        return [tensor for item in result for tensor in flat(item)]
    return [result]


def inference(call: Callable[[], Any]) -> Ready:
    """Make a call ready whose result is the answer."""
    return Ready(call, flat)


def training(subject: TrainingSubject, step: Callable[[], torch.Tensor]) -> Ready:
    """Make a training step ready: its answer is the losses, the movement of parameters, the buffers, first gradients.

    The gradients of the first step stand layer by layer: roundings have not grown yet, and no layer hides another's.
    """
    noting: list[float] = []

    @contextmanager
    def noted() -> Iterator[None]:
        start = perf_counter()
        yield
        noting.append(perf_counter() - start)

    with noted():
        before = joined(subject.thing.parameters())
    losses: list[torch.Tensor] = []
    gradients: list[torch.Tensor] = []

    def call() -> torch.Tensor:
        loss = step()
        if len(losses) < TRAINING_STEPS:
            losses.append(loss.detach().double().reshape(()))
        if not gradients:
            with noted():
                gradients.extend(joined(map(gradient_of, layer)) for layer in layers(subject.thing))
        return loss

    def answer(_: Any) -> list[Any]:
        moved = joined(subject.thing.parameters()) - before
        buffers = [buffer for buffer in subject.thing.buffers() if buffer.is_floating_point()]
        return [torch.stack(losses), moved, *([joined(buffers)] if buffers else []), *gradients]

    return Ready(call, answer, TRAINING_STEPS, lambda: sum(noting))


def layers(module: torch.nn.Module) -> list[list[torch.nn.Parameter]]:
    """List the parameters of each part of a module that has some of its own."""
    owned = (list(part.parameters(recurse=False)) for part in module.modules())
    return [parameters for parameters in owned if parameters]


def gradient_of(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Give a parameter's gradient; zeros where it has none."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def joined(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Put all elements of some tensors one after the other, in float64."""
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def require_inference(job: Job) -> Subject:
    """Give the subject of a workload that only runs forward; others raise CannotRunError."""
    if isinstance(job.subject, Subject):
        return job.subject
    raise CannotRunError("runs inference only")


def channels_last(tensors: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Lay out images channels last; without any image this setting is no other than the plain one."""
    given = tuple(tensors)
    if not any(tensor.dim() == 4 for tensor in given):
        raise CannotRunError("has no images: channels last changes nothing")
    return tuple(
        tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor for tensor in given
    )
