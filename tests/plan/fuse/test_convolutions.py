"""Convolutions in whole nets: to few channels, transposed, and with what lies around them in one kernel or layout."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import weft
from weft.config import overrides
from weft.passes.pipeline import run_pipeline
from weft.plan.fuse.fuse import fuse
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.kernel import Kernel
from weft.plan.kernels.loop import LoopKernel
from weft.plan.kernels.winograd import WinogradStage
from weft.plan.regions.region import find_regions
from weft.target import host_target
from weft.trace.lift.lift import lift


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def assert_exact(net: nn.Module, found: torch.Tensor, x: torch.Tensor) -> None:
    eager, exact = net(x), copy.deepcopy(net).double()(x.double())
    assert found.shape == eager.shape
    assert found.stride() == eager.stride()
    assert error(found, exact) <= 2 * error(eager, exact) + 1e-7


def kernels(net: nn.Module, x: torch.Tensor) -> list[Kernel]:
    """Check a net on one, two and four lanes, which give the same bits; gives its kernels."""
    found = []
    with torch.no_grad():
        for threads in (1, 2, 4):
            with overrides(threads=threads):
                hybrid = weft.hybridize(copy.deepcopy(net))
                found.append(hybrid(x))
        assert_exact(net, found[0], x)
        assert all(torch.equal(found[0], other) for other in found[1:])
        [plan] = weft.program(hybrid, x).plan.regions
    return [call.kernel for call in plan.calls]


def ways(found: list[Kernel]) -> list[str]:
    return [kernel.way for kernel in found if isinstance(kernel, ConvKernel)]


FEW = {
    "padded": (nn.Conv2d(32, 3, 3, padding=1), (2, 32, 17, 19)),
    "of rows and columns padded unlike": (nn.Conv2d(40, 2, (5, 3), padding=(2, 0)), (1, 40, 20, 23)),
    "with strides that leave rows out": (nn.Conv2d(48, 1, 3, stride=2, padding=1), (3, 48, 31, 30)),
    "dilated down": (nn.Conv2d(64, 3, 3, padding=(2, 1), dilation=(2, 1)), (1, 64, 18, 17)),
    "bare": (nn.Conv2d(16, 3, 9, bias=False), (1, 16, 30, 29)),
    "transposed": (nn.ConvTranspose2d(32, 3, 4, 2, 1), (2, 32, 12, 13)),
    "transposed, with more rows at the end": (
        nn.ConvTranspose2d(48, 1, 5, 3, 2, output_padding=(1, 2)),
        (1, 48, 18, 17),
    ),
    "transposed, stride 1": (nn.ConvTranspose2d(64, 2, 3, padding=1), (1, 64, 17, 16)),
}


@pytest.mark.parametrize("name", FEW)
def test_a_convolution_to_few_channels_goes_along_its_inputs(name: str) -> None:
    torch.manual_seed(0)
    net, shape = FEW[name]
    # What comes before writes inside the border, or is copied there; tanh may follow in the kernel.
    for whole in (net, nn.Sequential(nn.Conv2d(shape[1], shape[1], 1), nn.ReLU(), net, nn.Tanh())):
        found = ways(kernels(whole.eval(), torch.randn(shape)))
        assert "dot" in found
        assert set(found) <= {"dot", "channels"}


def test_few_channels_of_few_pixels_or_short_sums_are_computed_as_others() -> None:
    assert ways(kernels(nn.Conv2d(32, 3, 3, padding=1), torch.randn(1, 32, 8, 8))) == ["channels"]
    assert ways(kernels(nn.Conv2d(16, 4, 1), torch.randn(1, 16, 40, 40))) == ["channels"]


NARROW = {
    "of colours": (nn.Conv2d(3, 16, 3, padding=1), (2, 3, 17, 19)),
    "with strides that leave rows out": (nn.Conv2d(3, 32, 3, stride=2, padding=1), (1, 3, 34, 35)),
    "of rows and columns padded unlike": (nn.Conv2d(5, 20, (5, 3), padding=(3, 1)), (1, 5, 20, 23)),
    "of one channel": (nn.Conv2d(1, 40, 5, padding=2, bias=False), (1, 1, 28, 28)),
    "dilated down": (nn.Conv2d(10, 16, 3, padding=(2, 1), dilation=(2, 1)), (1, 10, 18, 17)),
    "padded by more than the window": (nn.Conv2d(4, 24, 3, padding=5), (1, 4, 12, 13)),
}


@pytest.mark.parametrize("name", NARROW)
def test_a_convolution_of_few_channels_sees_nothing_outside(name: str) -> None:
    torch.manual_seed(0)
    net, shape = NARROW[name]
    # What comes before writes inside the border, or is copied there.
    for whole in (net, nn.Sequential(nn.Conv2d(shape[1], shape[1], 1), nn.ReLU(), net, nn.Tanh())):
        for order in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(shape).contiguous(memory_format=order)
            convolutions = [one for one in kernels(whole.eval(), x) if isinstance(one, ConvKernel)]
            assert [one.schedule.merge_columns for one in convolutions if one.window.size != (1, 1)] == [True]
            assert not any(one.sees_outside for one in convolutions)


def test_few_channels_of_few_pixels_or_many_images_look_outside() -> None:
    for shape in ((1, 3, 8, 8), (64, 3, 4, 4)):
        [convolution] = [
            one for one in kernels(nn.Conv2d(3, 16, 3, padding=1), torch.randn(shape)) if isinstance(one, ConvKernel)
        ]
        assert convolution.sees_outside


def test_images_that_several_read_are_right_inside_a_border() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head, self.beside = (
                nn.Conv2d(4, 32, 1),
                nn.Conv2d(32, 3, 3, padding=1),
                nn.Conv2d(32, 3, 1),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            images = self.first(x)
            return self.head(images) + self.beside(images) + images[:, :3].mul(2)

    assert "dot" in ways(kernels(Two(), torch.randn(2, 4, 16, 18)))


def test_batch_norm_and_relu_behind_a_transposed_convolution_are_in_its_kernels() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(24)
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
        tensor.uniform_(0.5, 1.5)
    for groups in (1, 2):
        net = nn.Sequential(
            nn.ConvTranspose2d(16, 24, 3, 2, 1, groups=groups), norm, nn.ReLU(), nn.Conv2d(24, 32, 1)
        ).eval()
        found = [kernel for kernel in kernels(net, torch.randn(2, 16, 7, 9)) if isinstance(kernel, ConvKernel)]
        assert len(found) == 5
        for kernel in found[:4]:
            assert kernel.epilogue.bias is not None
            assert [instruction.op for instruction in kernel.epilogue.body] == ["relu"]


def test_what_differs_from_pixel_to_pixel_is_added_behind_a_transposed_convolution() -> None:
    class Up(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.beside = nn.ConvTranspose2d(16, 24, 2, 2), nn.Conv2d(8, 24, 1)
            self.scale = nn.Parameter(torch.rand(24, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = nn.functional.pad(x[:, :8], (0, x.shape[3], 0, x.shape[2]))
            return torch.relu(self.beside(wide) + self.up(x) * self.scale)

    kernels(nn.Sequential(Up(), nn.Conv2d(24, 16, 1)), torch.randn(2, 16, 7, 6))


def test_a_transposed_convolution_of_single_pixels_is_a_product() -> None:
    for net in (nn.ConvTranspose2d(20, 24, 4), nn.ConvTranspose2d(20, 6, (5, 3), stride=2, padding=1)):
        found = kernels(nn.Sequential(net, nn.ReLU()), torch.randn(3, 20, 1, 1))
        assert ways(found) == []
        assert any(isinstance(kernel, GemmKernel) for kernel in found)
    # Rows behind the window get nothing.
    assert ways(kernels(nn.ConvTranspose2d(20, 24, 3, stride=2, output_padding=1), torch.randn(2, 20, 1, 1)))


def test_shuffled_pixels_keep_their_channels_side_by_side() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(8, 36, 1), nn.PixelShuffle(3), nn.ReLU(), nn.Conv2d(4, 16, 1))
    found = kernels(net, torch.randn(2, 8, 6, 5))
    assert ways(found) == ["channels", "channels"]
    loops = [kernel for kernel in found if isinstance(kernel, LoopKernel)]
    assert len(loops) == 4  # the input and the output are turned, the pixels shuffled, relu done


def test_convolutions_of_images_that_vary_in_number_do_not_go_in_stages() -> None:
    """Stages take the patches of all images there may be through memory, whatever a call has."""
    net = nn.Conv2d(256, 256, 3, padding=1, bias=False)
    graph = run_pipeline(lift(weft.program(weft.hybridize(net), torch.randn(16, 256, 4, 4)).graph))
    [region] = find_regions(graph, frozenset(graph.inputs[1:]))
    kinds = [
        {type(call.kernel) for call in fuse(region, host_target(), varies=varies).plan.calls}
        for varies in (False, True)
    ]
    if WinogradStage not in kinds[0]:
        pytest.skip("blocks of patches fit the caches of this machine")
    assert WinogradStage not in kinds[1]
