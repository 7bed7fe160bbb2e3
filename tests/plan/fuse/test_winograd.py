"""Convolutions computed Winograd's way inside of programs: packed weights, what follows them, gradients, exactness."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import weft
from weft.config import overrides
from weft.plan.fuse.convolutions import winograd_way
from weft.plan.kernels.conv import ConvSizes
from weft.plan.kernels.images import ImageWindow
from weft.target import host_target

CHANNELS = 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) * 0.5 + x)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def assert_exact(net: nn.Module, found: torch.Tensor, x: torch.Tensor) -> None:
    with torch.no_grad():
        eager = net(x)
        exact = net.double()(x.double())
        net.float()
    assert error(found, exact) <= 2 * error(eager, exact) + 1e-7
    assert found.stride() == eager.stride()


def kernels(net: nn.Module, x: torch.Tensor) -> list[str]:
    with torch.no_grad():
        plans = weft.program(net, x).plan.regions
    return [type(call.kernel).__name__ for plan in plans for call in plan.calls]


@pytest.mark.parametrize("size", [(9, 11), (14, 14), (1, 40)], ids=str)
def test_a_block_of_convolutions_is_as_exact_as_eager_and_sees_new_weights(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    net, x = Block(), torch.randn(3, CHANNELS, *size)
    assert kernels(net, x).count("WinogradKernel") == 2
    program = weft.hybridize(net)
    plain = Block()
    for _ in range(2):
        with torch.no_grad():
            found = program(x)
            plain.load_state_dict(net.state_dict())
            assert_exact(plain, found, x)
            net.second.weight.mul_(-0.5)


def test_gradients_through_it_are_those_of_eager() -> None:
    torch.manual_seed(0)
    net, x = Block(), torch.randn(2, CHANNELS, 10, 10, requires_grad=True)
    expected = torch.autograd.grad(net(x).square().sum(), [x, *net.parameters()])
    found = torch.autograd.grad(weft.hybridize(net)(x).square().sum(), [x, *net.parameters()])
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4 * float(right.abs().max()))


@pytest.mark.parametrize("padding", [0, 1, 2, (2, 0)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_a_gradient_without_steps_is_such_a_convolution_with_the_window_reversed(
    padding: int | tuple[int, int], bias: bool
) -> None:
    torch.manual_seed(0)
    net, x = nn.ConvTranspose2d(CHANNELS, 48, 3, padding=padding, bias=bias), torch.randn(2, CHANNELS, 9, 12)
    assert "ConvKernel" not in kernels(net, x)
    with torch.no_grad():
        found = weft.hybridize(net)(x)
        net.weight.mul_(-0.5)
        changed = weft.hybridize(net)(x)
        assert_exact(net, changed, x)
        net.weight.mul_(-2)
        assert_exact(net, found, x)


def test_weights_that_are_computed_are_transformed_in_the_call() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, CHANNELS, 12, 12), torch.randn(CHANNELS, CHANNELS, 3, 3)

    def convolve(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, weight * 2, padding=1)

    found = weft.hybridize(convolve)(x, weight)
    exact = convolve(x.double(), weight.double())
    assert error(found, exact) <= 2 * error(convolve(x, weight), exact) + 1e-7


def test_it_is_taken_for_windows_of_three_by_three_and_float32_alone() -> None:
    target, size = host_target(), (28, 28)
    assert winograd_way(ConvSizes("f32", 8, 64, 64, size, ImageWindow((3, 3), padding=(1, 1))), target)[0] == "blocks"
    for element, window in (
        ("f64", ImageWindow((3, 3), padding=(1, 1))),
        ("f32", ImageWindow((5, 5), padding=(2, 2))),
        ("f32", ImageWindow((3, 3), stride=(2, 2))),
        ("f32", ImageWindow((3, 3), dilation=(2, 2))),
    ):
        assert winograd_way(ConvSizes(element, 8, 64, 64, size, window), target) == ("direct", 0)


def test_few_channels_on_either_side_are_worth_the_transforms_and_fewer_are_not() -> None:
    target, window = host_target(), ImageWindow((3, 3), padding=(1, 1))
    for channels, ways in (
        ((12, 48), {"blocks"}),
        ((48, 16), {"blocks"}),
        ((11, 64), {"direct"}),
        ((64, 11), {"direct"}),
    ):
        assert winograd_way(ConvSizes("f32", 2, *channels, (28, 28), window), target)[0] in ways


def test_products_that_no_block_holds_go_through_memory_and_give_the_same_bits_on_any_lanes() -> None:
    torch.manual_seed(0)
    channels, x = 320, torch.randn(1, 320, 8, 7).relu()
    net = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())
    target = replace(host_target(), cores=2, l2_bytes=2 << 20)
    sizes = ConvSizes("f32", 1, channels, channels, (8, 7), ImageWindow((3, 3), padding=(1, 1)))
    assert winograd_way(sizes, target) == ("stages", 16)
    found = []
    for threads in (1, 2, 4):
        with torch.no_grad(), overrides(threads=threads):
            found.append(weft.hybridize(net)(x))
    assert_exact(net, found[0], x)
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.usefixtures("no_kept_plans")
@pytest.mark.parametrize(("size", "way"), [(7, "ConvKernel"), (14, "WinogradStage")], ids=["few", "many"])
def test_few_pixels_go_directly_where_weights_come_from_memory(
    size: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 4 MB of transformed weights, of a program that is taken to have more than the shared caches hold.
    monkeypatch.setattr("weft.plan.fuse.convolutions.FAR_WEIGHT_BYTES", 0)
    net, x = nn.Conv2d(256, 256, 3, padding=1), torch.randn(1, 256, size, size)
    assert way in kernels(net, x)
