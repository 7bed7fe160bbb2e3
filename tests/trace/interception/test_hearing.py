"""Who wants to hear what traced code calls hears that, nothing of Weft's, and no longer than the trace."""

from __future__ import annotations

import cProfile
import pstats
import sys
import time

import pytest
import torch
from torch import nn

import weft
from weft.errors import WeftError
from weft.trace.interception.hearing import heard, hearing, noted_by, unheard


def called(notes: list[str]):
    def hear(frame, event, _called):
        if event == "call":
            notes.append(frame.f_code.co_name)

    return hear


def inner():
    return 1


def outer():
    return inner()


def test_only_what_is_heard_is_told() -> None:
    notes: list[str] = []
    with hearing(called(notes)):
        outer()
        with heard():
            outer()
            unheard(outer)
            inner()
        outer()
    with heard():
        outer()
    assert [name for name in notes if name in ("inner", "outer")] == ["outer", "inner", "inner"]
    assert sys.getprofile() is None


def test_two_hear_at_once_and_neither_hears_what_is_unheard() -> None:
    one, other = list[str](), list[str]()
    with hearing(called(one)), noted_by(called(other)):
        outer()
        with heard():
            outer()
            unheard(inner)
    assert [[name for name in notes if name in ("inner", "outer")] for notes in (one, other)] == [
        ["outer", "inner"],
        ["outer", "inner"] * 2,
    ]


def test_a_persons_own_profiler_hears_all_and_stays() -> None:
    mine, others = list[str](), list[str]()
    hear = called(mine)
    sys.setprofile(hear)
    try:
        with noted_by(called(others)):
            unheard(outer)
        assert sys.getprofile() is hear
    finally:
        sys.setprofile(None)
    assert [name for name in mine if name in ("inner", "outer")] == ["outer", "inner"]


class Stamped(nn.Module):
    def forward(self, x):
        return x + time.time()


class Scaled(nn.Module):
    """Mentions a name that is looked for, and calls nothing of the kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.time = nn.Linear(3, 3), 2.0

    def forward(self, x):
        x = self.layer(x)
        x.register_hook(lambda gradient: gradient * 2)
        return x * self.time


def after(times: int) -> int:
    return sum(range(times))


def test_first_calls_can_be_profiled() -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    weft.hybridize(Scaled())(torch.randn(2, 3)).sum().backward()
    after(3)
    profiler.disable()
    names = {name for _, _, name in pstats.Stats(profiler).stats}
    assert {"after", "backward"} <= names


def test_calls_of_c_are_heard_in_code_that_is_traced_and_after_operators() -> None:
    with pytest.raises(WeftError, match=r"time\.time"):
        weft.hybridize(nn.Sequential(nn.Linear(3, 3), Stamped()), whole=True)(torch.randn(2, 3))
