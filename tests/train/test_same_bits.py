"""Deterministic steps give one device's bits on any devices; synchronised batch norm sees the whole batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import weft

X, Y = torch.randn(21, 3, 6, 6, generator=torch.Generator().manual_seed(3)), torch.arange(21) % 3


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(64, 3)
    )


def trained(net: nn.Module, devices: Any, sizes: tuple[int, ...] = (21, 5, 12), **options: Any) -> nn.Module:
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    trainer = weft.Trainer(net, optimizer, functional.cross_entropy, devices, **options)
    for size in sizes:
        trainer.step(X[:size].to(next(net.parameters()).dtype), Y[:size])
    return net


@settings(max_examples=6, deadline=None)
@given(count=st.integers(2, 5), size=st.integers(0, 21), dropout=st.sampled_from([0.0, 0.4]))
def test_deterministic_steps_give_the_same_bits_on_any_devices(count: int, size: int, dropout: float) -> None:
    devices = [f"cpu:{index}" for index in range(count)]
    sizes = (size, 12)
    one = trained(network(dropout), "cpu:0", sizes, deterministic=True)
    many = trained(network(dropout), devices, sizes, deterministic=True)
    for ours, theirs in zip(one.state_dict().values(), many.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


@settings(max_examples=10, deadline=None)
@given(shares=st.lists(st.integers(0, 5), min_size=2, max_size=5).filter(sum), size=st.integers(0, 21))
def test_synchronised_batch_norm_gives_what_one_device_gives(shares: list[int], size: int) -> None:
    devices = [f"cpu:{index}" for index in range(len(shares))]
    one = trained(network().double(), "cpu:0", (size, 21), hybridize=False)
    many = trained(network().double(), devices, (size, 21), sync_batchnorm=True, shares=shares)
    for ours, theirs in zip(one.state_dict().values(), many.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_a_device_that_fails_lets_no_other_wait_in_batch_norm() -> None:
    def failing(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if y[0] == Y[11]:
            raise RuntimeError("the second device fails")
        return functional.cross_entropy(scores, y)

    net = network()
    devices = ["cpu:0", "cpu:1"]
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters()), failing, devices, sync_batchnorm=True)
    y = Y.clone()
    y[0] = (Y[11] + 1) % 3
    with pytest.raises(RuntimeError, match="the second device fails"):
        trainer.step(X, y)


def narrow() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    "options", [{"deterministic": True}, {}, {"shares": [4, 1]}, {"hybridize": True, "shares": [4, 1]}]
)
def test_no_part_with_batch_norm_is_a_single_sample(options: dict[str, Any]) -> None:
    """Batches of every size from 2 on: over a single value a channel PyTorch's batch norm refuses to train."""
    net = trained(narrow(), ["cpu:0", "cpu:1"], tuple(range(2, 18)), **options)
    assert all(bool(torch.isfinite(value).all()) for value in net.state_dict().values())


def test_data_parallel_trains_batch_norm_on_an_odd_last_batch() -> None:
    net = narrow()
    weft.DataParallel(net, ["cpu:0", "cpu:1"])(X[:3]).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_small_batches_with_batch_norm_have_the_same_bits_on_any_devices() -> None:
    one = trained(narrow(), "cpu:0", (9, 3, 2, 15), deterministic=True)
    many = trained(narrow(), ["cpu:0", "cpu:1", "cpu:2"], (9, 3, 2, 15), deterministic=True)
    for ours, theirs in zip(one.state_dict().values(), many.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_batch_of_a_single_sample_is_what_batch_norm_refuses_in_eager_too() -> None:
    for options in ({}, {"deterministic": True}):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            trained(narrow(), ["cpu:0", "cpu:1"], (1,), **options)


def test_what_does_not_go_together_is_refused() -> None:
    net = network()
    for options in ({"deterministic": True, "hybridize": True}, {"sync_batchnorm": True, "hybridize": True}):
        with pytest.raises(weft.UsageError, match="together"):
            weft.Trainer(net, torch.optim.SGD(net.parameters()), functional.cross_entropy, "cpu:0", **options)


class Drawing(nn.Module):
    """Draws in its forward, and nothing about it says so."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.4, self.training) + torch.rand(())


@pytest.mark.parametrize("drawing", [nn.Dropout(0.4), nn.RReLU(), Drawing(), nn.Identity()], ids=repr)
@pytest.mark.parametrize("late", [False, True])
def test_deterministic_steps_leave_the_generator_as_it_was_whoever_draws(late: bool, drawing: nn.Module) -> None:
    states, nets = [], []
    for devices in ("cpu:0", ["cpu:0", "cpu:1"], ["cpu:0", "cpu:1"]):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Flatten(), nn.Linear(108, 8), copy.deepcopy(drawing), nn.BatchNorm1d(8), nn.Linear(8, 3))
        trainer = weft.Trainer(
            net, torch.optim.SGD(net.parameters(), 0.1), functional.cross_entropy, devices, deterministic=True
        )
        torch.manual_seed(7)
        before = torch.get_rng_state()
        for number in range(3):
            net[2].train(not late or number > 0)  # nobody draws in the first step
            trainer.step(X[:21], Y[:21])
            assert torch.equal(torch.get_rng_state(), before)
        states.append(torch.rand(3))
        nets.append(net.state_dict())
    assert torch.equal(states[0], states[1])
    for many in nets[1:]:
        torch.testing.assert_close(many, nets[0], rtol=0, atol=0)


def test_a_step_that_fails_leaves_the_generator_as_it_was() -> None:
    def failing(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no loss")

    net = network(0.4)
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.1), failing, ["cpu:0", "cpu:1"], deterministic=True)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="no loss"):
        trainer.step(X, Y)
    assert torch.equal(torch.get_rng_state(), before)
