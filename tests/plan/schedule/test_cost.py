"""Estimated times: more work takes longer, real rates are never exceeded, and models survive being written down."""

from dataclasses import replace

import pytest
from tests.plan.schedule.test_lanes import elementwise, product, towers

from weft.errors import UsageError
from weft.plan.form.dependencies import Footprints
from weft.plan.form.plan import Buffer, Location, Plan
from weft.plan.kernels.expression import Instruction
from weft.plan.kernels.gemm import Epilogue, GemmKernel, Matrix, choose_schedule
from weft.plan.kernels.loop import LoopKernel
from weft.plan.plan_text import plan_text
from weft.plan.schedule.cost import (
    PlanCosts,
    computing_seconds,
    default_model,
    kernel_seconds,
    parse_model,
)
from weft.target import cross_target

TARGET = cross_target("x86_64")
MODEL = default_model(TARGET)


def test_a_product_takes_at_least_its_multiply_adds() -> None:
    kernel = product(Location(0), 1, 2, (256, 512)).kernel
    least = 256 * 512 * 512 / MODEL.multiply_adds
    assert least <= kernel_seconds(kernel, MODEL) <= 3 * least


def test_twice_the_rows_take_about_twice_the_time() -> None:
    once, twice = (kernel_seconds(product(Location(0), 1, 2, (rows, 256)).kernel, MODEL) for rows in (128, 256))
    assert 1.8 <= twice / once <= 2.2


def test_a_loop_over_much_memory_takes_what_memory_takes() -> None:
    count = 1 << 24
    assert kernel_seconds(elementwise(0, 1, count).kernel, MODEL) == pytest.approx(8 * count / MODEL.memory, rel=0.2)


def test_dear_ops_take_longer() -> None:
    kernel = elementwise(0, 1, 4096).kernel
    assert isinstance(kernel, LoopKernel)
    dear = replace(kernel, body=(Instruction("tanh", (0,), "f32"),))
    assert kernel_seconds(dear, MODEL) > 2 * kernel_seconds(kernel, MODEL)


def test_weights_that_fit_no_cache_come_from_memory() -> None:
    plan = towers(2, 1)
    touched = Footprints(plan).boxes_of(0)
    assert PlanCosts(plan, replace(MODEL, l3_bytes=1024)).cost(plan.calls[0], touched).from_memory > 0
    assert PlanCosts(plan, MODEL).cost(plan.calls[0], touched).from_memory == 0


def test_what_a_call_moves_comes_from_memory_where_all_that_is_in_use_fits_no_cache() -> None:
    plan = Plan(
        (Buffer("input", 0, 1 << 22), *(Buffer("arena", number, 1 << 22) for number in range(3))),
        tuple(elementwise(out, source, 1 << 20) for out, source in ((1, 0), (2, 1), (3, 2), (1, 3))),
    )
    touched = Footprints(plan).boxes_of(0)
    small, large = replace(MODEL, l3_bytes=9 << 20), replace(MODEL, l3_bytes=13 << 20)
    assert PlanCosts(plan, small).cost(plan.calls[0], touched).from_memory > 0
    assert PlanCosts(plan, large).cost(plan.calls[0], touched).from_memory == 0


@pytest.mark.parametrize(("rows", "columns"), [(640, 16), (630, 48)])
def test_blocks_of_any_shape_take_little_more_than_their_multiply_adds(rows: int, columns: int) -> None:
    steps = 2048
    schedule = choose_schedule("f32", (rows, columns, steps), TARGET)
    near, far = Matrix((), columns, 1), Matrix((), steps, 1)
    kernel = GemmKernel("product", "f32", (), rows, columns, steps, far, near, near, Epilogue(), schedule)
    least = rows * columns * steps / MODEL.multiply_adds
    assert least <= computing_seconds(kernel, MODEL) <= 1.1 * least


def test_a_model_is_read_back_from_its_text() -> None:
    model = replace(MODEL, multiply_adds=1.5e10, wait=3e-7)
    assert parse_model(str(model), TARGET) == model


@pytest.mark.parametrize("text", ["", "wait", "wait fast", str(MODEL).replace("1.5e-06", "0")])
def test_a_damaged_model_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="model"):
        parse_model(text, TARGET)


def test_a_plan_is_printed_with_times_lanes_and_memory() -> None:
    lines = plan_text(towers(2, 32), MODEL).splitlines()
    assert lines[0].startswith("plan of 6 calls, ")
    assert "gemm 32x128x128 in " in lines[1]
    assert lines[1].endswith("arena0 = f(input0, constant0)")
    assert lines[-2].startswith("  lane 0: 0, 1, 2, 3, 4, 5")
    assert lines[-1].startswith("  arena of 0 bytes, ")
