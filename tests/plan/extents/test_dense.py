"""Which buffers lie without gaps at any sizes, and what kernels are told of them."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.api.test_varying_threads import one_general_program
from tests.plan.general_calls import general_plan
from torch import nn

from weft.ir.extents import Polynomial
from weft.ir.graph import Value
from weft.ir.types import NumberType
from weft.passes.within import Factor, Within
from weft.plan.check import check_plan
from weft.plan.extents.dense import digits_of, read_digits
from weft.plan.form.plan import Pitch, Plan

HEIGHT, WIDTH = (Polynomial.atom(Value("input", (), NumberType("int"), name=name)) for name in ("height", "width"))
ONE = Polynomial.constant(1)


def lying(order: tuple[int, ...], within: Within) -> tuple[list[int], list[Polynomial]]:
    """The strides of dimensions, the outermost in memory first: at the largest sizes, and at any."""
    strides, own = [0] * len(order), [ONE] * len(order)
    step, size = 1, ONE
    for place in reversed(order):
        strides[place], own[place] = step, size
        for factor in within[place]:
            step, size = step * factor.largest, size.times(factor.size or Polynomial.constant(factor.largest))
    return strides, own


IMAGES: Within = ((Factor(2),), (Factor(3),), (Factor(8, HEIGHT),), (Factor(5, WIDTH),))


@pytest.mark.parametrize("order", [*permutations(range(4))], ids=str)
def test_a_stride_tells_the_dimension_in_any_order(order: tuple[int, ...]) -> None:
    strides, own = lying(order, IMAGES)
    digits = digits_of([step * 4 for step in strides], own, IMAGES, 4)
    assert digits is not None
    sizes = {HEIGHT: 7, WIDTH: 3}
    for place, step in enumerate(strides):
        (found,) = [
            (digit, count) for digit, count in zip(digits, read_digits(4 * step, digits) or (), strict=True) if count
        ]
        pitch = found[0].pitch(found[1], 4, {HEIGHT: 0, WIDTH: 1})
        assert pitch is not None
        number = pitch.number
        for size in pitch.sizes:
            number *= (7, 3)[size]
        expected = 1
        for inner in order[order.index(place) + 1 :]:
            expected *= sum(sizes[one.size] if one.size else one.largest for one in IMAGES[inner])
        assert number == expected


def test_gaps_are_no_digits() -> None:
    strides, own = lying((0, 1, 2, 3), IMAGES)
    assert digits_of([step * 4 for step in strides[:3]] + [8], own, IMAGES, 4) is None
    assert digits_of([step * 4 for step in strides], [*own[:2], WIDTH.times(HEIGHT), ONE], IMAGES, 4) is None
    larger = [4 * strides[0], 4 * strides[1] + 4, 4 * strides[2], 4]
    assert digits_of(larger, own, IMAGES, 4) is None


def test_a_dimension_of_one_goes_nowhere() -> None:
    within: Within = ((), (Factor(8, HEIGHT),), (), (Factor(5, WIDTH),))
    digits = digits_of([999, 20, 7, 4], [WIDTH, WIDTH, HEIGHT, ONE], within, 4)
    assert digits is not None
    assert [(one.stride, one.largest, one.varies) for one in digits] == [(20, 8, True), (4, 5, False)]


def test_parts_of_one_dimension_are_digits_too() -> None:
    within: Within = ((Factor(4), Factor(8, HEIGHT)), (Factor(3),))
    digits = digits_of([12, 4], [Polynomial.constant(3), ONE], within, 4)
    assert digits is not None
    assert [(one.stride, one.whole, one.size) for one in digits] == [(96 * 1, 4, None), (4, 3, HEIGHT)]
    assert digits[0].pitch(1, 4, {HEIGHT: 9}) == Pitch(3, (9,))
    assert digits[0].pitch(1, 4, {}) is None


def dense(plan: Plan) -> set[str]:
    check_plan(plan)
    assert {*plan.dense} <= {*plan.tight}
    return {f"{plan.buffers[number].kind}{plan.buffers[number].index}" for number in plan.dense}


class Called(nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)  # type: ignore[operator]


BOTH = {"input", "output"}
CASES: dict[str, tuple[nn.Module, set[str]]] = {
    "elementwise": (Called(lambda x: torch.tanh(x) * 2), BOTH),
    "transposed": (Called(lambda x: x.permute(0, 2, 3, 1).contiguous()), BOTH),
    "mean of windows": (nn.AvgPool2d(2), BOTH),
    "maximum of windows": (nn.MaxPool2d(3, 2, 1), BOTH),
    "convolution": (nn.Conv2d(8, 16, 3, padding=1), BOTH),
    "convolution of pixels": (nn.Conv2d(8, 40, 1), BOTH),
    "convolution with a stride": (nn.Conv2d(8, 16, 3, 2, padding=1), BOTH),
    "padded": (Called(lambda x: F.pad(x, (1, 2, 0, 1))), {"output"}),
    "also given to an operator": (Called(lambda x: (x * 2 + 1, torch.cumsum(x, 3))), {"output"}),
    "reversed": (Called(lambda x: x.flip(2) * 2), {"output"}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_all_kernels_can_touch_as_it_lies_is_dense(name: str) -> None:
    module, expected = CASES[name]
    with one_general_program():
        plan = general_plan(module, (2, 8, 40, 36), (2, 8, 48, 48))
    assert {found.rstrip("0123456789") for found in dense(plan)} >= expected


def test_where_only_the_outermost_dimension_varies_nothing_needs_to_be_told() -> None:
    with one_general_program():
        plan = general_plan(Called(lambda x: torch.tanh(x) * 2), (40, 8, 6), (48, 8, 6))
    assert not plan.dense
    assert plan.tight
