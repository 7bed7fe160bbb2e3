"""Memory caps the share of a device."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import weft
from weft.train.devices.shares import USED, bytes_per_sample, capped_sizes


class Noted(nn.Sequential):
    """Notes the sizes of what it is given."""

    sizes: ClassVar[list[int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(x))
        return super().forward(x)  # type: ignore[no-any-return]


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return Noted(nn.Linear(25, 100), nn.ReLU(), nn.Linear(100, 2))


def trainer_with(memory: dict[str, float], shares: object = "equal", net: nn.Module | None = None) -> weft.Trainer:
    net = net or small_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return weft.Trainer(net, optimizer, functional.cross_entropy, ["cpu:0", "cpu:1"], shares=shares, memory=memory)


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(0, 20)), min_size=1, max_size=5).filter(
        lambda rows: any(share for share, _ in rows)
    ),
    st.data(),
)
def test_no_part_is_above_its_limit_and_the_parts_add_up(rows: list[tuple[float, int]], data: st.DataObject) -> None:
    shares, most = [share for share, _ in rows], [limit for _, limit in rows]
    count = data.draw(st.integers(0, sum(most)))
    sizes = capped_sizes(count, shares, most)
    assert sum(sizes) == count
    assert all(0 <= size <= limit for size, limit in zip(sizes, most, strict=True))


def test_what_a_device_cannot_hold_goes_to_the_others_by_their_shares() -> None:
    assert capped_sizes(100, [1, 1, 2], [100, 10, 100]) == [30, 10, 60]
    assert capped_sizes(100, [1, 0], [60, 100]) == [60, 40]


def test_a_sample_takes_what_its_forward_keeps() -> None:
    net, x = small_net(), torch.randn(4, 25)
    # The sample itself, and the result of ReLU, which the last layer needs too; no parameters.
    assert bytes_per_sample(net, x) == 4 * (25 + 100)


def test_measuring_changes_neither_random_states_nor_buffers() -> None:
    net, x = nn.Sequential(nn.BatchNorm1d(25), nn.Dropout()), torch.randn(4, 25)
    before, state = {name: value.clone() for name, value in net.state_dict().items()}, torch.get_rng_state()
    bytes_per_sample(net, x)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_device_gets_no_more_than_it_holds_and_the_update_is_that_of_one_device() -> None:
    x, y = torch.randn(40, 25), torch.randint(2, (40,))
    net, plain = small_net(), small_net()
    trainer = trainer_with({"cpu:1": 6 * 500 / USED + 1}, net=net)
    Noted.sizes.clear()
    trainer.step(x, y)
    assert sorted(Noted.sizes[1:]) == [6, 34]  # the first is what was measured
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    functional.cross_entropy(plain(x), y).backward()
    optimizer.step()
    for one, other in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_batch_that_fits_nowhere_is_an_error_with_numbers() -> None:
    trainer = trainer_with({"cpu:0": 20 * 500 / USED + 1, "cpu:1": 6 * 500 / USED + 1})
    with pytest.raises(weft.UsageError, match="a batch of 40 samples does not fit") as caught:
        trainer.step(torch.randn(40, 25), torch.randint(2, (40,)))
    assert "cpu:0 holds 20, cpu:1 holds 6" in str(caught.value)


def test_memory_of_a_device_that_is_not_used_is_refused() -> None:
    with pytest.raises(weft.UsageError, match="memory is given for cpu:7"):
        trainer_with({"cpu:7": 1e9})
