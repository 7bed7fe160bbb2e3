"""Ctrl-C at any moment of a step: parameters, buffers, what the optimizer keeps and its counts fit together."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import weft
from weft.api.step import Step

MOMENTS = 60  # of a call in which it is interrupted


class OwnAdam(optim.Adam):
    """An optimizer that PyTorch runs, as all do that weft has no rule for."""


class Interrupting:
    """Sends Ctrl-C at one instruction of Weft's or an optimizer's code."""

    def __init__(self, at: int) -> None:
        self.at, self.count, self.place = at, 0, ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        frame.f_trace_opcodes = "weft" in code.co_filename or "optim" in code.co_filename
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                self.place = f"{code.co_filename}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)
        return self


def made(kind: type[optim.Optimizer], **options: Any) -> tuple[Step, list[torch.Tensor], Callable[[], Any]]:
    """Give a step, all tensors that it changes, and a call of it."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = kind(net.parameters(), lr=0.05)
    step = weft.step(net, functional.cross_entropy, optimizer, **options)
    x, y = torch.randn(6, 3), torch.randint(2, (6,))
    for _ in range(4):
        step(x, y)
    kept = [tensor for entry in optimizer.state.values() for tensor in entry.values()]
    return step, [*net.parameters(), *net.buffers(), *kept], lambda: step(x, y)


def copied(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def traced_call(call: Callable[[], Any], watch: Interrupting) -> bool:
    """Call; tells whether an interrupt ended it."""
    former = sys.gettrace()
    sys.settrace(watch)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(former)
    return False


@pytest.mark.parametrize("kind", [optim.Adam, OwnAdam])
def test_an_interrupted_step_leaves_the_state_before_it_or_after_it(kind: type[optim.Optimizer]) -> None:
    _, tensors, call = made(kind)
    before, whole = copied(tensors), Interrupting(0)
    traced_call(call, whole)
    after = copied(tensors)
    assert not same(before, after)
    undone = 0
    for at in range(1, whole.count, max(1, whole.count // MOMENTS)):
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
        watch = Interrupting(at)
        ended = traced_call(call, watch)
        assert ended or not watch.place, watch.place
        assert torch.is_grad_enabled(), watch.place
        found = copied(tensors)
        assert same(found, before) or same(found, after), watch.place
        undone += same(found, before)
    assert undone


def test_after_an_interrupt_training_goes_on_as_if_it_had_not_been() -> None:
    torch.manual_seed(3)
    _, expected, call = made(OwnAdam)
    call()
    torch.manual_seed(3)
    _, tensors, call = made(OwnAdam)
    whole = Interrupting(0)
    before = copied(tensors)
    assert traced_call(call, Interrupting(200))
    assert same(copied(tensors), before)
    traced_call(call, whole)
    assert same(copied(tensors), copied(expected))
