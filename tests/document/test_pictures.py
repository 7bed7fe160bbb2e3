"""Figures become pictures whose words are text and whose shapes stay inside."""

from __future__ import annotations

import re

import pytest

from weft.document.charts import Axes, Bar, bars, curve_text, curves
from weft.document.schedules import LaneBlock, Piece, flow, lanes, lanes_text

AXES = Axes(lambda x: f"{x:.0f} s", lambda y: f"{y:.0f} MB")
STAIRS = Axes(lambda x: f"{x:.0f} s", lambda y: f"{y:.0f} MB", stairs=True)
BLOCKS = (
    LaneBlock("lane 0", "gemm 8x8", "gemm", 0.0, 0.5),
    LaneBlock("lane 0", "wait for lane 1", None, 0.5, 1.0),
    LaneBlock("lane 1", "row <b>", "row", 0.25, 1.0),
)
PIECES = (
    Piece(0, "0 gemm", "8x8", "gemm"),
    Piece(1, "1 gemm", "8x8", "gemm"),
    Piece(0, "2 row", "4", "row", (0, 1)),
    Piece(0, "3 <script>", "4", "loop", (0, 2)),
)


@pytest.mark.parametrize(
    "drawn",
    [
        bars([Bar("<b>", 1, 1, 1, "<i>")], "<u>"),
        curves({"<b>": [(0, 1)]}, Axes(lambda x: "<i>", lambda y: "<u>")),
        lanes(BLOCKS, 1.0),
        flow(PIECES, "<u>"),
    ],
)
def test_words_cannot_become_markup(drawn: str) -> None:
    assert re.findall(r"<(?:b|i|u|script)>", drawn) == []
    assert drawn.count("<svg") == drawn.count("</svg>")


def test_the_longest_bar_fills_the_width_and_spreads_stay_inside() -> None:
    drawn = bars([Bar("eager", 1, 1, 1, "1"), Bar("hybrid", 2, 1.5, 4, "2", marked=True)], mark=1.0)
    assert re.findall(r"wp-fill\" style=\"width:([\d.]+)%", drawn) == ["25.0", "50.0"]
    ends = [float(a) + float(b) for a, b in re.findall(r"wp-spread\" style=\"left:([\d.]+)%;width:([\d.]+)%", drawn)]
    assert max(ends) <= 100
    assert drawn.count("left:25.0%") == 3  # the dashed line in both, and the spread of the first, which is one point


def test_a_spread_below_nothing_stays_beside_the_names() -> None:
    drawn = bars([Bar("noisy", 1, -3, 4, "1")])
    assert "left:0.0%;width:100.0%" in drawn


def test_curves_reach_from_corner_to_corner() -> None:
    drawn = curves({"loss": [(0, 4), (5, 1), (10, 2)]}, AXES)
    assert 'points="0,0 500,300 1000,200"' in drawn
    assert "4 MB" in drawn
    assert "10 s" in drawn
    assert "wp-legend" not in drawn


def test_stairs_begin_at_zero_and_keep_their_height_until_the_next() -> None:
    assert 'points="0,150 1000,150 1000,0"' in curves({"memory": [(0, 1), (1, 2)]}, STAIRS)


def test_nothing_is_drawn_of_no_points_and_one_point_is_in_the_middle() -> None:
    assert curves({}, AXES) == ""
    assert 'points="500,150"' in curves({"a": [(3, 3)]}, AXES)


def test_a_curve_in_text_has_the_heights_of_its_values() -> None:
    assert curve_text([0, 1, 2, 4, 8], 10) == "▁▂▃▅█"
    assert curve_text([0, 8, 0, 0], 2) == "█▁"
    assert curve_text([0, 0], 5) == "▁▁"
    assert curve_text([1, 2], 5, highest=8) == "▂▃"
    assert curve_text([], 5) == ""


def test_a_lane_is_a_row_of_blocks_in_text_too() -> None:
    assert lanes_text(BLOCKS, 1.0, 8) == "lane 0 |████░░░░|\nlane 1 |  ██████|"
    drawn = lanes(BLOCKS, 1.0)
    assert drawn.count("<svg") == 2
    assert "waits" in drawn


def test_many_kinds_share_a_colour() -> None:
    blocks = [LaneBlock("lane 0", f"kernel {n}", f"kind {n}", n / 20, (n + 1) / 20) for n in range(20)]
    drawn = lanes(blocks, 1.0)
    assert drawn.count("<li>") == 8
    assert "others" in drawn


def test_boxes_stand_below_what_they_need_and_one_arrow_is_enough() -> None:
    drawn = flow(PIECES)
    tops = [float(top) for top in re.findall(r'<rect x="[\d.]+" y="([\d.]+)"', drawn)]
    assert tops[0] == tops[1] < tops[2] < tops[3]
    assert drawn.count("<path") == 3  # 3 needs 0 through 2 already
