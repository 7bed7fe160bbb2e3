"""How reductions are planned: what merges, which way vectors run, what is cut into chunks."""

from dataclasses import replace

import pytest

from weft.plan.fuse.split_reductions import plan_reduction
from weft.plan.kernels.expression import View
from weft.plan.kernels.reduce import Finish, Reduction, RowExpression, RowPass, Store, plan_rows, simplified_rows
from weft.target import host_target

Sizes = tuple[int, ...]


def total(rows: Sizes, columns: Sizes, x: Sizes, output: Sizes, kind: str = "sum") -> RowExpression:
    stages = (RowPass((), (Reduction(kind, 0),)), Finish((), (), (Store(0, 2),)))
    result = "i64" if kind.startswith("arg") else "f32"
    padded = (*output, *(0 for _ in columns))
    return RowExpression("total", rows, columns, (View(result, padded),), (View("f32", x),), stages)


def test_rows_and_columns_merge_apart() -> None:
    simple = simplified_rows(total((2, 3), (4, 5), (60, 20, 5, 1), (3, 1)))
    assert (simple.rows, simple.columns) == ((6,), (20,))
    assert simple.inputs[0].strides == (20, 1)


def test_columns_are_sorted_as_the_input_lies_in_memory() -> None:
    simple = simplified_rows(total((2,), (4, 5), (20, 1, 4), (1,)))
    assert (simple.columns, simple.inputs[0].strides) == ((20,), (20, 1))


def test_columns_keep_their_order_where_a_place_is_asked_for() -> None:
    simple = simplified_rows(total((2,), (4, 5), (20, 1, 4), (1,), "argmax"))
    assert simple.columns == (4, 5)


def test_vectors_run_along_what_is_contiguous() -> None:
    assert not plan_rows(total((64,), (64,), (64, 1), (1,)), host_target()).schedule.along_rows
    assert plan_rows(total((64,), (64,), (1, 64), (1,)), host_target()).schedule.along_rows


def test_vectors_run_along_what_is_contiguous_beside_numbers_of_each_column() -> None:
    alone = total((64,), (64,), (1, 64), (1,))
    beside = (*alone.inputs, View("f32", (0, 1)), View("f32", (0, 1)))
    stages = (RowPass((), (Reduction("sum", 0),)), Finish((), (), (Store(0, 4),)))
    assert plan_rows(replace(alone, inputs=beside, stages=stages), host_target()).schedule.along_rows


def test_a_sum_across_rows_of_memory_is_cut_sooner_than_one_along_them() -> None:
    across, along = total((256,), (256,), (1, 256), (1,)), total((8,), (8192,), (8192, 1), (1,))
    assert len(plan_reduction(across, host_target()).calls) == 2
    assert len(plan_reduction(along, host_target()).calls) == 1


def test_a_space_without_rows_has_no_tiles() -> None:
    assert plan_rows(total((0,), (5,), (5, 1), (1,)), host_target()).tile_count == 0
    assert plan_rows(total((0,), (5,), (1, 0), (1,)), host_target()).tile_count == 0


def test_many_rows_are_one_kernel() -> None:
    assert len(plan_reduction(total((4096,), (4096,), (4096, 1), (1,)), host_target()).calls) == 1


def test_one_long_row_is_cut_and_joined() -> None:
    plan = plan_reduction(total((1,), (1_000_001,), (0, 1), (0,)), host_target())
    assert [call.kernel.name for call in plan.calls] == ["total.chunks", "total.rest", "total.joined"]
    assert plan.calls[0].buffers == (2, 1)
    assert plan.calls[-1].buffers == (0, 1, 2)
    assert plan.scratch[0].elements == 16


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_places_are_not_cut(kind: str) -> None:
    assert len(plan_reduction(total((1,), (1_000_001,), (0, 1), (0,), kind), host_target()).calls) == 1
