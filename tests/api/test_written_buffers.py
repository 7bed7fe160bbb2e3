"""Buffers that a call writes into, as a decoder's keys and values: written where they are, and found quickly again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import weft
from weft.guards.guarded import Guarded
from weft.plan.kernels.loop import LoopKernel

LENGTH, SIZE = 24, 16
Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


def by_index_copy(cache: torch.Tensor, place: torch.Tensor, row: torch.Tensor) -> object:
    return cache.index_copy_(2, place, row)


def by_index(cache: torch.Tensor, place: torch.Tensor, row: torch.Tensor) -> object:
    cache[:, :, place] = row
    return cache


class Decoder(nn.Module):
    """One layer of attention to all that came before."""

    def __init__(self, write: Write = by_index_copy) -> None:
        super().__init__()
        self.write = write
        self.all_three = nn.Linear(3 * SIZE, 9 * SIZE)
        self.register_buffer("keys", torch.zeros(1, 3, LENGTH, SIZE))
        self.register_buffer("values", torch.zeros(1, 3, LENGTH, SIZE))

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        query, key, value = self.all_three(x).view(1, 1, 3, 3, SIZE).permute(2, 0, 3, 1, 4)
        self.write(self.keys, place, key)
        self.write(self.values, place, value)
        seen = torch.arange(LENGTH) <= place[:, None]
        return scaled_dot_product_attention(query, self.keys, self.values, attn_mask=seen).reshape(1, 1, 3 * SIZE)


def pair(write: Write = by_index_copy) -> tuple[Decoder, Decoder]:
    ours, theirs = Decoder(write).eval(), Decoder(write).eval()
    theirs.load_state_dict(ours.state_dict())
    return weft.hybridize(ours), theirs


def decode(ours: Decoder, theirs: Decoder, steps: range) -> None:
    for step in steps:
        x, place = torch.randn(1, 1, 3 * SIZE), torch.tensor([step])
        torch.testing.assert_close(ours(x, place), theirs(x, place))
        for mine, its in zip(ours.buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("write", [by_index_copy, by_index])
@torch.no_grad()
def test_a_decoder_writes_its_buffers_as_eager_does(write: Write) -> None:
    decode(*pair(write), range(LENGTH))


@pytest.mark.parametrize("write", [by_index_copy, by_index])
@torch.no_grad()
def test_what_is_not_written_is_not_copied(write: Write) -> None:
    ours, _ = pair(write)
    (plan,) = weft.program(ours, torch.randn(1, 1, 3 * SIZE), torch.tensor([1])).plan.regions
    whole = ours.keys.numel()
    assert not [c for c in plan.calls if isinstance(c.kernel, LoopKernel) and c.kernel.rows * c.kernel.columns >= whole]
    assert not [buffer for _, buffer in plan.of_kind("arena") if buffer.bytes >= ours.keys.nbytes]


@torch.no_grad()
def test_a_cache_among_the_arguments_is_written_where_it_is() -> None:
    def write(cache: torch.Tensor, place: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        before = cache.sum()
        cache.index_copy_(0, place, row)
        return before + cache.amax()

    hybrid = weft.hybridize(write)
    ours = torch.randn(40, 8)
    theirs, address = ours.clone(), ours.data_ptr()
    for step in range(5):
        place, row = torch.tensor([step, 39 - step]), torch.randn(2, 8)
        torch.testing.assert_close(hybrid(ours, place, row), write(theirs, place, row))
        assert torch.equal(ours, theirs)
    assert ours.data_ptr() == address


@torch.no_grad()
def test_a_place_outside_is_refused_and_changes_nothing() -> None:
    ours, theirs = pair()
    decode(ours, theirs, range(3))
    with pytest.raises(IndexError):
        ours(torch.randn(1, 1, 3 * SIZE), torch.tensor([LENGTH]))
    decode(ours, theirs, range(3, 6))


@torch.no_grad()
def test_calls_that_write_buffers_compare_natively_what_they_rely_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pair()
    decode(ours, theirs, range(4))

    def compared_in_python(*_: object) -> None:
        raise AssertionError("what held was compared in Python")

    monkeypatch.setattr(Guarded, "miss", compared_in_python)
    decode(ours, theirs, range(4, 12))


@torch.no_grad()
def test_buffers_that_begin_to_share_memory_are_seen() -> None:
    ours, theirs = pair()
    decode(ours, theirs, range(4))
    for net in (ours, theirs):
        net.values.set_(net.keys)
    decode(ours, theirs, range(4, 8))


@torch.no_grad()
def test_an_argument_that_is_a_view_of_a_written_buffer_is_seen() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.arange(12.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept.add_(1)
            return x * 2

    ours, theirs = weft.hybridize(Shift()), Shift()
    for _ in range(3):
        x = torch.randn(4)
        assert torch.equal(ours(x), theirs(x))
    for start in (0, 5, 5):
        assert torch.equal(ours(ours.kept[start : start + 4]), theirs(theirs.kept[start : start + 4]))


@torch.no_grad()
def test_columns_moved_by_a_border_are_not_written_over_before_they_are_read() -> None:
    def shift(columns: torch.Tensor, rows: torch.Tensor) -> None:
        columns.copy_(nn.functional.pad(columns[:, 1:], (1, 0)))
        rows.copy_(nn.functional.pad(rows[:-1], (0, 0, 0, 1), value=2.0))

    hybrid = weft.hybridize(shift)
    for _ in range(3):
        ours = torch.randn(4, 5), torch.randn(4, 5)
        theirs = tuple(tensor.clone() for tensor in ours)
        hybrid(*ours)
        shift(*theirs)
        assert all(map(torch.equal, ours, theirs))


class _Averaging(nn.Module):
    """Keeps an average of what it computes, with the gradients of all calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3)
        self.register_buffer("average", torch.zeros(3))


class _InPlace(_Averaging):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average.mul_(0.5).add_(self.layer(x).mean(0))
        return (x * self.average).sum()


class _BehindDetach(_Averaging):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average = self.average.detach()
        self.average.copy_(self.layer(x).tanh().mean(0))
        return (x * self.average).sum()


@pytest.mark.parametrize("kind", [_InPlace, _BehindDetach])
def test_a_buffer_carries_gradients_over_calls_of_many_sizes(kind: type[_Averaging]) -> None:
    def found(prepare: Callable[[nn.Module], nn.Module]) -> list[Any]:
        net = kind()
        run = prepare(net)
        losses = [run(torch.linspace(0, 1, rows * 3).view(rows, 3)) for rows in (4, 5, 6, 3)]
        (sum(losses, torch.zeros(())) + net.average.sum()).backward()
        return [net.average.requires_grad, net.average.detach(), *(one.grad for one in net.parameters())]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(found(lambda net: weft.hybridize(net, whole=False)), found(lambda net: net))
