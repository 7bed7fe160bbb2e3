"""How loops are planned: which dimensions merge, which one vectors run along, how tiles cut the space."""

import pytest

from weft.plan.kernels.expression import Instruction, View, explicit_rounding
from weft.plan.kernels.loop import LoopExpression, plan_loop, simplified, vector_bits
from weft.target import host_target

NEGATE = (Instruction("neg", (0,), "f32"),)


def expression(sizes: tuple[int, ...], output: tuple[int, ...], *inputs: tuple[int, ...]) -> LoopExpression:
    views = tuple(View("f32", strides) for strides in inputs)
    return LoopExpression("kernel", sizes, (View("f32", output),), views, NEGATE, (len(inputs),))


def test_contiguous_dimensions_merge_into_one() -> None:
    simple = simplified(expression((4, 5, 6), (30, 6, 1), (30, 6, 1)))
    assert simple.sizes == (120,)
    assert simple.inputs[0].strides == (1,)


def test_dimensions_that_one_view_repeats_stay_apart() -> None:
    simple = simplified(expression((4, 5, 6), (30, 6, 1), (0, 6, 1)))
    assert simple.sizes == (4, 30)
    assert simple.inputs[0].strides == (0, 1)


def test_dimensions_are_sorted_as_the_output_lies_in_memory() -> None:
    simple = simplified(expression((4, 5), (1, 4), (5, 1)))
    assert simple.sizes == (5, 4)
    assert simple.inputs[0].strides == (1, 5)


def test_dimensions_of_size_one_vanish_and_a_point_remains() -> None:
    assert simplified(expression((1, 1), (1, 1), (1, 1))).sizes == (1,)


def test_positions_follow_the_dimensions() -> None:
    body = (Instruction("iota", (), "i64", (100, 1, 5)),)
    loop = LoopExpression("kernel", (4, 5), (View("i64", (1, 4)),), (), body, (0,))
    assert simplified(loop).body[0].attributes == (1, 100, 5)


def test_what_an_input_runs_along_comes_beside_what_the_output_runs_along() -> None:
    apart = expression((40, 50, 60), (3000, 60, 1), (1, 40, 2000))
    kernel = plan_loop(apart, host_target())
    assert kernel.sizes == (50, 40, 60)
    assert kernel.outputs[0].strides == (60, 3000, 1)
    assert kernel.inputs[0].strides == (40, 1, 2000)
    assert kernel.schedule.transposed == (0,)
    assert plan_loop(expression((40, 50, 2), (100, 2, 1), (1, 40, 2000)), host_target()).sizes == (40, 50, 2)


@pytest.mark.parametrize("sizes", [(0,), (5, 0), (0, 5)])
def test_a_space_without_points_has_no_tiles(sizes: tuple[int, ...]) -> None:
    strides = (1,) * len(sizes)
    assert plan_loop(expression(sizes, strides, strides), host_target()).tile_count == 0


@pytest.mark.parametrize("sizes", [(1,), (17,), (1 << 20,), (300, 77), (3, 5, 7)])
def test_tiles_cover_every_point(sizes: tuple[int, ...]) -> None:
    strides = tuple(reversed([2 * 400**place for place in range(len(sizes))]))
    kernel = plan_loop(expression(sizes, strides, strides), host_target())
    tiles = kernel.schedule.row_tile * kernel.schedule.column_tile * kernel.tile_count
    assert tiles >= kernel.rows * kernel.columns
    assert kernel.columns <= kernel.schedule.column_tile or kernel.schedule.column_tile % kernel.schedule.lanes == 0


def test_lanes_are_counted_by_the_widest_float() -> None:
    assert vector_bits(["u8", "f32", "i64"]) == 32
    assert vector_bits(["f32", "f64"]) == 64
    assert vector_bits(["u8", "bool"]) == 8
    assert vector_bits(["i64"]) == 32


def test_explicit_rounding_leaves_other_dtypes_alone() -> None:
    body, results = explicit_rounding(["f32"], NEGATE, [1])
    assert (body, results) == (NEGATE, (1,))


def test_explicit_rounding_widens_a_value_once() -> None:
    body = [
        Instruction("mul", (0, 0), "f16"),
        Instruction("gt", (1, 0), "bool"),
        Instruction("select", (2, 0, 1), "f16"),
    ]
    made, results = explicit_rounding(["f16"], body, [3])
    assert [line.op for line in made] == ["cast", "mul", "cast", "cast", "gt", "select"]
    assert made[-1].operands == (5, 0, 3)
    assert results == (6,)
