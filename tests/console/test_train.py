"""`weft train` as a new user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.console.conftest import Weft

from weft.console import main

RUN = """import torch
from torch import nn
import weft


def run(devices, checkpoints, lr=0.1):
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters(), lr), nn.CrossEntropyLoss(), devices,
                           checkpoints=checkpoints)
    data = [(torch.randn(6, 4), torch.arange(6) % 3)] * 3
    return trainer, data, data


def other():
    return 3


def needy(devices, depth):
    return depth


net = nn.Linear(4, 3)
"""


@pytest.fixture
def run_file(folder: Path) -> str:
    (folder / "run.py").write_text(RUN, encoding="utf-8")
    return "run.py:run"


def test_it_trains_saves_and_goes_on(weft: Weft, run_file: str, folder: Path) -> None:
    first = weft("train", run_file, "--devices", "cpu:0,cpu:1", "--checkpoints", "saved", "--epochs", "1")
    assert first.status == 0
    assert (folder / "saved" / "latest").exists()
    again = weft("train", run_file, "--checkpoints", "saved", "--epochs", "2", "--resume", "auto", "--json")
    assert [row["epoch"] for row in json.loads(again.out)["history"]] == [1, 2]
    assert again.err.count("epoch") == 1  # the second only


def test_the_code_that_it_shows_is_one_call(weft: Weft) -> None:
    shown = weft("train", "run.py:run", "--processes", "2", "--set", "lr=0.5", "--show-code")
    assert shown.out.strip().endswith("print(train('run.py:run', processes=2, values={'lr': 0.5}))")


@pytest.mark.parametrize(
    "words, fact",
    [
        (["run.py:other"], "run.py:other gives int, which is no training run"),
        (["run.py:net"], "net in run.py is a Linear, which is no training run"),
        (["run.py:needy"], "run.py:needy needs depth"),
        (["run.py:nothing"], "run.py has no function or class 'nothing'"),
        (["absent.py:run"], "there is no file absent.py"),
        (["run.py:run", "--set", "size=3"], "run.py:run takes no 'size'"),
        (["run.py:run", "--set", "size"], "'size' sets nothing"),
        (["run.py:run", "--set", "device=cpu:0"], "did you mean devices?"),
    ],
)
def test_a_wrong_word_is_named(weft: Weft, run_file: str, words: list[str], fact: str) -> None:
    answer = weft("train", *words)
    assert answer.status == 2
    assert fact in answer.err


FORGETFUL = """import torch
from torch import nn
import weft


def run():
    net = nn.Linear(4, 3)
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.1), nn.CrossEntropyLoss(), "cpu:0")
    return trainer, [(torch.ones(6, 4), torch.arange(6) % 3)] * 3
"""


def test_a_run_that_knows_nothing_of_checkpoints_goes_on_too(weft: Weft, folder: Path) -> None:
    (folder / "run.py").write_text(FORGETFUL, encoding="utf-8")
    assert weft("train", "run.py:run", "--resume", "auto").status == 0
    assert (folder / "checkpoints" / "latest").exists()
    again = weft("train", "run.py:run", "--resume", "auto", "--epochs", "2", "--json")
    assert [row["epoch"] for row in json.loads(again.out)["history"]] == [1, 2]
    assert again.err.count("epoch") == 1


def test_devices_that_a_run_would_not_use_are_refused(weft: Weft, folder: Path) -> None:
    (folder / "run.py").write_text(FORGETFUL, encoding="utf-8")
    answer = weft("train", "run.py:run", "--devices", "cpu:0,cpu:1")
    assert answer.status == 2
    assert "run.py:run takes no 'devices'" in answer.err


def test_an_exception_of_the_run_is_shown_from_its_own_lines_on(weft: Weft, folder: Path) -> None:
    (folder / "run.py").write_text("def run():\n    return int('none')\n", encoding="utf-8")
    answer = weft("train", "run.py:run")
    assert answer.status == 4
    assert answer.err.count('  File "') == 1
    assert "where run.py:2   return int('none')" in answer.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "lr=abc"], "lr is set to 'abc'"),
        (["--set", "synthetic=maybe"], "it is true or false"),
        (["--set", "batch_size=true"], "it is a number, 256 unless set"),
        (["--devices", "cuda:7"], "there is no device cuda:7"),
        (["--devices", "tpu:0"], "there is no device called 'tpu:0'"),
    ],
)
def test_what_is_set_wrongly_is_the_users_to_mend_before_anything_is_read(
    capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["train", "examples.lenet", *words]) == 2
    assert told in capsys.readouterr().err
