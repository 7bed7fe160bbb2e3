"""Judge whether answers are right, against the same computation by eager PyTorch in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from bench.job import Job, Setting
from bench.models.subject import Subject, TrainingSubject, doubled
from bench.torch_contestants import eager
from bench.workloads import Workload

TIMES_EAGER = 2.0
FLOOR = 1e-7
WRONG = 1e-2  # a relative error that no rounding explains
NEIGHBOURS = 4  # copies of a sample that tell how much eager's error depends on last bits


def no_neighbours() -> Iterable[list[float]]:
    """Give nothing: for what is judged by eager's error on the sample alone."""
    return ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The largest relative RMS error of any result, what was allowed for it, and the judgement."""

    error: float
    allowed: float
    word: str

    @property
    def may_compete(self) -> bool:
        """Tell whether its times count: less exact peers may compete, which only raises the bar for Weft."""
        return self.word != "wrong"


@dataclass(frozen=True, slots=True)
class Reference:
    """The results in float64, how far eager float32 is from each, and how far on copies moved by their last bits.

    Steps of training may let a rounding grow a thousandfold. How far eager is from the truth is then a matter of luck,
    and its largest error on a few neighbours of the sample tells more than that on the sample alone.
    """

    arrays: list[Any]
    eager_errors: list[float]
    errors_beside: Callable[[], Iterable[list[float]]] = no_neighbours

    def judge(self, arrays: Sequence[Any]) -> Verdict:
        """Compare result by result; the one that exceeds what is allowed the most decides."""
        if len(arrays) != len(self.arrays):
            return Verdict(math.inf, 0.0, "wrong")
        errors = [relative_error(array, true) for array, true in zip(arrays, self.arrays, strict=True)]
        largest = self.eager_errors
        verdict = _verdict(errors, largest)
        neighbours = iter(self.errors_beside())
        while verdict.word != "right" and (beside := next(neighbours, None)) is not None:
            largest = [max(pair) for pair in zip(largest, beside, strict=True)]
            verdict = _verdict(errors, largest)
        return verdict


def _verdict(errors: Sequence[float], eager_errors: Sequence[float]) -> Verdict:
    allowed = [TIMES_EAGER * error + FLOOR for error in eager_errors]
    worst = max(range(len(errors)), key=lambda index: errors[index] / allowed[index])
    error, limit = errors[worst], allowed[worst]
    word = "right" if error <= limit else "wrong" if error > max(WRONG, 100 * limit) else "less exact"
    return Verdict(error, limit, word)


def relative_error(array: Any, true: Any) -> float:
    """Give the RMS difference as a part of the RMS of the true values; infinite where shapes or NaNs differ."""
    found = as_float64(array).ravel()
    expected = as_float64(true).ravel()
    if found.shape != expected.shape or not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return math.inf
    finite = np.isfinite(expected)
    difference = np.sqrt(np.mean((found[finite] - expected[finite]) ** 2)) if finite.any() else 0.0
    size = np.sqrt(np.mean(expected[finite] ** 2)) if finite.any() else 0.0
    return float(difference / size) if size else (math.inf if difference else 0.0)


def as_float64(array: Any) -> np.ndarray[Any, Any]:
    """Give an array of any library as float64."""
    if isinstance(array, torch.Tensor):
        return array.detach().double().numpy()
    return np.asarray(array, dtype=np.float64)


def reference(workload: Workload) -> Reference:
    """Run eager PyTorch in float64, and in float32 to know its error; for a training step on neighbours too, if asked.

    Those take time: they are run when an answer is not right by the sample alone.
    """
    arrays, errors = _eager_errors(workload, workload.subject)
    if not isinstance(workload.subject(), TrainingSubject):
        return Reference(arrays, errors)
    found: list[list[float]] = []

    def errors_beside() -> Iterator[list[float]]:
        for seed in range(NEIGHBOURS):
            if seed == len(found):
                found.append(_eager_errors(workload, partial(_moved, workload, seed))[1])
            yield found[seed]

    return Reference(arrays, errors, errors_beside)


def _eager_errors(workload: Workload, make: Callable[[], Any]) -> tuple[list[Any], list[float]]:
    """Give eager's results in float64, and how far those in float32 are from each."""
    arrays = _run(workload, _in_double(make()))
    plain = _run(workload, make())
    return arrays, [relative_error(found, true) for found, true in zip(plain, arrays, strict=True)]


def _moved(workload: Workload, seed: int) -> TrainingSubject:
    """Make a training step whose parameters and inputs are one bit above or below those of the sample."""
    subject: TrainingSubject = workload.subject()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*subject.thing.parameters(), *subject.inputs, subject.target):
            if tensor.is_floating_point():
                upwards = torch.rand(tensor.shape, generator=generator) < 0.5
                tensor.copy_(torch.nextafter(tensor, torch.where(upwards, torch.inf, -torch.inf)))
    return subject


def _in_double(subject: Any) -> Subject | TrainingSubject:
    thing = subject.thing.double() if isinstance(subject.thing, torch.nn.Module) else subject.thing
    if isinstance(subject, Subject):
        return Subject(thing, doubled(subject.inputs))
    target = doubled([subject.target])[0]
    return TrainingSubject(thing, doubled(subject.inputs), target, subject.loss, subject.optimizer)


def _run(workload: Workload, subject: Subject | TrainingSubject) -> list[Any]:
    ready = eager(Job(workload.name, subject, torch.get_num_threads(), Setting("plain")))
    with torch.inference_mode(isinstance(subject, Subject)):
        for _ in range(ready.calls_before_answer):
            result = ready.call()
        return [as_float64(array).copy() for array in ready.answer(result)]
