"""`weft devices --probe` measures what the chapter's tables of hardware tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weft.config import overrides
from weft.console.report import hardware
from weft.console.report.hardware import MachineNumber, probe


@pytest.fixture
def found(tmp_path: Path) -> hardware.Hardware:
    with overrides(cache_dir=tmp_path):
        return probe()


def test_figures_are_plausible_and_nothing_is_left_on_the_disk(found: hardware.Hardware, tmp_path: Path) -> None:
    figures = {figure.name: figure for figure in found.figures}
    for name in ("multiply-add, after another", "read from L1 cache", "read from L2 cache"):
        assert 1e-10 < (figures[name].measured or 0) < 1e-6, name
    assert (figures["read from L1 cache"].measured or 0) < (figures["read from L2 cache"].measured or 0)
    memory = figures["read from memory"].measured
    assert memory is None or (figures["read from L2 cache"].measured or 0) < memory < 1e-5
    assert (figures["memory, in order"].measured or 0) > 1e8
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_a_table_and_data_tell_the_same(found: hardware.Hardware) -> None:
    data = json.loads(json.dumps(found.as_dict()))
    assert [figure["name"] for figure in data["probe"]] == [figure.name for figure in found.figures]
    for figure in found.figures:
        assert figure.name in str(found)
        assert figure.text() in str(found)


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (MachineNumber("", 1.5e-9, False, ""), "1.5 ns"),
        (MachineNumber("", 1.2e-4, False, ""), "120 µs"),
        (MachineNumber("", 4.1e-3, False, ""), "4.1 ms"),
        (MachineNumber("", 2.04e10, True, ""), "20.4 GB/s"),
        (MachineNumber("", None, True, ""), "-"),
    ],
)
def test_a_figure_has_the_unit_of_the_chapters_table(figure: MachineNumber, text: str) -> None:
    assert figure.text() == text


def test_a_ring_goes_through_all_lines_once() -> None:
    ring = hardware._ring(64 * 1000)
    start = at = ring.data_ptr()
    seen = set()
    while at not in seen:
        seen.add(at)
        at = int(ring[(at - start) // 64, 0])
    assert at == start
    assert len(seen) == 1000


def test_where_the_cache_of_the_system_cannot_be_passed_the_disk_is_not_measured(monkeypatch: Any) -> None:
    monkeypatch.delattr(hardware.os, "O_DIRECT", raising=False)
    assert [figure.measured for figure in hardware._disk(Path())] == [None, None]
