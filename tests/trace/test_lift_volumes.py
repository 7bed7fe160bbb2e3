"""Convolutions of volumes are programs of convolutions of images, with the right values and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import weft
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.loop import LoopKernel

NETS = {
    "odd channels": lambda: nn.Conv3d(5, 7, 3, padding=1),
    "by Winograd": lambda: nn.Conv3d(24, 26, 3, padding=1),
    "strides": lambda: nn.Conv3d(5, 6, 3, stride=2, padding=1),
    "a window that is deep only": lambda: nn.Conv3d(6, 9, (3, 1, 1), stride=(2, 1, 1), padding=(1, 0, 0)),
    "a window of one layer": lambda: nn.Conv3d(6, 4, (1, 3, 3), padding=(0, 1, 1), groups=2),
    "dilation in groups": lambda: nn.Conv3d(6, 9, 3, padding=2, dilation=2, groups=3),
    "each channel alone": lambda: nn.Conv3d(8, 8, (3, 5, 5), stride=(2, 1, 2), padding=1, groups=8),
    "one place": lambda: nn.Conv3d(4, 5, 1),
    "transposed": lambda: nn.ConvTranspose3d(5, 6, 3, 2, 1, output_padding=(1, 0, 0)),
    "transposed, even": lambda: nn.ConvTranspose3d(16, 8, 4, 2, 1),
    "transposed, in groups": lambda: nn.ConvTranspose3d(
        4, 6, (3, 2, 2), (3, 2, 1), (1, 0, 0), dilation=(2, 1, 1), groups=2
    ),
    "transposed, each channel alone": lambda: nn.ConvTranspose3d(6, 6, 3, padding=1, groups=6),
    "transposed, deep only": lambda: nn.ConvTranspose3d(4, 3, (3, 1, 1), stride=(2, 1, 1)),
}  # fmt: skip


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.detach().double() - exact.detach()).abs().max() / exact.detach().abs().max())


def assert_as_exact_as_eager(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    assert found.shape == eager.shape
    assert found.stride() == eager.stride()
    assert error(found, exact) <= 2 * error(eager, exact) + 5e-7


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", NETS)
def test_volumes_are_convolved_and_have_gradients_as_in_eager(name: str, batch: int) -> None:
    torch.manual_seed(0)
    net = NETS[name]()
    x = torch.randn(batch, net.in_channels, 7, 9, 6)
    nets = {"found": weft.hybridize(copy.deepcopy(net)), "eager": net, "exact": copy.deepcopy(net).double()}
    given = {kind: x.clone().to(one.weight.dtype).requires_grad_() for kind, one in nets.items()}
    results = {kind: one(given[kind]) for kind, one in nets.items()}
    assert_as_exact_as_eager(*results.values())
    weights = torch.randn_like(results["eager"])
    for result in results.values():
        (result * weights).sum().backward()
    gradients = [[given[kind].grad, *(one.grad for one in nets[kind].parameters())] for kind in nets]
    for found, eager, exact in zip(*gradients, strict=True):
        assert_as_exact_as_eager(found, eager, exact)
    with torch.no_grad():
        assert "0 calls of PyTorch's operators" in weft.program(nets["found"], x).summary()


def test_no_volumes_and_one_without_a_batch_are_convolved() -> None:
    net = nn.Conv3d(3, 4, 3, padding=1)
    hybrid = weft.hybridize(copy.deepcopy(net))
    with torch.no_grad():
        for shape in ((0, 3, 5, 4, 4), (3, 5, 4, 4)):
            x = torch.randn(shape)
            torch.testing.assert_close(hybrid(x), net(x))


def test_what_follows_a_convolution_of_volumes_is_done_in_its_kernel() -> None:
    net = nn.Sequential(nn.Conv3d(8, 16, 3, bias=False), nn.BatchNorm3d(16), nn.ReLU(), nn.Conv3d(16, 16, 1)).eval()
    x = torch.randn(1, 8, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d)
    hybrid = weft.hybridize(copy.deepcopy(net))
    with torch.no_grad():
        torch.testing.assert_close(hybrid(x), net(x))
        [plan] = weft.program(hybrid, x).plan.regions
    kernels = [call.kernel for call in plan.calls]
    assert [type(kernel) for kernel in kernels if not isinstance(kernel, LoopKernel)] == [ConvKernel, ConvKernel]
    first = next(kernel for kernel in kernels if isinstance(kernel, ConvKernel))
    assert [instruction.op for instruction in first.epilogue.body] == ["relu"]


def test_weights_of_volumes_are_laid_out_anew_only_when_they_have_changed() -> None:
    net = nn.Conv3d(8, 16, 3, padding=1)
    x = torch.randn(2, 8, 4, 5, 6)
    hybrid = weft.hybridize(copy.deepcopy(net))
    with torch.no_grad():
        torch.testing.assert_close(hybrid(x), net(x))
        [plan] = weft.program(hybrid, x).plan.regions
        weight = next(number for number, buffer in enumerate(plan.buffers) if buffer.bytes == net.weight.nbytes)
        assert all(place.buffer != weight for call in plan.calls for place in call.reads)
        for one in (net, hybrid):
            one.weight.mul_(-2)
        torch.testing.assert_close(hybrid(x), net(x))
