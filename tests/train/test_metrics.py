"""Sums and curves."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch

import weft


def test_an_accumulator_sums_numbers_and_tensors() -> None:
    metric = weft.Accumulator(2)
    metric.add(1, torch.tensor(2.5, requires_grad=True))
    metric.add(torch.tensor(3), 1)
    assert (metric[0], metric[1]) == (4.0, 3.5)
    metric.reset()
    assert metric[0] == 0.0
    with pytest.raises(ValueError, match="zip"):
        metric.add(1)


def test_an_animator_keeps_points_and_draws_them(tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    animator = weft.Animator("epoch", "test acc <0, 1>", ["a", "b"], xlim=[1, 3], path=path)
    animator.add(1, (0.5, None))
    animator.add(2, [float("nan"), 0.25])
    animator.add(3, (0.75,))
    assert animator.X == [[1, 2, 3], [2]]
    assert animator.Y[0][-1] == 0.75
    root = ET.fromstring(path.read_text())
    lines = [element.get("points", "").split() for element in root if element.tag.endswith("polyline")]
    assert list(map(len, lines)) == [2, 1]
    assert lines[0] == ["48.0,140.0", "372.0,48.0"]


def test_a_plot_of_one_number_or_of_nothing_can_be_drawn() -> None:
    animator = weft.Animator()
    ET.fromstring(animator.svg())
    animator.add(1, 0.5)
    ET.fromstring(animator.svg())


def test_in_a_terminal_a_point_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    weft.Animator("epoch", legend=["loss"]).add(2, (0.5, 1))
    assert capsys.readouterr().out == "epoch 2  loss 0.5000  curve 1 1.0000\n"
