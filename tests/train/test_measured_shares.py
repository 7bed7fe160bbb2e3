"""Shares follow the speed of devices on the user's own model."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import weft
from weft.train.measured_shares import LEAST, TRIED, WARM_UP, MeasuredShares


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
