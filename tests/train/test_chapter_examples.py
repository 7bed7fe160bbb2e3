"""The chapter's listings for several devices run under Weft's names and print what the text claims."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "chapter"
SMALL = ["--synthetic", "--epochs", "1", "--samples", "600"]


def run(name: str, arguments: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(FOLDER / name), run_name="__main__")


@pytest.mark.slow
def test_training_from_scratch(monkeypatch: Any, capsys: Any) -> None:
    run("multiple_gpus.py", SMALL, monkeypatch)
    printed = capsys.readouterr().out
    assert "after allreduce: [tensor([[3., 3.]]), tensor([[3., 3.]])]" in printed
    assert "SYNTHETIC" in printed
    epochs = re.findall(r"epoch 1, time \d+\.\d sec, test acc (0\.\d\d)", printed)
    assert len(epochs) == 2
    assert epochs[0] == epochs[1]  # two devices give what one gives


@pytest.mark.slow
def test_concise_training_and_checkpoints(monkeypatch: Any, capsys: Any) -> None:
    run("multiple_gpus_concise.py", [*SMALL, "--net", "lenet"], monkeypatch)
    printed = capsys.readouterr().out
    assert 'Missing key(s) in state_dict: "weight", "bias"' in printed
    assert "matched:    2 tensors" in printed
    assert "module.weight -> weight" in printed
    assert len(re.findall(r"test acc: 0\.\d\d, \d+\.\d sec/epoch on \[", printed)) == 2
    assert "epoch 1, loss" in printed
