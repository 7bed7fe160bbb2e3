"""Pictures of graphs: every box is there, nothing overlaps, text is escaped, nothing is left to chance."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ir.random_graphs import graphs
from tests.programs.program_examples import parts

from weft.errors import ExecutionError
from weft.ir.graph import Graph
from weft.ir.parser import parse_graph
from weft.programs.drawing import GAP_DOWN, DrawnBox, Layout, draw, lay_out, picture

SVG = "{http://www.w3.org/2000/svg}"
STATE = {1: "fc.weight", 2: "fc.bias", 3: "count"}
CHAIN = "graph chain(%x: f32[2]) {{\n{lines}\n  return %{last}\n}}\n"


def root_of(graph: Graph, state: dict[int, str] | None = None) -> ET.Element:
    return ET.fromstring(picture(graph, state or {}))


def kinds(root: ET.Element) -> list[str]:
    return [group.get("class", "").removeprefix("box ") for group in root.iter(SVG + "g") if group.get("class")]


def chain(length: int) -> Graph:
    operands = ["%x", *(f"%{number}" for number in range(length))]
    lines = [f"  %{number}: f32[2] = library aten.relu.default({operands[number]})" for number in range(length)]
    return parse_graph(CHAIN.format(lines="\n".join(lines), last=length - 1))


def test_every_input_value_write_and_result_has_a_box() -> None:
    found = kinds(root_of(parts().graph, STATE))
    counts = {kind: found.count(kind) for kind in found}
    assert counts == {"argument": 1, "state": 3, "value": 4, "constant": 1, "update": 1, "write": 1, "result": 2}


def test_boxes_say_the_operator_and_the_type_and_hovering_shows_the_users_line() -> None:
    text = picture(parts().graph, STATE)
    for part in (">addmm<", ">f32[2,4]<", ">fc.weight<", "aten.addmm.default(fc.bias, x, library)", "net.py:3"):
        assert part in text
    assert "1 argument, 3 parameters, 6 values, 2 results" in text


def test_the_same_graph_gives_the_same_picture(tmp_path: Path) -> None:
    draw(parts().graph, tmp_path / "net.svg", STATE)
    assert (tmp_path / "net.svg").read_text(encoding="utf-8") == picture(parts().graph, STATE)


def test_pictures_are_for_light_and_dark_screens() -> None:
    assert "@media (prefers-color-scheme: dark)" in picture(parts().graph)


def test_text_is_escaped() -> None:
    graph = parse_graph('graph "<b>&\\u0001\\"" (%x: f32[2]) {\n  return %x\n}\n')
    root = root_of(graph, {0: "<script>alert('&')</script>"})
    texts = [element.text for element in root.iter(SVG + "text")]
    assert '<b>&�"' in texts
    assert "<script>alert('&')</script>" in texts
    assert not list(root.iter(SVG + "script"))


def test_long_names_are_cut_in_the_box_and_whole_in_the_tooltip() -> None:
    graph = parse_graph("graph g(%x: f32[2]) {\n  return %x\n}\n")
    root = root_of(graph, {0: "n" * 100})
    assert max(len(element.text or "") for element in root.iter(SVG + "text")) <= 44
    assert any("n" * 100 in (element.text or "") for element in root.iter(SVG + "title"))


def test_a_folder_that_is_not_there_is_an_execution_error(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="could not be written"):
        draw(parts().graph, tmp_path / "missing" / "net.svg")


def test_a_hundred_layers_are_a_straight_column() -> None:
    root = root_of(chain(120))
    paths = [path.get("d", "") for path in root.iter(SVG + "path") if path.get("class") == "arrow"]
    assert len(paths) == 121
    assert not any("C" in path for path in paths)


def overlapping(boxes: list[DrawnBox], layout: Layout) -> list[tuple[int, int]]:
    def near(first: int, second: int) -> bool:
        (x0, y0), (x1, y1) = layout.centres[first], layout.centres[second]
        across = abs(x0 - x1) < (boxes[first].width + boxes[second].width) / 2 - 0.01
        down = abs(y0 - y1) < (boxes[first].height + boxes[second].height) / 2 - 0.01
        return across and down

    return [pair for pair in combinations(range(len(boxes)), 2) if near(*pair)]


@st.composite
def drawings(draw_from: st.DrawFn) -> tuple[list[DrawnBox], list[tuple[int, int]]]:
    count = draw_from(st.integers(0, 14))
    box = st.builds(DrawnBox, st.floats(20, 200), st.sampled_from([30.0, 40.0]), st.booleans())
    boxes = draw_from(st.lists(box, min_size=count, max_size=count))
    pairs = list(combinations(range(count), 2))
    arrows = draw_from(st.lists(st.sampled_from(pairs), unique=True, max_size=24)) if pairs else []
    return boxes, arrows


@given(drawings())
@settings(max_examples=60)
def test_boxes_do_not_overlap_and_arrows_go_down_between_them(
    drawing: tuple[list[DrawnBox], list[tuple[int, int]]],
) -> None:
    boxes, arrows = drawing
    layout = lay_out(boxes, arrows)
    assert overlapping(boxes, layout) == []
    for (source, target), route in zip(arrows, layout.routes, strict=True):
        assert route[0] == pytest.approx(
            (layout.centres[source][0], layout.centres[source][1] + boxes[source].height / 2)
        )
        assert route[-1][1] == pytest.approx(layout.centres[target][1] - boxes[target].height / 2)
        assert abs(route[-1][0] - layout.centres[target][0]) <= boxes[target].width / 2
        assert all(upper[1] <= lower[1] for upper, lower in pairwise(route))
        for x, y in route[1:-1]:
            assert 0 <= x <= layout.width
            assert 0 <= y <= layout.height
    for (x, y), box in zip(layout.centres, boxes, strict=True):
        assert box.width / 2 - 0.01 <= x <= layout.width - box.width / 2 + 0.01
        assert box.height / 2 - 0.01 <= y <= layout.height - box.height / 2 + 0.01


def test_a_long_arrow_goes_around_the_boxes_between() -> None:
    boxes = [DrawnBox(100, 40) for _ in range(4)]
    layout = lay_out(boxes, [(0, 1), (1, 2), (2, 3), (0, 3)])
    for x, y in layout.routes[3][1:-1]:
        for centre in layout.centres[1:3]:
            assert abs(x - centre[0]) > 50 or abs(y - centre[1]) > 20


def test_parameters_stand_just_above_what_reads_them() -> None:
    boxes = [DrawnBox(100, 40), DrawnBox(60, 30, light=True), *(DrawnBox(100, 40) for _ in range(5))]
    layout = lay_out(boxes, [(0, 2), (2, 3), (3, 4), (4, 5), (5, 6), (1, 6)])
    assert layout.centres[1][1] == pytest.approx(layout.centres[5][1])


@pytest.mark.parametrize(("width", "beside"), [(100, True), (900, False)])
def test_what_is_not_connected_stands_beside_a_narrow_picture_and_below_a_wide_one(width: float, beside: bool) -> None:
    boxes = [DrawnBox(width, 40)] * 5
    layout = lay_out(boxes, [(0, 1), (2, 3), (3, 4)])
    assert layout.centres[2] == (width / 2, 20)
    assert (layout.centres[0][1] == 20) is beside
    assert (layout.centres[0][1] > layout.centres[4][1] + GAP_DOWN) is not beside


@given(graphs())
@settings(max_examples=25)
def test_random_graphs_have_well_formed_pictures(graph: Graph) -> None:
    root = root_of(graph)
    assert len(kinds(root)) == len(graph.inputs) + len(graph.values) + len(graph.writes) + len(graph.results)
    assert re.fullmatch(r"[\d. ]+", root.get("viewBox", ""))
