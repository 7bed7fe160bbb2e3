"""The chapter's listings run under Weft's names and print what the text claims."""

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
    assert "DataParallel(\n  (module): Linear(in_features=10, out_features=1, bias=True)\n)\n" in printed
    assert 'Missing key(s) in state_dict: "weight", "bias"' in printed
    assert "matched:    2 tensors" in printed
    assert "module.weight -> weight" in printed
    assert "on cpu:0 cpu:3\n" in printed
    assert printed.count(": same values: True\n") == 6
    assert len(re.findall(r"test acc: 0\.\d\d, \d+\.\d sec/epoch on \[", printed)) == 2
    assert "epoch 1, loss" in printed


@pytest.mark.slow
def test_imperative_symbolic_and_hybrid_programming(monkeypatch: Any, capsys: Any) -> None:
    run("hybridize.py", ["--calls", "50"], monkeypatch)
    printed = capsys.readouterr().out
    assert printed.startswith("imperative: 10\n")
    assert "    g = add(e, f)\n    return g\n\nprint(fancy_func(1, 2, 3, 4))\n\n10\n" in printed
    assert "optimised as a whole: print(10)" in printed
    assert printed.count("\n10\n") == 2  # of the text as it is, and of the text optimised
    assert re.search(r"before hybridizing time: \d+\.\d{4} sec\nafter hybridizing time: \d+\.\d{4} sec\n", printed)
    differences = re.findall(r"largest difference (\S+)", printed)
    assert len(differences) == 2  # hybridized, and loaded from a file
    assert max(map(float, differences)) < 1e-5


@pytest.mark.slow
def test_asynchronous_computation(monkeypatch: Any, capsys: Any) -> None:
    run("asynchronous.py", ["--size", "50", "--repeats", "3"], monkeypatch)
    printed = capsys.readouterr().out
    assert printed.startswith("tensor([[3., 3.]])\n")
    assert "ready without waiting: True" in printed
    assert re.findall(r"(.*) time: \d+\.\d{4} sec", printed) == [
        "numpy",
        "weft, queued and finished",
        "weft, a look at every result",
        "wait for one tensor",
        "waitall",
        "numpy()",
        "item()",
    ]


@pytest.mark.slow
def test_automatic_parallelism(monkeypatch: Any, capsys: Any) -> None:
    run("parallel.py", ["--size", "32", "--products", "8"], monkeypatch)
    printed = capsys.readouterr().out
    assert re.search(r"Run on cpu:0\. time: \d+\.\d{4} sec\nThen run on cpu:1\. time: \d+\.\d{4} sec\n", printed)
    assert "Run on both cpu:0 and cpu:1 in parallel. time:" in printed
    assert "all results are right: True" in printed
