"""Every command with good, bad and missing input: what is printed, and the exit status, as a new user sees it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tests.console.conftest import Weft, transcript

# What differs from machine to machine and from run to run.
FIGURES = (
    (r"\d+ of \d+$", "COUNT of COUNT"),
    (r"compiled code is kept on disk, .*", "compiled code is kept on disk, SIZE"),
    (r"weft [\d.]+\S*, python [\s\S]*?(?=\n✓)", "VERSIONS"),
    (r"^ +1  (\d\.\d+) +\S+", r"    1  \1  SECONDS"),
    (r"^ *epoch +loss +seconds", "epoch   loss  seconds"),
    (r"seconds [\d.e-]+", "seconds SECONDS"),
    (r"^epoch \d+: batch .* batches/s\n", ""),  # told where an epoch takes long, on a busy machine
    (r"PyTorch sees \d+ CUDA", "PyTorch sees COUNT CUDA"),
    (r'(?m)^  File ".*(\n.*){1,2}?\n(?=  File|\w+Error)', ""),
    (r"Traceback[\s\S]*?(?=\nweft:)", "TRACEBACK"),
)
RUN = """import torch
from torch import nn
import weft


def run(devices):
    net = nn.Linear(4, 3)
    with torch.no_grad():
        net.weight.fill_(0.5)
        net.bias.zero_()
    trainer = weft.Trainer(net, torch.optim.SGD(net.parameters(), 0.1), nn.CrossEntropyLoss(), devices)
    return trainer, [(torch.ones(6, 4), torch.arange(6) % 3)] * 2


def failing():
    raise ValueError("there is no data")


def nothing():
    return run("cpu:0")[0], []


def once():
    trainer, data = run("cpu:0")
    return trainer, iter(data)
"""
STEP = """import torch
from torch import nn
import weft

net = nn.Linear(4, 3)
step = weft.step(net, nn.functional.cross_entropy, torch.optim.SGD(net.parameters(), 0.1))
example_inputs = (torch.ones(6, 4), torch.arange(6) % 3)
"""
MODELS = (
    "weft doctor net.py:net",
    "weft doctor step.py:step",
    "weft doctor nte.py:net",
    "weft show step.py:step",
    "weft show net.py:net --stage draw --output net.png",
    "weft show net.py:net --stage plan --output absent/net.txt",
    "weft show net.py:net --stage plan --output .",
    "weft export net.py:net --to net.py",
    "weft export net.py:net",
    "weft export absent.weft --to net",
    "weft export net.py:sorted --input 3 --to sorted",
    "weft export net.py:net --to written",
    "weft doctor net.weft",
    "weft bench net.weft",
    "weft show folder.py:net",
    "weft show net.py:Sized:net",
)
TRAINING = (
    "weft train run.py:run --devices cpu:0",
    "weft train run.py:failing",
    "weft train run.py:rn",
    "weft train run.py:nothing",
    "weft train run.py:once --epochs 2",
    "weft train broken.py:run",
    "weft train unfound.py:run",
    "weft train folder.py:run",
    "weft train examples.lnet",
    "weft train run.py:run --checkpoints net.py",
    "weft train run.py",
    "weft train run.py:run --devices cuda:99",
    "weft train run.py:run --epochs none",
    "weft train run.py:run --patience 0",
    "weft train run.py:run --resume yes",
)
MEASURING = (
    "weft bench",
    "weft bench --nope",
    "weft bench net.py:net --html absent/net.html",
    "weft bench net.py:net --export-json absent/net.json",
    "weft bench net.py:net --export-markdown absent/net.md",
    "weft bench net.py:net --trace net.py/net.json",
    "weft bench net.py:net --vs egaer",
    "weft bench net.py:net --runs 0",
    "weft tour --html absent/tour.html",
    "weft tour --stop nothing",
    "weft tour --lang de",
    "weft ckpt convert whole.pt --to absent/model.safetensors",
    "weft --json env",
    "weft bench other.py:net",
    "weft help nothing",
)


@pytest.fixture
def files(folder: Path) -> Path:
    """The files that the commands name."""
    (folder / "run.py").write_text(RUN, encoding="utf-8")
    (folder / "step.py").write_text(STEP, encoding="utf-8")
    (folder / "broken.py").write_text("def run(:\n", encoding="utf-8")
    (folder / "unfound.py").write_text("import missing_module_of_nobody\n", encoding="utf-8")
    (folder / "folder.py").mkdir()
    (folder / "written").mkdir()
    (folder / "written" / "Makefile").write_text("all:\n", encoding="utf-8")
    with (folder / "net.py").open("a", encoding="utf-8") as file:
        file.write("        self.size = size\n\n\ndef sorted(x):\n    return torch.sort(x)[0]\n")
    return folder


def normalised(text: str) -> str:
    for pattern, word in FIGURES:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("name", "lines"), [("models", MODELS), ("training", TRAINING), ("measuring", MEASURING)])
def test_commands_say_what_they_did_and_what_was_wrong(name: str, lines: tuple[str, ...], weft: Weft, golden) -> None:
    golden("cli", name, normalised(transcript(weft, lines)))


@pytest.mark.slow
def test_a_program_and_a_step_become_libraries_or_say_why_not(weft: Weft, files: Path) -> None:
    answer = weft("export", "net.py:net", "--to", "a folder")
    assert (answer.status, answer.err) == (0, "")
    assert "try: make -C 'a folder' test" in answer.out
    assert weft("export", "step.py:step", "--to", "step").status == 3


def test_nothing_is_measured_for_a_file_that_cannot_be_written(weft: Weft, folder: Path, monkeypatch) -> None:
    def measured(*_: object) -> None:
        raise AssertionError("it was measured")

    monkeypatch.setattr("weft.console.bench.comparison.compare", measured)
    monkeypatch.setattr("weft.console.tour.tour.tour", measured)
    for option in ("--html", "--export-json", "--export-markdown", "--trace"):
        answer = weft("bench", "net.py:net", option, "absent/file")
        assert answer.status == 2
        assert f"{option} absent/file: there is no folder absent" in answer.err
    assert weft("tour", "--html", str(folder)).status == 2


def test_a_file_that_would_run_code_is_not_called_damaged(weft: Weft, folder: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), folder / "whole.pt")
    answer = weft("ckpt", "verify", "whole.pt")
    assert answer.status == 4
    assert "not read" in answer.out
    assert "weights_only" not in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80
