"""A batch norm that averages over all batches is one program, however many batches there have been."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

import weft


def model(momentum: float | None) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.ReLU(), nn.Flatten())


def test_all_batches_count_alike() -> None:
    plain = model(None)
    ours = weft.hybridize(copy.deepcopy(plain), whole=True)
    for count in range(6):
        x = torch.randn(3 + count % 2, 2, 6, 6)
        expected, found = plain(x), ours(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            torch.autograd.grad(found.square().sum(), [*ours.parameters()]),
            torch.autograd.grad(expected.square().sum(), [*plain.parameters()]),
            rtol=1e-4,
            atol=1e-4,
        )
        torch.testing.assert_close([*ours.buffers()], [*plain.buffers()])
    torch.testing.assert_close(ours.eval()(x), plain.eval()(x))
    assert ours.forward.traces <= 4  # type: ignore[union-attr]


def test_update_bn_computes_statistics_anew() -> None:
    batches = [torch.randn(3, 2, 6, 6) for _ in range(4)]
    plain = model(0.1)
    ours = weft.hybridize(copy.deepcopy(plain), whole=True)
    for one in (plain, ours):
        one(batches[0])
        update_bn(batches, one)
    torch.testing.assert_close([*ours.buffers()], [*plain.buffers()])
    averaged = AveragedModel(ours)
    averaged.update_parameters(ours)
    update_bn(batches, averaged)
    torch.testing.assert_close([*averaged.module.buffers()], [*plain.buffers()])


@pytest.mark.parametrize("momentum", [0.1, None])
def test_narrow_batches_average_in_wide_statistics(momentum: float | None) -> None:
    plain = nn.BatchNorm1d(4, momentum=momentum)
    ours = weft.hybridize(copy.deepcopy(plain), whole=True)
    for _ in range(3):
        x = torch.randn(8, 4).bfloat16()
        torch.testing.assert_close(ours(x), plain(x))
        torch.testing.assert_close([*ours.buffers()], [*plain.buffers()], rtol=1e-3, atol=1e-3)


def test_pytorchs_batch_norm_is_as_it_was_behind_a_trace() -> None:
    net = weft.hybridize(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)), whole=True)
    net(torch.randn(5, 4))
    assert "float" not in vars(torch.nn.modules.batchnorm)
