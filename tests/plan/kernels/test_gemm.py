"""Blockings fit the registers and caches of a target and leave tiles for all cores."""

from dataclasses import replace

import pytest

from weft.plan.kernels.gemm import choose_schedule, vector_registers
from weft.target import cross_target

TARGETS = [cross_target("x86_64", level) for level in ("avx512", "avx2", "generic")] + [cross_target("aarch64")]
IDS = [target.name for target in TARGETS]
SIZES = [(1, 1, 1), (1, 256, 512), (32, 128, 128), (7, 1000, 33), (1000, 1000, 1000), (0, 5, 5), (5, 0, 5), (5, 5, 0)]


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("element", ["f32", "f64"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sums_and_a_row_of_a_panel_fit_the_registers(target, element, sizes) -> None:
    schedule = choose_schedule(element, sizes, target)
    sums = schedule.block_rows * schedule.block_vectors * schedule.chains
    assert sums + schedule.block_vectors < vector_registers(target)
    assert schedule.lanes == target.lanes(int(element[1:]))
    assert schedule.tile_row_blocks >= 1
    assert schedule.tile_panels >= 1


def test_a_large_product_has_tiles_for_all_cores() -> None:
    target = replace(TARGETS[0], cores=16)
    schedule = choose_schedule("f32", (2000, 2000, 2000), target)
    down = -(-2000 // (schedule.block_rows * schedule.tile_row_blocks))
    across = -(-2000 // (16 * schedule.block_vectors * schedule.tile_panels))
    assert down * across >= 16


def test_a_small_product_is_one_tile() -> None:
    schedule = choose_schedule("f32", (8, 64, 64), TARGETS[0])
    assert schedule.block_rows * schedule.tile_row_blocks >= 8


@pytest.mark.parametrize(("sizes", "longest"), [((8, 256, 128), 64), ((15, 256, 128), 64), ((8, 1000, 4096), 128)])
def test_sums_of_few_rows_are_added_in_short_chains_as_eager_does(sizes, longest) -> None:
    schedule = choose_schedule("f32", sizes, TARGETS[0])
    assert schedule.inner_block // schedule.chains <= longest


def test_sums_of_many_rows_are_added_in_longer_chains() -> None:
    schedule = choose_schedule("f32", (16, 64, 512), TARGETS[0])
    assert schedule.inner_block // schedule.chains == 256


@pytest.mark.parametrize("sizes", [(1, 1024, 2304), (197, 1152, 384), (197, 384, 1536), (32, 4096, 1024)])
@pytest.mark.parametrize("cores", [2, 4])
def test_few_rows_by_weights_larger_than_the_cache_are_shared_out_evenly_by_panels(sizes, cores) -> None:
    rows, columns, _ = sizes
    schedule = choose_schedule("f32", sizes, replace(TARGETS[0], cores=cores, l2_bytes=2 * 1024 * 1024))
    panels = -(-columns // (schedule.lanes * schedule.block_vectors))
    tiles = -(-panels // schedule.tile_panels)
    busiest = min(panels, -(-tiles // cores) * schedule.tile_panels)
    assert schedule.block_rows * schedule.tile_row_blocks >= rows
    assert busiest <= 1.1 * -(-panels // cores)


def test_one_row_by_weights_that_take_long_to_fetch_has_tiles_for_several_cores() -> None:
    schedule = choose_schedule("f32", (1, 688, 256), replace(TARGETS[0], l2_bytes=2 * 1024 * 1024))
    assert schedule.tile_panels * schedule.block_vectors * schedule.lanes <= 688 // 2


@pytest.mark.parametrize("rows", [201, 256, 300, 420, 512, 700, 1000])
@pytest.mark.parametrize("columns", [512, 768, 1024])
def test_tiles_by_weights_larger_than_the_cache_are_about_as_high_as_each_other(rows, columns) -> None:
    target = replace(TARGETS[0], cores=2, l2_bytes=1024 * 1024)
    schedule = choose_schedule("f32", (rows, columns, 512), target)
    blocks = -(-rows // schedule.block_rows)
    last = (blocks - 1) % schedule.tile_row_blocks + 1
    assert last >= 0.75 * schedule.tile_row_blocks


def test_chains_of_few_rows_are_no_shorter_than_they_must_be() -> None:
    schedule = choose_schedule("f32", (8, 512, 128), TARGETS[0])
    assert schedule.inner_block // schedule.chains == 32


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("sizes", [(1, 512, 128), (2, 256, 512), (6, 512, 64), (8, 512, 128), (15, 512, 128)])
def test_few_rows_keep_the_totals_of_parts_in_registers_where_they_fit(target, sizes) -> None:
    schedule = choose_schedule("f32", sizes, target)
    places = schedule.block_rows * schedule.block_vectors
    if schedule.parts_inside:
        assert places * (schedule.chains + 1) + schedule.block_vectors < vector_registers(target)
    else:
        assert target.vector_bytes < 64


def test_parts_are_outside_where_a_panel_would_be_fetched_again_for_each_block_of_rows() -> None:
    assert choose_schedule("f32", (8, 256, 512), TARGETS[0]).parts_inside
    assert choose_schedule("f32", (15, 256, 128), TARGETS[0]).parts_inside
    assert not choose_schedule("f32", (15, 256, 2048), TARGETS[0]).parts_inside


@pytest.mark.parametrize("rows", range(7, 16))
@pytest.mark.parametrize("inner", [64, 128, 256, 300, 512])
def test_blocks_above_each_other_are_wide_and_share_a_panel_in_the_nearest_cache(rows: int, inner: int) -> None:
    target = TARGETS[0]
    schedule = choose_schedule("f32", (rows, 512, inner), target)
    if schedule.parts_inside and rows > schedule.block_rows:
        assert schedule.block_vectors > 1
        assert 4 * inner * (schedule.block_vectors * schedule.lanes + schedule.block_rows) <= target.l1_bytes


def test_eight_rows_are_cut_so_that_each_number_loaded_is_used_several_times() -> None:
    schedule = choose_schedule("f32", (8, 512, 128), replace(TARGETS[0], l1_bytes=48 * 1024))
    if TARGETS[0].vector_bytes >= 64:
        assert (schedule.block_rows, schedule.block_vectors) == (4, 3)


def test_parts_are_outside_for_many_rows_which_share_a_panel_by_parts() -> None:
    assert not choose_schedule("f32", (16, 64, 512), TARGETS[0]).parts_inside
