"""Batches are split, evaluated and summed over devices; every sample counts once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import weft
from weft.devices import Device
from weft.train.devices import shares
from weft.train.devices.replicas import METHODS
from weft.train.devices.shares import no_single_sample, split_batch, split_sizes
from weft.train.devices.threads import run_on
from weft.train.evaluate import sums_over

CPUS = ["cpu:0", "cpu:1"]


def test_a_batch_is_split_as_in_the_chapter() -> None:
    batch = torch.arange(24.0).reshape(6, 4)
    pieces = weft.split_and_load(batch, CPUS)
    assert [piece.shape for piece in pieces] == [(3, 4), (3, 4)]
    assert torch.equal(torch.cat(pieces), batch)
    assert pieces[0].data_ptr() == batch.data_ptr()


@given(count=st.integers(0, 1000), shares=st.lists(st.floats(0, 100), min_size=1, max_size=6).filter(sum))
def test_shares_are_kept_to_within_one_sample(count: int, shares: list[float]) -> None:
    sizes = split_sizes(count, shares)
    assert sum(sizes) == count
    assert all(abs(size - count * share / sum(shares)) < 1 for size, share in zip(sizes, shares, strict=True))


def test_shares_follow_measured_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {Device("cpu", 0): 0.1, Device("cpu", 1): 0.3}
    monkeypatch.setattr(shares, "_trial", seconds.__getitem__)
    monkeypatch.setattr(shares, "_speeds", {})
    assert list(map(len, weft.split_and_load(torch.zeros(8, 1), CPUS, shares="measured"))) == [6, 2]
    assert list(map(len, weft.split_and_load(torch.zeros(8, 1), CPUS, shares=[1, 3]))) == [2, 6]


def test_speeds_are_measured() -> None:
    assert min(shares.measured_speeds([Device("cpu", 0), Device("cpu", 1)])) > 0


@pytest.mark.parametrize("shares", ["fast", [1], [0, 0], [-1, 2], [float("nan"), 1]])
def test_shares_without_meaning_are_refused(shares: object) -> None:
    with pytest.raises(weft.UsageError, match="shares"):
        weft.split_and_load(torch.zeros(4), CPUS, shares=shares)


def test_samples_and_labels_must_be_as_many() -> None:
    with pytest.raises(weft.UsageError, match="4 samples and 3 labels"):
        split_batch(torch.zeros(4), torch.zeros(3), CPUS)


@given(method=st.sampled_from(sorted(METHODS)), count=st.integers(1, 5), rows=st.integers(0, 3))
def test_allreduce_puts_the_sum_everywhere_in_place(method: str, count: int, rows: int) -> None:
    tensors = [torch.randn(rows, 4).t() for _ in range(count)]
    places = [tensor.data_ptr() for tensor in tensors]
    expected = sum(tensor.clone() for tensor in tensors)
    weft.allreduce(tensors, method)
    for tensor, place in zip(tensors, places, strict=True):
        torch.testing.assert_close(tensor, expected)
        assert torch.equal(tensor, tensors[0])
        assert tensor.data_ptr() == place


def test_the_chapters_example_of_allreduce() -> None:
    data = [torch.ones(1, 2) * (index + 1) for index in range(2)]
    weft.allreduce(data)
    assert [tensor.tolist() for tensor in data] == [[[3, 3]], [[3, 3]]]


def test_what_cannot_be_summed_is_said() -> None:
    one = torch.ones(2)
    for tensors, message in [([one, one], "same memory"), ([one, torch.ones(3)], "different shapes")]:
        with pytest.raises(weft.UsageError, match=message):
            weft.allreduce(tensors)
    with pytest.raises(weft.UsageError, match="method='star'"):
        weft.allreduce([one], "star")
    weft.allreduce([])


def test_replicas_have_values_and_gradients_of_their_own() -> None:
    net = nn.Linear(2, 1)
    one, other = weft.replicate(net, CPUS)
    one(torch.ones(1, 2)).sum().backward()
    assert other.weight.grad is None
    assert net.weight.grad is None
    assert torch.equal(one.weight, other.weight)
    parameters = weft.replicate([torch.ones(2, requires_grad=True)], CPUS)
    assert [[item.requires_grad for item in copies] for copies in parameters] == [[True], [True]]
    with pytest.raises(weft.UsageError, match="str cannot be replicated"):
        weft.replicate("net", CPUS)


@pytest.mark.parametrize("devices", [None, "cpu:0", CPUS, ["cpu:0", "cpu:1", "cpu:2"]])
def test_evaluation_counts_every_sample_once(devices: object) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    net[2].eval()
    data = [(torch.randn(count, 3), torch.randint(4, (count,))) for count in (5, 1, 2)]
    scores = torch.cat([net.eval()(x) for x, _ in data])
    net.train()
    net[2].eval()
    expected = (scores.argmax(1) == torch.cat([y for _, y in data])).double().mean().item()
    assert weft.evaluate(net, data, devices) == pytest.approx(expected)
    assert [part.training for part in net.modules()] == [True, True, True, False]
    loss = weft.evaluate(net, data, devices, measure=summed_loss)
    expected_loss = summed_loss(scores, torch.cat([y for _, y in data])) / 8
    assert loss == pytest.approx(float(expected_loss.detach()), rel=1e-5)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_no_part_is_a_single_sample_where_there_are_two(sizes: list[int]) -> None:
    found = no_single_sample(sizes)
    assert len(found) == len(sizes)
    assert sum(found) == sum(sizes)
    assert 1 not in found or sum(sizes) == 1
    assert all(size or not part for size, part in zip(sizes, found, strict=True))  # none is woken that had nothing


@given(
    sizes=st.lists(st.integers(0, 6), max_size=4),
    shares=st.lists(st.integers(0, 5), min_size=2, max_size=5).filter(sum),
)
def test_evaluation_counts_every_sample_once_whatever_the_shares(sizes: list[int], shares: list[int]) -> None:
    net = nn.Linear(3, 4)
    data = [(torch.randn(count, 3), torch.randint(4, (count,))) for count in sizes]
    devices = [f"cpu:{index}" for index in range(len(shares))]
    right = sum(int((net(x).argmax(1) == y).sum()) for x, y in data)
    assert sums_over(net, data, devices, shares=shares) == (right, sum(sizes))
    assert weft.evaluate(net, data, devices, shares=shares) == (
        pytest.approx(right / sum(sizes)) if sum(sizes) else pytest.approx(float("nan"), nan_ok=True)
    )


def summed_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(scores, labels, reduction="sum")


def test_work_on_devices_runs_in_the_modes_of_its_caller_and_raises_the_first_error() -> None:
    places = [Device("cpu", 0), Device("cpu", 1)]
    with torch.no_grad(), torch.autocast("cpu"):
        modes = run_on([lambda: (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))] * 2, places)
    assert modes == [(False, True)] * 2

    def fail(number: int) -> None:
        raise ValueError(number)

    with pytest.raises(ValueError, match="1"):
        run_on([lambda: fail(1), lambda: fail(2)], places)
