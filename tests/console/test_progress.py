"""Long commands tell what they are at; short ones are quiet."""

from __future__ import annotations

import io
import subprocess
import sys
import threading

import pytest
import torch
from tests.console.conftest import Weft

import weft as package
from weft.console.terminal import ERASE, Progress
from weft.underway import underway

WAIT = 20


class Screen(io.StringIO):
    """Standard error: a terminal or not, which tells when a line with a word was written."""

    def __init__(self, word: str, live: bool) -> None:
        super().__init__()
        self.word, self.live = word, live
        self.heard = threading.Event()

    def isatty(self) -> bool:
        return self.live

    def write(self, text: str) -> int:
        if self.word in text:
            self.heard.set()
        return super().write(text)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything takes long."""
    monkeypatch.setattr("weft.console.terminal.QUIET", 0.0)
    monkeypatch.setattr("weft.console.terminal.LOOK", 0.001)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("live", [True, False])
def test_a_stage_of_unknown_length_is_told_with_its_seconds(live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen("tracing net: 0 s", live)
    monkeypatch.setattr(sys, "stderr", screen)
    with Progress():
        underway("tracing net")
        assert screen.heard.wait(WAIT)
    assert screen.getvalue().endswith(ERASE if live else "tracing net: 0 s\n")
    told = screen.getvalue()
    underway("planning net")
    assert screen.getvalue() == told


@pytest.mark.usefixtures("impatient")
def test_where_lines_stay_a_stage_is_told_once_and_then_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen("planning", live=False)
    monkeypatch.setattr(sys, "stderr", screen)
    with Progress() as progress:
        progress._stage = "tracing"
        for second in range(25):
            progress._tell_stage(progress._start + second)
        progress.stage("planning")
        assert screen.heard.wait(WAIT)
    assert screen.getvalue().splitlines()[:3] == ["tracing: 0 s", "tracing: 10 s", "tracing: 20 s"]


@pytest.mark.parametrize("live", [True, False])
def test_what_is_quick_is_quiet(live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.console.terminal.QUIET", 1e6)
    screen = Screen("", live)
    monkeypatch.setattr(sys, "stderr", screen)
    with Progress() as progress:
        progress.stage("tracing")
        underway("planning")
    assert screen.getvalue() == ""
    assert not any(thread.name == "weft progress" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("line", "stages"),
    [
        ("doctor", ["importing PyTorch", "looking at this machine"]),
        ("doctor net.py:net", ["running net.py", "running net imperatively", "tracing Sequential"]),
        ("show net.py:net", ["running net.py", "tracing Sequential", "planning Sequential", "compiling Sequential"]),
        ("show net.py:net --stage llvm", ["tracing Sequential", "writing the stage llvm"]),
        ("run net.weft", ["reading net.weft", "running net.weft", "compiling net", "timing net"]),
        ("run net.weft --output net.npy", ["writing net.npy"]),
        ("export net.weft --to net", ["reading net.weft", "compiling net", "linking and calling libnet.so"]),
        ("devices", ["measuring the devices"]),
        ("env", ["looking at this installation"]),
    ],
)  # fmt: skip
def test_commands_name_their_stages(line: str, stages: list[str], weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    def net(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    package.program(net, torch.ones(3, 8)).save("net.weft")
    told: list[str] = []
    monkeypatch.setattr(Progress, "stage", lambda _, what: told.append(what))
    answer = weft(*line.split())
    assert answer.status == 0, answer.err
    assert [stage for stage in dict.fromkeys(told) if stage in stages] == stages, told


@pytest.mark.usefixtures("folder")
def test_a_result_stays_clean_where_a_command_takes_long() -> None:
    code = (
        "import sys\nfrom weft.console import main, terminal\nterminal.QUIET = 0.0\nterminal.LOOK = 0.001\n"
        "sys.exit(main(['show', 'net.py:net', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith('{\n  "schema": 1,')
    assert "importing PyTorch: 0 s\n" in done.stderr
