"""Lanes have equal shares of what a call of some sizes needs of a kernel, whatever the sizes are."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import pytest
from tests.plan.general_calls import general_calls
from torch import nn

from weft.plan.kernels.gemm import GemmKernel
from weft.plan.kernels.kernel import KINDS
from weft.plan.schedule.shares import FOLLOWED, TileAxis, first_tile, is_shared, tile_axes

GRIDS = [
    (TileAxis(7, end=0),),
    (TileAxis(5, end=0), TileAxis(6, 8, end=1)),
    (TileAxis(3), TileAxis(4, end=0), TileAxis(2)),
    (TileAxis(4, end=0), TileAxis(3), TileAxis(5, 2, end=1), TileAxis(2)),
]


@pytest.mark.parametrize("of", [1, 2, 3, 8])
@pytest.mark.parametrize("axes", GRIDS)
def test_shares_are_equal_parts_of_the_tiles_that_are_needed(axes: tuple[TileAxis, ...], of: int) -> None:
    tiles = prod(axis.count for axis in axes)
    places = list(product(*(range(axis.count) for axis in axes)))
    for ends in product(range(9), range(0, 50, 7)):
        needed = [axis.needed(ends) for axis in axes]
        firsts = [first_tile(axes, ends, (number, of), tiles) for number in range(of + 1)]
        assert firsts == sorted(firsts)
        assert (firsts[0], firsts[-1]) == (0, tiles)
        wanted = [all(at < most for at, most in zip(place, needed, strict=True)) for place in places]
        counts = [sum(wanted[begin:end]) for begin, end in pairwise(firsts)]
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("of", [2, 3])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 12, 13, 16, 17, 31, 33, 40, 99])
@pytest.mark.parametrize("texts", [1, 2, 3])
def test_the_last_rows_are_less_work(texts: int, rows: int, of: int) -> None:
    axes = (TileAxis(3, end=0), TileAxis(5, 8, end=1, varies=True), TileAxis(6))
    ends = (texts, rows)
    firsts = [first_tile(axes, ends, (number, of), 90) for number in range(of + 1)]
    assert firsts == sorted(firsts)
    works = []
    for begin, end in pairwise(firsts):
        works.append(0)
        for tile in range(begin, end):
            text, rest = divmod(tile, 30)
            there = min(max(min(rows, 40) - rest // 6 * 8, 0), 8)
            there = next(height for height in (0, 2, 4, 8) if there <= height)
            works[-1] += there + 4 if there and text < texts else 0
    assert max(works) - min(works) <= 2 * (min(rows, 8) + 4), "a tile at either end"


def test_products_of_rows_have_less_work_in_their_last_rows() -> None:
    calls = general_calls(*NETS["rows"])
    products = [axes for call in calls if isinstance(call.kernel, GemmKernel) and (axes := tile_axes(call))]
    assert products
    for rows, columns in products:
        assert rows.varies == (columns.count > 1)
        assert not columns.varies


def test_a_step_is_needed_where_any_of_its_places_is() -> None:
    axis = TileAxis(4, 8, end=0)
    assert [axis.needed([end]) for end in (0, 1, 8, 9, 32, 99)] == [0, 1, 1, 2, 4, 4]
    assert TileAxis(3).needed([0]) == 3


NETS = {
    "rows": (nn.Sequential(nn.Linear(96, 200), nn.ReLU(), nn.LayerNorm(200), nn.Linear(200, 48)), (30, 96), (40, 96)),
    "texts": (nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (3, 20, 64), (8, 30, 64)),
    "images": (
        nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3)),
        (2, 3, 30, 41),
        (5, 3, 40, 50),
    ),
    "pools": (nn.Sequential(nn.MaxPool2d(3, 2), nn.Conv2d(3, 16, 1), nn.AvgPool2d(2)), (2, 3, 30, 41), (5, 3, 40, 50)),
    "steps": (nn.LSTM(32, 48, batch_first=True), (3, 20, 32), (8, 30, 32)),
}


@pytest.mark.parametrize("name", NETS)
def test_calls_of_small_sizes_have_shares(name: str) -> None:
    module, *sizes = NETS[name]
    calls = general_calls(module, *sizes)
    shared = [call for call in calls if is_shared(call)]
    assert shared
    for call in shared:
        axes = tile_axes(call)
        assert axes or call.needed
        exact = prod(axis.count for axis in axes)
        if isinstance(call.kernel, GemmKernel):
            assert exact == call.kernel.tile_count
        for of in (2, 3):
            firsts = [
                first_tile(axes, [end.most for end in call.ends], (number, of), call.kernel.tile_count)
                for number in range(of + 1)
            ]
            assert firsts == sorted(firsts)
            assert firsts[-1] == call.kernel.tile_count


def test_a_text_alone_is_shared_by_lanes() -> None:
    products = [call for call in general_calls(*NETS["texts"]) if type(call.kernel) is GemmKernel]
    assert products
    for call in products:
        axes = tile_axes(call)
        middle = first_tile(axes, [1, 20] if len(call.ends) > 1 else [1], (1, 2), call.kernel.tile_count)
        each = call.kernel.tile_count // axes[0].count
        assert 0 < middle < each, "the tiles of the first text alone"


def test_kinds_whose_loops_end_say_what_their_tiles_follow() -> None:
    ending = {kind for kind in KINDS.values() if "ends" in getattr(kind, "__dataclass_fields__", {})}
    without = {kind.__name__ for kind in ending - FOLLOWED.keys()}
    assert without == {"WeightGradientKernel", "DepthwiseWeightKernel"}, "each of their tiles reads all images"
