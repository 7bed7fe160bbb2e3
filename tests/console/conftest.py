"""A folder as a new user has it, and the command line run in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from weft.console import main

NET = """import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
example_inputs = torch.ones(1, 8)


def double(x):
    return x * 2


class Branchy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, x):
        y = self.inner(x)
        if y.sum() > 0:
            y = y + 1
        scale = y.abs().max().item()
        return y[y > 0] * scale


class Sized(nn.Module):
    def __init__(self, size):
        super().__init__()
"""


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str


Weft = Callable[..., Answer]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a file of models."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET, encoding="utf-8")
    return tmp_path


@pytest.fixture
def weft(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Weft:
    """Run a command line; how slow this machine is does not show in what is told."""
    monkeypatch.setattr("weft.console.terminal.QUIET", 1e6)

    def run(*words: str) -> Answer:
        status = main(list(words))
        found = capsys.readouterr()
        return Answer(status, found.out, found.err)

    return run


def transcript(weft: Weft, lines: Sequence[str]) -> str:
    """Commands with what they print, as a person sees them; times and places of this machine become words."""
    texts = []
    for line in lines:
        answer = weft(*line.split()[1:])
        status = f"[exit {answer.status}]" if answer.status else ""
        texts.append("\n".join(part.rstrip() for part in (f"$ {line}", answer.out, answer.err, status) if part.strip()))
    return re.sub(r"[0-9.]+ µs", "TIME µs", "\n\n".join(texts))
