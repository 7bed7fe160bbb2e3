"""Transformed weights of 3x3 windows lie where the products read them, to the bit, however the tiles are split."""

import pytest
import torch
from tests.codegen.kernel_cases import assert_untouched, compiled, guarded, targets

from weft.codegen.kernels.winograd import emit_winograd_weights
from weft.plan.kernels.walk import Blocks, cut
from weft.plan.kernels.winograd import PRODUCTS, WinogradWeightKernel
from weft.target import Target

TARGETS = targets()
LINES = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64)


def transformed(weight: torch.Tensor) -> torch.Tensor:
    """The 16 matrices of input by output channels; the sums are exact where a weight has few bits."""
    return (LINES @ weight.double() @ LINES.T).float().permute(2, 3, 1, 0).reshape(PRODUCTS, *weight.shape[1::-1])


def packed(matrices: torch.Tensor, panels: Blocks, lanes: int) -> torch.Tensor:
    rows, columns = matrices.shape[1:]
    whole = torch.zeros(PRODUCTS, rows, panels.total * lanes)
    whole[..., :columns] = matrices
    cuts = [(panels.start(number) * lanes, panels.start(number + 1) * lanes) for number in range(panels.count)]
    return torch.cat([whole[..., first:stop].reshape(PRODUCTS, -1) for first, stop in cuts], dim=1)


def weights_of_few_bits(*shape: int) -> torch.Tensor:
    return torch.randint(-512, 512, shape) / 64


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
@pytest.mark.parametrize("channels", [(64, 64), (37, 80), (5, 33), (100, 21), (16, 1)], ids=str)
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("turned", [False, True], ids=["forward", "backward"])
def test_each_vector_of_each_panel_is_written(
    target: Target, channels: tuple[int, int], scaled: bool, turned: bool
) -> None:
    into, out = channels
    lanes = target.lanes(32)
    panels = cut(-(-out // lanes), 4)
    weight = weights_of_few_bits(into, out, 3, 3) if turned else weights_of_few_bits(out, into, 3, 3)
    seen = weight.transpose(0, 1).flip(2, 3) if turned else weight
    strides, offset = ((9, 9 * out, -3, -1), 8) if turned else ((9 * into, 9, 3, 1), 0)
    kernel = WinogradWeightKernel("prepare", "f32", out, into, strides, lanes, panels, offset, scaled)
    scale = weights_of_few_bits(out)
    call = compiled(target, lambda module: emit_winograd_weights(module, kernel))
    found, whole = guarded(PRODUCTS, kernel.packed_size)
    given = (found, weight, scale) if scaled else (found, weight)
    half = kernel.tile_count // 2
    call("prepare", *given, begin=half, end=kernel.tile_count)
    call("prepare", *given, begin=0, end=half)
    expected = packed(transformed(seen) * (scale if scaled else 1), panels, lanes)
    assert torch.equal(found, expected)
    assert_untouched(whole)
