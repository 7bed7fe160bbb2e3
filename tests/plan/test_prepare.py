"""What is made of weights alone is computed when one of them has changed, and goes into products where it can."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import weft
from weft.plan.epilogue import Epilogue
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.gemm import PackKernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.winograd import WinogradKernel
from weft.plan.plan import Plan


def normalised(conv: nn.Conv2d, *behind: nn.Module) -> nn.Sequential:
    """A convolution with a batch norm that has statistics of its own, for inference."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(conv.out_channels)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor.uniform_(0.5, 1.5)
    return nn.Sequential(conv, norm, *behind).eval()


def plan_of(net: nn.Module, x: torch.Tensor) -> Plan:
    with torch.no_grad():
        [plan] = weft.program(net, x).plan.regions
    return plan


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def assert_exact(net: nn.Module, found: torch.Tensor, x: torch.Tensor) -> None:
    eager = net(x)
    exact = net.double()(x.double())
    net.float()
    assert error(found, exact) <= 2 * error(eager, exact) + 1e-7


CONVOLUTIONS = {
    "one by one": nn.Conv2d(24, 40, 1, bias=False),
    "with a bias": nn.Conv2d(24, 40, 1),
    "depthwise": nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False),
    "in groups": nn.Conv2d(24, 36, 3, groups=3),
    "by Winograd": nn.Conv2d(24, 48, 3, padding=1, bias=False),
    "with a few channels along the inputs": nn.Conv2d(24, 50, 5),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_batch_norm_behind_a_convolution_is_part_of_its_weights(name: str) -> None:
    conv = CONVOLUTIONS[name]
    net = normalised(conv, nn.ReLU6(), nn.Conv2d(conv.out_channels, 16, 1, bias=False))
    x = torch.randn(2, 24, 14, 14)
    kernels = [call.kernel for call in plan_of(net, x).calls]
    *epilogues, last = [kernel.epilogue for kernel in kernels if isinstance(kernel, (ConvKernel, WinogradKernel))]
    assert epilogues
    assert last == Epilogue()
    for epilogue in epilogues:
        assert epilogue.bias is not None
        assert not epilogue.operands
        assert not epilogue.is_long
    with torch.no_grad():
        assert_exact(net, weft.hybridize(copy.deepcopy(net))(x), x)


def test_a_changed_statistic_is_seen_by_the_next_call() -> None:
    net, x = normalised(nn.Conv2d(8, 16, 3, padding=1), nn.Tanh()), torch.randn(1, 8, 9, 9)
    run = weft.hybridize(net)
    plain = normalised(nn.Conv2d(8, 16, 3, padding=1), nn.Tanh())
    with torch.no_grad():
        for tensor in (None, net[1].running_var, net[1].running_mean, net[1].weight, net[1].bias, net[0].weight):
            if tensor is not None:
                tensor.mul_(1.5)
            found = run(x)
            plain.load_state_dict(net.state_dict())
            assert_exact(plain, found, x)


def test_batch_norm_before_a_convolution_is_a_scale_and_a_shift() -> None:
    net = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 1)).eval()
    plan = plan_of(net, torch.randn(2, 16, 8, 8))
    ops = [line.op for call in plan.calls if isinstance(call.kernel, LoopKernel) for line in call.kernel.body]
    assert "rsqrt" not in ops
    assert ops.count("mul") == 1
    assert any(isinstance(call.kernel, LoopKernel) for call in plan.packing)


def test_a_convolution_that_others_read_too_keeps_its_weights() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = normalised(nn.Conv2d(8, 16, 1))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            bare = self.net[0](x)
            return bare, torch.relu(self.net[1](bare))

    net, x = Twice(), torch.randn(1, 8, 6, 6)
    packs = [call.kernel for call in plan_of(net, x).packing if isinstance(call.kernel, PackKernel)]
    assert [pack.scale_batch for pack in packs] == [None]
    plain = Twice()
    plain.load_state_dict(net.state_dict())
    with torch.no_grad():
        for found, expected in zip(weft.hybridize(net)(x), plain(x), strict=True):
            torch.testing.assert_close(found, expected)


def test_large_expressions_of_weights_are_not_kept() -> None:
    weight = nn.Parameter(torch.randn(40_000))

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.exp(weight)

    assert not plan_of(weft.hybridize(scaled), torch.randn(8, 40_000)).packing


def test_weights_without_numbers_are_not_kept() -> None:
    weight = nn.Parameter(torch.randn(0))

    def scaled(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * (torch.exp(weight) * weight), y + 1

    x, y = torch.randn(8, 0), torch.randn(3)
    with torch.no_grad():
        found, beside = weft.hybridize(scaled)(x, y)
    assert found.shape == (8, 0)
    assert torch.equal(beside, y + 1)
