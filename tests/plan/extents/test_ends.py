"""A loop ends by the size that leaves out most, whatever order the sizes come in that it could end by."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from bench.general import general_alone
from tests.plan.general_calls import general_calls
from torch import nn

import weft
from weft.ir.extents import Polynomial
from weft.ir.graph import Value
from weft.ir.types import NumberType
from weft.plan.extents.ends import CallEnds, follows
from weft.plan.extents.hidden import Hidden
from weft.plan.extents.parts import Part
from weft.plan.form.plan import KernelCall, Location
from weft.plan.kernels.conv import ConvKernel
from weft.plan.kernels.expression import Instruction, View
from weft.plan.kernels.loop import LoopExpression, LoopKernel, plan_loop
from weft.target import host_target

COUNT = 40
ITEM = 4  # bytes of a float


def size(name: str) -> Polynomial:
    return Polynomial.atom(Value("input", (), NumberType("int"), name=name))


def negated() -> KernelCall:
    view = View("f32", (1,))
    expression = LoopExpression("negated", (COUNT,), (view,), (view,), (Instruction("neg", (0,), "f32"),), (1,))
    return KernelCall(plan_loop(expression, host_target()), (Location(1),), (Location(0),))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_what_never_ends_is_chosen_by_no_order(order: tuple[int, ...]) -> None:
    places = np.arange(COUNT, dtype=np.int32)
    parts = [
        Part(ITEM, size("half"), np.where(places < 8, 0, places // 2).astype(np.int32)),
        Part(ITEM, size("own"), places),
        Part(ITEM, size("far"), np.zeros(COUNT, np.int32)),
    ]
    call = negated()
    found = CallEnds(call, Hidden(call, {}, {}), {}).found({0: {parts[at].key: parts[at] for at in order}}, {})
    assert [(str(end.size), end.more, end.times) for end in found.values()] == [("own", 0, 1)]


def test_a_convolution_to_few_channels_goes_along_its_inputs_and_ends_with_the_image() -> None:
    module = nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 4, 3, padding=1))
    kernels = [(call.kernel, call.ends) for call in general_calls(module, (1, 3, 50, 61), (1, 3, 64, 80))]
    ((kernel, ends),) = [
        (kernel, ends) for kernel, ends in kernels if isinstance(kernel, ConvKernel) and kernel.way == "dot"
    ]
    assert kernel.out_channels == 4
    assert [end.is_exact for end in ends] == [True, True]


def test_rows_of_images_are_left_out_by_whole_tiles() -> None:
    calls = general_calls(nn.Conv2d(16, 20, 1), (2, 16, 50, 61), (2, 16, 64, 80))
    loops = [call.kernel for call in calls if isinstance(call.kernel, LoopKernel) and len(call.kernel.sizes) > 2]
    ending = [kernel for kernel in loops if len(kernel.sizes) - 2 in kernel.ends]
    assert ending
    assert [kernel.line for kernel in ending] == [kernel.sizes[-2] for kernel in ending]


@pytest.mark.parametrize("images", [1, 2, 3, 4, 5, 7, 9, 12])
def test_few_images_are_half_a_block(images: int) -> None:
    torch.manual_seed(0)
    module = nn.Conv2d(64, 64, 3, padding=1).eval()
    net = weft.hybridize(module.forward)
    with torch.no_grad(), general_alone():
        for count in (10, 13, images):
            x = torch.randn(count, 64, 4, 4)
            torch.testing.assert_close(net(x), module(x), rtol=1e-4, atol=1e-5)
    assert sum(program.calls.count for program in net.varying) or images == 1


@pytest.mark.parametrize("out", [1, 4, 32])
@pytest.mark.parametrize("groups", [1, 4])
def test_rows_of_any_length_end_in_a_block_or_half_of_one(groups: int, out: int) -> None:
    torch.manual_seed(1)
    module = nn.Conv2d(16, out * groups, 3, padding=1, groups=groups).eval()
    net = weft.hybridize(module.forward)
    with torch.no_grad(), general_alone():
        for width in (50, 64, *range(1, 34)):
            x = torch.randn(1, 16, 5, width)
            torch.testing.assert_close(net(x), module(x), rtol=1e-4, atol=1e-5)


def test_an_odd_count_of_places_is_no_whole_rows_of_two() -> None:
    row = 2048
    for images, rows, expected in ((1, 69, True), (3, 69, False), (3, 70, True)):
        counts, steps = (images, rows, 64), (rows * row, row, 32)
        assert follows(counts, steps, 1, 0, row)
        assert follows(counts, steps, 1, 0, 2 * row) == expected


@pytest.mark.parametrize("images", [1, 2, 3, 5])
@pytest.mark.parametrize("bottom", [0, 1, 2])
def test_rows_that_every_second_window_sees_are_computed_of_each_image(images: int, bottom: int) -> None:
    first, second = nn.Conv2d(16, 8, 3, 2, 1), nn.Conv2d(8, 4, 3, 2, 1)

    def smaller(x: torch.Tensor) -> torch.Tensor:
        return second(first(nn.functional.pad(x, (0, 0, 0, bottom))))

    hybrid: Any = weft.hybridize(smaller)
    with torch.no_grad():
        for height, width in ((30, 31), (40, 36), (20, 17), (33, 36), (21, 20)):
            x = torch.randn(images, 16, height, width)
            torch.testing.assert_close(hybrid(x), smaller(x), rtol=1e-4, atol=1e-5)
    assert [*hybrid.varying]
