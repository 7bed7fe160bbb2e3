"""PyTorch's own ways to run a module or a training step: eager, channels last, torch.compile, TorchScript."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bench.job import CannotRunError, Job, Ready, channels_last, inference, require_inference, training
from bench.models.subject import Subject, TrainingSubject, as_module

Wrap = Callable[[Any], Any]


def unchanged(thing: Any) -> Any:
    """Give what was given: the eager contestant."""
    return thing


def prepared(job: Job, wrap: Wrap, subject: Subject | TrainingSubject | None = None) -> Ready:
    """Run a subject, or a training step around it, with `wrap` applied to its module or function."""
    subject = subject or job.subject
    thing = wrap(subject.thing)
    inputs = subject.inputs
    if isinstance(subject, Subject):
        return inference(lambda: thing(*inputs))
    optimizer = subject.make_optimizer(**job.setting.options)
    target, loss_of = subject.target, subject.loss

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(thing(*inputs), target)
        loss.backward()
        optimizer.step()
        return loss

    return training(subject, step)


def eager(job: Job) -> Ready:
    """Plain PyTorch."""
    return prepared(job, unchanged)


def eager_channels_last(job: Job) -> Ready:
    """Plain PyTorch with images and convolution weights laid out channels last."""
    subject = job.subject
    inputs = channels_last(subject.inputs)
    if isinstance(subject.thing, nn.Module):
        subject.thing.to(memory_format=torch.channels_last)
    if isinstance(subject, Subject):
        return prepared(job, unchanged, Subject(subject.thing, inputs))
    changed = TrainingSubject(subject.thing, inputs, subject.target, subject.loss, subject.optimizer)
    return prepared(job, unchanged, changed)


def compile_default(job: Job) -> Ready:
    """torch.compile as it comes."""
    _need_compiler()
    torch._dynamo.reset()
    return compiling(prepared(job, torch.compile))


def compile_strongest(job: Job) -> Ready:
    """torch.compile with frozen weights, a C++ wrapper and autotuning."""
    _need_compiler()
    torch._dynamo.reset()
    config = torch._inductor.config
    config.freezing = isinstance(job.subject, Subject)
    config.cpp_wrapper = True
    config.max_autotune = True
    return compiling(prepared(job, torch.compile))


def compiling(ready: Ready) -> Ready:
    """Note whether torch.compile has compiled any graph: what it cannot trace, as an LSTM, it leaves to eager."""
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    return replace(ready, compiles=lambda: graphs["unique_graphs"] > before)


def compile_whole_step(job: Job) -> Ready:
    """torch.compile of the forward pass with its loss and, apart, of the optimizer's step."""
    subject = job.subject
    if not isinstance(subject, TrainingSubject):
        raise CannotRunError("trains only")
    _need_compiler()
    torch._dynamo.reset()
    optimizer = subject.make_optimizer()
    forward = torch.compile(lambda *inputs: subject.loss(subject.thing(*inputs), subject.target))
    update = torch.compile(optimizer.step)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(*subject.inputs)
        loss.backward()
        update()
        return loss

    return training(subject, step)


def _need_compiler() -> None:
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise CannotRunError("there is no C++ compiler on this machine")


def jit_freeze(job: Job) -> Ready:
    """TorchScript: traced, frozen and optimised for inference."""
    subject = require_inference(job)
    module = as_module(subject.thing).eval()
    frozen = torch.jit.freeze(torch.jit.trace(module, subject.inputs))
    inputs = subject.inputs
    return inference(lambda: frozen(*inputs))
