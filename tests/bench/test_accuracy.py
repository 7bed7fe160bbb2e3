"""Networks trained by `weft.step` arrive where eager ones do, and the command says so when they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bench import accuracy
from bench.accuracy import Curve, main

SHORT = ["lenet", "--samples", "512", "--epochs", "1", "--seeds", "1"]


@pytest.mark.slow
def test_both_ways_are_trained_alike_and_written_down(tmp_path: Path) -> None:
    assert main([*SHORT, "--folder", str(tmp_path)]) == 0
    (written,) = tmp_path.glob("*.json")
    curves = json.loads(written.read_text())["curves"]
    eager, ours = (torch.tensor(curves[way][0]["losses"]) for way in accuracy.WAYS)
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
    assert len(ours) == 2
    assert "less eager" in written.with_suffix(".md").read_text()


def test_ways_that_arrive_elsewhere_are_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(way: str, *_rest: Any) -> Curve:
        return Curve([2.3, 1.0], [0.80 if way == "eager" else 0.78], [1.0])

    monkeypatch.setattr(accuracy, "train", train)
    assert main([*SHORT, "--folder", str(tmp_path)]) == 1
    assert "-0.0200" in next(tmp_path.glob("*.md")).read_text()
