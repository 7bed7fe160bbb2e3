"""Shares follow the speed of devices on the user's own model."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest
import torch
from torch.nn import functional

import weft
from weft.train import gradients
from weft.train import trainer as trainer_module
from weft.train.devices.shares import (
    COMPARED,
    LEAST,
    RETRIED,
    SUSPECTED_AT,
    TRIED,
    WARM_UP,
    MeasuredShares,
    split_sizes,
)


def measured(*speeds: float, steps: int = WARM_UP + 1) -> MeasuredShares:
    found = MeasuredShares(len(speeds))
    for _ in range(steps):
        for index, speed in enumerate(speeds):
            found.note(index, 30, 30 / speed)
        found.end_of_step()
    return found


def test_shares_are_equal_until_the_speeds_are_known() -> None:
    assert measured(3, 1, steps=WARM_UP).shares() == [1, 1]
    assert measured(3, 1).shares() == pytest.approx([3, 1])


def test_a_device_that_becomes_slower_loses_its_share_step_by_step() -> None:
    found = measured(2, 2)
    found.note(1, 30, 30)
    assert found.shares()[1] == pytest.approx(1.7)
    for _ in range(30):
        found.note(1, 30, 30)
    assert found.shares() == pytest.approx([2, 1], rel=1e-3)


def test_a_device_that_brings_nothing_gets_nothing_but_a_trial_now_and_then() -> None:
    found = measured(100, 0.1, steps=TRIED)
    assert found.shares() == pytest.approx([100, 100 * LEAST])
    found.end_of_step()
    assert found.shares() == pytest.approx([100, 0.1])


def sizes_of_steps(found: MeasuredShares, speeds: Sequence[float], steps: int) -> list[tuple[int, ...]]:
    """Train on devices whose speeds vary by seven percent; gives the parts of each batch."""
    source, sizes = random.Random(0), list[tuple[int, ...]]()
    for _ in range(steps):
        parts = split_sizes(256, found.shares())
        sizes.append(tuple(parts))
        for index, (part, speed) in enumerate(zip(parts, speeds, strict=True)):
            compiling = 3.0 if index == 0 and tuple(parts) not in sizes[:-1] else 0.0
            found.note(index, part, part / (speed * source.uniform(0.93, 1.07)) + compiling)
        found.end_of_step()
    return sizes


def test_programs_get_other_sizes_only_where_that_pays() -> None:
    found = MeasuredShares(2, steady=True)
    sizes = sizes_of_steps(found, [300, 225], 60)
    assert len(set(sizes)) == 2  # the equal ones, and those that were measured
    assert sizes[-1] == pytest.approx((146, 110), abs=8)
    later = sizes_of_steps(found, [300, 75], 60)
    assert len(set(later)) <= 6  # as what is known of the speed comes closer to it
    assert later[-1] == pytest.approx((205, 51), abs=12)
    assert len(set(sizes_of_steps(MeasuredShares(2), [300, 225], 60))) > 5  # modules as they are take any size


def test_a_slow_device_gets_no_steady_share_that_all_would_wait_for() -> None:
    for slow in range(40, 1000, 7):
        found = MeasuredShares(3, steady=True)
        sizes = sizes_of_steps(found, [1000, 1000, slow], 20)[-1]
        assert max(sizes[0] / 1000, sizes[1] / 1000, sizes[2] / slow) <= 1.25 * 256 / (2000 + slow)


def test_a_trainer_measures_and_still_gives_the_update_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(devices: list[str], shares: str) -> tuple[weft.Trainer, torch.nn.Module]:
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2).double()
        trainer = weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.1), loss, devices, shares=shares)
        for _ in range(6):
            trainer.step(torch.randn(8, 3).double(), torch.zeros(8, dtype=torch.int64))
        return trainer, net

    loss = functional.cross_entropy
    trainer, net = trained(["cpu:0", "cpu:1"], "measured")
    assert min(trainer.shares) > 0
    assert trainer.shares != [1.0, 1.0]
    _, plain = trained(["cpu:0"], "equal")
    torch.testing.assert_close(net.weight, plain.weight)


def test_a_device_that_costs_more_than_it_brings_is_left_out_with_numbers(caplog: pytest.LogCaptureFixture) -> None:
    for cost, stays in ((0.5, True), (1.5, False)):
        caplog.clear()
        found = MeasuredShares(2, ["cpu:0", "cpu:1"])
        for _ in range(40):
            shares = found.shares()
            found.note(0, 90, 0.09)
            if shares[1]:
                found.note(1, 10, 0.1)
            found.end_of_step(100, 0.1 * (cost if shares[1] else 1.0))
        assert (found.shares()[1] > 0) == stays
        said = "cpu:1 is left out: 100 samples took 150.0 ms with it, 100.0 ms without it"
        assert (said in caplog.text) != stays


def compared(found: MeasuredShares, steps: int, cost: Callable[[int], float]) -> list[bool]:
    """Train with a second device with which a step takes so much of the time without it; gives where it worked."""
    worked = []
    for step in range(steps):
        shares = found.shares()
        worked.append(shares[1] > 0)
        found.note(0, 90, 0.09)
        if shares[1]:
            found.note(1, 10, 0.1)
        found.end_of_step(100, 0.1 * (cost(step) if shares[1] else 1.0))
    return worked


def test_a_device_that_was_disturbed_while_it_was_compared_is_used_again(caplog: pytest.LogCaptureFixture) -> None:
    found = MeasuredShares(2, ["cpu:0", "cpu:1"])
    worked = compared(found, 3 * RETRIED, lambda step: 1.5 if step < RETRIED else 0.5)
    assert not any(worked[SUSPECTED_AT + 2 * COMPARED : RETRIED])
    assert all(worked[2 * RETRIED :])
    assert not found.dropped
    assert "cpu:1 is used again: 100 samples took 50.0 ms with it, 100.0 ms without it" in caplog.text


def test_a_useless_device_is_compared_ever_more_rarely_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    worked = compared(MeasuredShares(2, ["cpu:0", "cpu:1"]), 16 * RETRIED, lambda _: 1.5)
    assert sum(worked[RETRIED:]) <= 4 * (COMPARED + 1)
    assert any(worked[RETRIED : 2 * RETRIED])
    assert caplog.text.count("left out") == 1


class Clock:
    """Seconds that pass only where a device works, in the thread of that device: what nothing else can disturb."""

    def __init__(self) -> None:
        self.mine = threading.local()

    def perf_counter(self) -> float:
        return float(getattr(self.mine, "seconds", 0.0))

    def work(self, seconds: float) -> None:
        self.mine.seconds = self.perf_counter() + seconds


class Steps:
    """A trainer's clock: a step takes as long as the slowest device's part, and work that devices share longer."""

    def __init__(self, costs: Sequence[float], disturbed: float = 1.0) -> None:
        self.costs, self.disturbed = costs, disturbed
        self.parts: dict[int, int] = {}  # samples of each device in this step
        self.now = 0.0

    def perf_counter(self) -> float:
        """Give the time before a step, then that after it."""
        if self.parts:
            self.now += self.seconds()
            self.parts.clear()
        return self.now

    def seconds(self) -> float:
        slowest = max(self.costs[index] * samples for index, samples in self.parts.items())
        return slowest * (self.disturbed if len(self.parts) > 1 else 1.0)


class Throttled(torch.nn.Linear):
    """A layer that says on which device it works; the clocks do the rest."""

    told: ClassVar[Callable[[torch.nn.Module, int], None]]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Throttled.told(self, len(x))
        return super().forward(x)


def seconds_of(
    monkeypatch: pytest.MonkeyPatch, costs: Sequence[float], shares: str, steps: int, disturbed: float = 1.0
) -> list[float]:
    """Train on devices that take so long for a sample; gives the seconds of each step."""

    def told(net: torch.nn.Module, samples: int) -> None:
        index = next(index for index, one in enumerate(trainer.replicas.nets) if one is net)
        whole.parts[index] = samples
        alone.work(costs[index] * samples)

    alone, whole = Clock(), Steps(costs, disturbed)
    monkeypatch.setattr(gradients, "time", alone)
    monkeypatch.setattr(trainer_module, "time", whole)
    monkeypatch.setattr(Throttled, "told", staticmethod(told), raising=False)
    net = Throttled(3, 2)
    devices = [f"cpu:{index}" for index in range(len(costs))]
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    trainer = weft.Trainer(net, optimizer, functional.cross_entropy, devices, shares=shares)
    found = []
    for _ in range(steps):
        before = whole.perf_counter()
        trainer.step(torch.randn(256, 3), torch.zeros(256, dtype=torch.int64))
        found.append(whole.perf_counter() - before)
    return found


def test_measured_shares_on_devices_of_speeds_3_to_1_give_1_8_times_the_throughput_of_equal_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    equal = seconds_of(monkeypatch, [1, 3], "equal", 64)
    measured = seconds_of(monkeypatch, [1, 3], "measured", 64)
    assert sum(equal) / sum(measured) >= 1.8  # 2.0 but for the first steps


@pytest.mark.filterwarnings("ignore:weft. a step of Throttled has more than 32 programs")  # its clock goes on
def test_a_useless_second_device_is_left_out_and_costs_at_most_5_percent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    alone = seconds_of(monkeypatch, [1], "equal", 40)
    measured = seconds_of(monkeypatch, [1, 30], "measured", 40, disturbed=1.2)
    assert sum(measured[20:]) <= sum(alone[20:]) / 0.95
    assert "cpu:1 is left out: 256 samples took" in caplog.text
    assert "256000.0 ms without it" in caplog.text
