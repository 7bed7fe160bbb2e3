"""The examples of a practitioner run, and say what they are about."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *words])
    main = runpy.run_path(str(EXAMPLES / name))["main"]
    assert not main()


@pytest.mark.slow
def test_an_image_model_gives_the_same_answers_as_a_program(monkeypatch, capsys) -> None:
    run("image_model.py", monkeypatch)
    assert "answers agree" in capsys.readouterr().out


@pytest.mark.slow
def test_a_gpu_and_a_cpu_train_one_model(monkeypatch, capsys) -> None:
    run("gpu_and_cpu.py", monkeypatch)
    assert "accuracy 0.9" in capsys.readouterr().out


def test_a_folder_of_old_checkpoints_is_converted_and_verified(monkeypatch, capsys) -> None:
    run("old_checkpoints.py", monkeypatch)
    told = capsys.readouterr().out
    assert told.count("the same model") == 3
    assert "cut.pt" in told
    assert "1 could not be converted" in told
