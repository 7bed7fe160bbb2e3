"""What is made of weights alone is computed when one of them has changed, and goes into products where it can."""

from __future__ import annotations

import copy
from math import ceil
from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from weft.plan.form.plan import KernelCall, Plan
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.gemm import Epilogue, GemmKernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.pack import PackKernel
from weft.plan.kernels.winograd import WinogradKernel
from weft.trace.lift.recurrent import LEAST_ROWS


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


STEPS, BATCH, WIDTH = 5, 3, 32


def recurrent(kind: type[nn.Module]) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return kind(WIDTH, WIDTH), torch.randn(STEPS, BATCH, WIDTH)


def products(calls: tuple[KernelCall, ...]) -> int:
    return sum(isinstance(call.kernel, GemmKernel) for call in calls)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_product_of_the_first_state_is_computed_before_any_call(kind: type[nn.Module]) -> None:
    net, x = recurrent(kind)
    plan = plan_of(net.eval(), x)
    assert products(plan.packing) == 1
    assert products(plan.calls) == ceil(STEPS / ceil(LEAST_ROWS / BATCH)) + STEPS - 1


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_weight_that_becomes_infinite_is_seen_in_the_product_of_the_first_state(kind: type[nn.Module]) -> None:
    net, x = recurrent(kind)
    run, plain = weft.hybridize(copy.deepcopy(net).eval()), copy.deepcopy(net).eval()
    with torch.no_grad():
        torch.testing.assert_close(run(x)[0], plain(x)[0])
        for number in (float("inf"), float("nan"), 0.25):
            for module in (run, plain):
                module.weight_hh_l0[7, 5] = number
            found, exact = run(x)[0], plain(x)[0]
            torch.testing.assert_close(found, exact, equal_nan=True)
            assert found[0].isnan().any() == (number != 0.25)


def test_products_of_parameters_that_train_are_computed_in_the_call() -> None:
    net, x = recurrent(nn.LSTM)
    plans = weft.program(net, x).plan.regions
    assert sum(products(plan.calls) for plan in plans) > STEPS
    assert not any(products(plan.packing) for plan in plans)


class TransposedPatch(nn.Module):
    """Multiplies by a product of two weights and a constant."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Parameter(torch.randn(size, 8)), nn.Parameter(torch.randn(8, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]]).repeat(4, 4)
        return x @ (self.first @ (turn @ self.second))


@pytest.mark.parametrize(("size", "before"), [(24, 2), (200, 1)])
def test_small_products_of_weights_and_constants_are_computed_before_any_call(size: int, before: int) -> None:
    net, x = TransposedPatch(size), torch.randn(6, size)
    plan = plan_of(net, x)
    assert (products(plan.packing), products(plan.calls)) == (before, 3 - before)
    run, plain = weft.hybridize(net), TransposedPatch(size)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(x), plain(x), rtol=1e-4, atol=1e-4)
            for module in (net, plain):
                module.first.mul_(1.5)
                module.second[3] += 1


def test_a_product_of_weights_without_steps_is_computed_in_the_call() -> None:
    weight = nn.Parameter(torch.randn(1, 4, 0))

    def shifted(x: torch.Tensor) -> torch.Tensor:
        wide = weight.double()
        return x + wide @ wide.transpose(1, 2)

    x = torch.randn(4, 4)
    assert not plan_of(weft.hybridize(shifted), x).packing
    with torch.no_grad():
        assert torch.equal(weft.hybridize(shifted)(x), shifted(x))


def test_expressions_of_weights_that_are_met_again_are_computed_once() -> None:
    net, x = recurrent(nn.LSTM)
    bias = [
        call for call in plan_of(net.eval(), x).packing if isinstance(call.kernel, LoopKernel) and len(call.reads) == 2
    ]
    assert len(bias) == 1


def test_a_program_from_a_file_computes_products_of_weights_anew(tmp_path: Path) -> None:
    net, x = recurrent(nn.LSTM)
    with torch.no_grad():
        program = weft.program(net.eval(), x)
        program.save(tmp_path / "net.weft")
        loaded = weft.load_program(tmp_path / "net.weft")
        torch.testing.assert_close(loaded(x)[0], net(x)[0])
