"""A throttled device is slower by what it is to be, and trains as before."""

from __future__ import annotations

from typing import Any

import torch
from bench import unequal
from torch import nn


def test_each_part_of_forward_and_backward_is_followed_by_its_share_of_sleep(monkeypatch: Any) -> None:
    now, slept = [0.0], list[float]()

    class Time:
        """Each look at it comes a second later."""

        @staticmethod
        def perf_counter() -> float:
            now[0] += 1.0
            return now[0]

        @staticmethod
        def sleep(seconds: float) -> None:
            slept.append(seconds)

    monkeypatch.setattr(unequal, "time", Time)
    net, plain = nn.Linear(3, 2), nn.Linear(3, 2)
    plain.load_state_dict(net.state_dict())
    unequal.Throttle(net, 3.0)
    for one in (net, plain):
        one(torch.ones(4, 3)).sum().backward()
    assert slept == [2.0, 2.0, 2.0]  # after the forward, and after the gradient of each parameter
    assert torch.equal(net.weight.grad, plain.weight.grad)


def test_the_second_device_of_each_pair_is_throttled() -> None:
    for contestant in unequal.CONTESTANTS.values():
        made = contestant.trainer()
        throttled = [bool(net._forward_hooks) for net in made.replicas.nets]
        assert throttled == [False, True][: len(contestant.devices)]
        assert len({one.slower for one in unequal.CONTESTANTS.values() if one.shares == "measured"}) == 2
