"""Weft's ways to run a module or a training step: hybridized, and as one whole step."""

from __future__ import annotations

import weft
from bench.job import CannotRunError, Job, Ready, training
from bench.models.subject import TrainingSubject
from bench.torch_contestants import prepared

# Weft imports its parts when they are first named: here, since imports are not part of a first call.
HYBRIDIZE = weft.hybridize


def hybridized(job: Job) -> Ready:
    """The module or function hybridized; a training step is the usual loop around it."""
    return prepared(job, HYBRIDIZE)


def whole_step(job: Job) -> Ready:
    """Forward, loss, backward and update as one program."""
    subject = job.subject
    if not isinstance(subject, TrainingSubject):
        raise CannotRunError("trains only")
    make_step = getattr(weft, "step", None)
    if make_step is None:
        raise CannotRunError("this Weft has no weft.step")
    step = make_step(subject.thing, subject.loss, subject.make_optimizer())
    inputs, target = subject.inputs, subject.target
    return training(subject, lambda: step(*inputs, target))
