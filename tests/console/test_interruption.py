"""Ctrl-C and other signals: what is said, the exit status, and that no process is left behind."""

from __future__ import annotations

import contextlib
import importlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.console.conftest import Weft

from weft.console.commands import COMMANDS

# A process that starts another one and is ended: the number of the other is its first line.
STARTED = """
import os, subprocess, sys

def told(words, **options):
    started = start(words, **options)
    os.write(1, b"%d\\n" % started.pid)  # what commands print is a message
    return started

start, subprocess.Popen = subprocess.Popen, told
from weft.console import main
sys.exit(main(sys.argv[1:]))
"""
# What Python runs first: Ctrl-C comes while the command line imports.
INTERRUPTED_IMPORT = """
import sys

class Finder:
    def find_spec(self, name, *_):
        if name == "weft.console.arguments":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
"""
# Ctrl-C comes while PyTorch imports what it can do without, and takes the exception for an answer.
SWALLOWED_INTERRUPT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "numpy":
            try:
                os.kill(os.getpid(), signal.SIGINT)
                sum(range(1000))
            except KeyboardInterrupt:
                pass

sys.meta_path.insert(0, Finder())
"""
WAIT = 40


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_after_ctrl_c_every_command_says_what_to_do(command, weft: Weft, monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("weft.console.command_line"), "_run", interrupted)
    answer = weft(command.name)
    assert answer.status == 130
    assert answer.err.splitlines()[1:] == [f"  fix   {command.interrupted}"]
    assert max(map(len, answer.err.splitlines())) <= 100


def test_a_process_that_is_asked_to_end_cleans_up_as_after_ctrl_c(weft: Weft, monkeypatch) -> None:
    cleaned = []

    def asked() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            cleaned.append("up")

    monkeypatch.setattr("weft.console.report.environment.environment", asked)
    former = signal.getsignal(signal.SIGTERM)
    answer = weft("env")
    assert (answer.status, answer.out, cleaned) == (143, "", ["up"])
    assert answer.err.startswith("weft: ended by SIGTERM; ")
    assert signal.getsignal(signal.SIGTERM) is former


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells when a process ends that is not a child")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("line", ["bench net.py:net --vs eager", "tour --stop memory"])
@pytest.mark.slow
def test_however_a_command_ends_it_leaves_no_process_behind(line: str, number: int, folder: Path) -> None:
    words = [sys.executable, "-c", STARTED, *line.split()]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        ended = _watched(int(_first_line(process)))
        process.send_signal(number)
        assert ended()
        process.wait(WAIT)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert process.stderr is not None
    return line if line else pytest.fail(process.stderr.read())


def _watched(number: int) -> Callable[[], bool]:
    place = os.pidfd_open(number)

    def ended() -> bool:
        with os.fdopen(place):
            return bool(select.select([place], [], [], WAIT)[0])

    return ended


@pytest.mark.parametrize("words", [["-m", "weft"], ["-c", "from weft.console import main; raise SystemExit(main())"]])
def test_ctrl_c_while_python_imports_is_answered_too(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_IMPORT, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, *words, "env"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "weft: interrupted; nothing had begun\n"


def test_ctrl_c_while_pytorch_is_imported_is_not_lost_in_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SWALLOWED_INTERRUPT, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "weft", "doctor"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert "weft: interrupted; " in done.stderr


@pytest.mark.slow
def test_on_a_terminal_what_is_said_after_ctrl_c_begins_a_line_of_its_own() -> None:
    number, terminal = pty.fork()
    if number == 0:
        os.execv(sys.executable, [sys.executable, "-m", "weft", "devices", "--watch", "--no-speed"])
    shown, pressed = b"", False
    with contextlib.suppress(OSError):  # the terminal goes with the process
        while select.select([terminal], [], [], WAIT)[0] and (found := os.read(terminal, 4096)):
            shown += found
            if b"cpu:0" in shown and not pressed:
                pressed = True
                os.write(terminal, b"\x03")
    _, status = os.waitpid(number, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    _, _, after = shown.decode().partition("^C")
    assert re.match(r"(\r|\x1b\[K|[^\n]*\r)*\n+weft: interrupted; ", after), after
