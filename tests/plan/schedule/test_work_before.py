"""How much of a kernel's work its tiles are: those at the edges count for what they are, not as whole ones."""

from dataclasses import replace
from itertools import pairwise

import pytest
from tests.plan.kernels.test_boxes import kernels_of
from tests.plan.plan_runner import TARGET

from weft.plan.form.plan import Buffer, KernelCall, Location, Plan, Run
from weft.plan.kernels.attention import AttentionKernel
from weft.plan.kernels.gemm import Epilogue, GemmKernel, Matrix, choose_schedule
from weft.plan.kernels.kernel import Kernel
from weft.plan.schedule.cost import MOST_TILES, default_model, work_before
from weft.plan.schedule.lanes import Scheduling

GRAPHS = {
    "product": """graph m(%x: f32[37,40], %w: f32[40,96]) {
  %1: f32[37,96] = matmul %x, %w
  return %1
}""",
    "products": """graph m(%q: f32[2,3,37,8], %k: f32[2,3,8,96]) {
  %1: f32[2,3,37,96] = matmul %q, %k
  return %1
}""",
    "loop": """graph m(%x: f32[41,50]) {
  %1: f32[41,50] = tanh %x
  return %1
}""",
    "turned loop": """graph m(%x: f32[3,40,50], %y: f32[3,50,40]) {
  %1: f32[3,40,50] = permute %y, order=[0, 2, 1]
  %2: f32[3,40,50] = mul %x, %1
  return %2
}""",
    "sums along rows": """graph m(%x: f32[13,5,40]) {
  %1: f32[13,40] = sum %x, dimensions=[1], keep=False
  return %1
}""",
}
ATTENTION = """graph m(%q: f32[32,8], %k: f32[8,32], %v: f32[32,8]) {
  %1: f32[32,32] = matmul %q, %k
  %2: f32[32,1] = max %1, dimensions=[1], keep=True
  %3: f32[32,32] = expand %2, shape=[32, 32]
  %4: f32[32,32] = sub %1, %3
  %5: f32[32,32] = exp %4
  %6: f32[32,1] = sum %5, dimensions=[1], keep=True
  %7: f32[32,32] = expand %6, shape=[32, 32]
  %8: f32[32,32] = div %5, %7
  %9: f32[32,8] = matmul %8, %v
  return %9
}"""


def product(rows: int, vectors: int, tile_panels: int) -> GemmKernel:
    """Make a product whose panels are of one vector each, so many of them a tile."""
    columns, inner = vectors * TARGET.lanes(32), 512
    schedule = replace(choose_schedule("f32", (rows, columns, inner), TARGET), block_vectors=1)
    schedule = replace(schedule, tile_row_blocks=rows, tile_panels=tile_panels)
    matrices = (Matrix((), inner, 1), Matrix((), columns, 1), Matrix((), columns, 1))
    return GemmKernel("product", "f32", (), rows, columns, inner, *matrices, Epilogue(), schedule)


def alone(kernel: Kernel) -> Plan:
    places = tuple(Buffer(kind, index, 1 << 20) for kind, index in (("output", 0), ("input", 0), ("input", 1)))
    return Plan(places, (KernelCall(kernel, (Location(0),), (Location(1), Location(2))),))


@pytest.mark.parametrize("name", GRAPHS)
def test_the_work_of_a_tile_is_its_part_of_what_is_written(name: str) -> None:
    (kernel,) = (kernel for kernel in kernels_of(GRAPHS[name]) if kernel.tile_count > 1)
    before = work_before(kernel)
    assert before is not None
    written = [kernel.boxes(tile, tile + 1)[0].bytes for tile in range(kernel.tile_count)]
    parts = [after - first for first, after in pairwise(before)]
    assert parts == pytest.approx([size / sum(written) for size in written])
    assert before[0] == 0.0
    assert before[-1] == 1.0


def test_rows_that_see_few_keys_are_little_work() -> None:
    (kernel,) = (kernel for kernel in kernels_of(ATTENTION) if isinstance(kernel, AttentionKernel))
    kernel = replace(kernel, schedule=replace(kernel.schedule, row_block=8, key_block=8))
    before = work_before(kernel)
    assert before is not None
    assert before[1] == pytest.approx(1 / 10)  # of 8, 16, 24 and 32 keys
    assert before[4] == 1.0


def test_equal_tiles_and_many_tiles_count_alike() -> None:
    assert work_before(product(8, 8, 2)) is None
    assert work_before(product(8, 7, 2)) is not None
    assert work_before(product(8, 2 * MOST_TILES + 3, 2)) is None


def test_lanes_that_share_a_product_of_uneven_tiles_get_even_work() -> None:
    kernel = product(64, 14, 6)  # tiles of 6, 6 and 2 vectors
    scheduled = Scheduling(alone(kernel), 2, default_model(TARGET)).schedule()
    items = [[item for item in lane if isinstance(item, Run)] for lane in scheduled.plan.lanes]
    assert items == [[Run(0, 0, 1)], [Run(0, 1, 3)]]
    (first,), (second,) = scheduled.spans
    assert first[1] / second[1] == pytest.approx(6 / 8, rel=0.02)
