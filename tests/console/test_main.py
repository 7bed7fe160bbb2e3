"""The command line as a person meets it: help, versions, mistakes and exit statuses."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.console.conftest import Weft, transcript

import weft as package
from weft.console import main, terminal
from weft.console.commands import CHECKPOINT_ACTIONS, COMMANDS
from weft.console.outcome import as_json
from weft.errors import ExecutionError, InternalError

MISTAKES = (
    "weft evn",
    "weft frobnicate",
    "weft --verison",
    "weft env --jsn",
    "weft env now",
    "weft show",
    "weft show net.py:net --stage asn",
    "weft show net.py",
    "weft show net.py:nett",
    "weft show nte.py:net",
    "weft show net.py:Sized",
    "weft show net.py:net --input 1x8",
    "weft show net.py:net --input 1,5",
    "weft show net.py:net --stage draw",
    "weft show net.py:Branchy",
    "weft run nte.weft",
    "weft devices --watch --once",
)


def test_weft_alone_is_ten_lines_that_end_in_what_to_try(weft: Weft) -> None:
    answer = weft()
    assert answer.status == 0
    assert len(answer.out.splitlines()) == 10
    assert answer.out.splitlines()[-1].startswith("try: weft ")


def test_the_version_is_the_packages(weft: Weft) -> None:
    assert weft("--version").out == f"weft {package.__version__}\n"


def test_help_begins_with_examples(weft: Weft, golden) -> None:
    assert weft("--help").out.startswith("examples\n")
    golden(
        "cli", "help", "\n".join(weft(*words).out for words in (["--help"], *([c.name, "--help"] for c in COMMANDS)))
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_is_found_in_every_way_and_fits_eighty_columns(command, weft: Weft) -> None:
    asked = weft("help", command.name).out
    assert asked == weft(command.name, "--help").out == weft(command.name, "--nonsense", "--help").out
    assert max(map(len, asked.splitlines())) <= 80
    assert asked.index("examples") < asked.index("usage")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_example_is_understood(command, weft: Weft) -> None:
    for example, _ in command.examples:
        words = example.split()[1:]
        assert weft(*words, "--show-code").status == 0, example


def test_mistakes_are_named_with_the_way_out(weft: Weft, golden) -> None:
    golden("cli", "mistakes", transcript(weft, MISTAKES))


def test_mistakes_leave_standard_output_empty(weft: Weft) -> None:
    answer = weft("show", "nte.py:net")
    assert (answer.status, answer.out) == (2, "")


def test_an_error_is_data_too_where_data_is_asked_for(weft: Weft) -> None:
    answer = weft("show", "nte.py:net", "--json")
    found = json.loads(answer.out)
    assert found["schema"] == 1
    assert found["error"]["class"] == "UsageError"
    assert found["error"]["status"] == answer.status == 2


@pytest.mark.parametrize("words", ["", "--version", "--help", "help", "help ckpt", "ckpt --help", "env --show-code"])
def test_what_is_said_about_weft_is_data_too(words: str, weft: Weft) -> None:
    for asked in (f"{words} --json", f"{words} --json --ascii"):
        answer = weft(*asked.split())
        assert (answer.status, answer.err) == (0, "")
        found = json.loads(answer.out)
        assert found["schema"] == 1
        assert found["command"] == next((name for name in ("ckpt", "env") if name in words), None)
        told = weft(*words.split()).out.rstrip("\n")
        assert found.get("code", found.get("help")) == told
        assert found.get("version", package.__version__) == package.__version__


@pytest.mark.parametrize(
    ("error", "status"),
    [(ExecutionError("it failed"), 4), (InternalError("ours"), 70), (KeyboardInterrupt(), 130)],
)
def test_the_exit_status_says_whose_fault_it_is(error, status, weft: Weft, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("weft.console.report.environment.environment", fail)
    answer = weft("env")
    assert (answer.status, answer.out) == (status, "")
    assert "weft: " in answer.err
    found = json.loads(weft("env", "--json").out)
    assert (found["schema"], found["command"], found["error"]["status"]) == (1, "env", status)
    assert found["error"].keys() == {"class", "fact", "where", "why", "fix", "status"}


def test_numbers_that_json_does_not_have_are_null() -> None:
    found = json.loads(as_json("train", {"loss": [float("nan"), 1.5, {"most": float("inf")}]}))
    assert found["loss"] == [None, 1.5, {"most": None}]


def test_an_exception_that_nobody_expected_is_a_mistake_in_weft(weft: Weft, monkeypatch) -> None:
    monkeypatch.setattr("weft.console.report.environment.environment", {}.popitem)
    answer = weft("env")
    assert (answer.status, answer.out) == (70, "")
    assert "KeyError: this is a mistake in Weft" in answer.err
    assert json.loads(weft("env", "--json").out)["error"]["status"] == 70


def test_an_exception_of_the_users_file_is_told_with_its_line(weft: Weft, folder) -> None:
    (folder / "run.py").write_text(
        "def run():\n    return {}['data']\n\n\ndef long():\n    import json\n    json.loads('')\n"
    )
    answer = weft("train", "run.py:run")
    assert (answer.status, answer.out) == (4, "")
    assert answer.err.endswith("weft: KeyError: 'data'\n  where run.py:2   return {}['data']\n")
    assert "where run.py:7   json.loads('')" in weft("train", "run.py:long").err


def test_a_reader_that_goes_away_is_no_error() -> None:
    text = f"{sys.executable} -m weft --help | head -1"
    found = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("examples\n", "")


def test_ascii_is_ascii(weft: Weft) -> None:
    assert weft("doctor", "--ascii").out.isascii()
    assert not weft("doctor").out.isascii()


def test_a_terminal_that_knows_only_ascii_gets_ascii(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert terminal.style_of(ascii_only=False).ascii


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_and_no_color_forbids_them(weft: Weft, monkeypatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain = weft("--help").out
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(["--help"]) == 0
    assert "\x1b[" in screen.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    bare = Terminal()
    monkeypatch.setattr(sys, "stdout", bare)
    main(["--help"])
    assert "\x1b[3" not in bare.getvalue()  # bold may stay; colours may not
    assert "\x1b" not in plain


def test_without_rich_everything_is_there_plainly(weft: Weft, monkeypatch) -> None:
    plain = weft("--help").out
    monkeypatch.setattr(terminal.importlib.util, "find_spec", lambda name: None)
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    main(["--help"])
    assert screen.getvalue() == plain


def test_starting_without_torch_takes_less_than_a_third_of_a_second() -> None:
    code = (
        "import sys\nfrom weft.console import main\nmain(['--version'])\nmain(['--help'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    start = time.perf_counter()
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, "something on the way to --version imports PyTorch"
    assert time.perf_counter() - start < 5  # the machine may be busy; what counts is that PyTorch was not imported


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", ["--help", "--version --json", "env nope --json"])
def test_a_full_disk_under_standard_output_is_said(words: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "weft", *words.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 4
    assert done.stderr.endswith("weft: standard output cannot be written: No space left on device\n")


@pytest.mark.parametrize(
    "closed, words, status", [(">&-", "--help", 0), ("2>&-", "nope", 2), ("2>/dev/full", "nope", 2)]
)
def test_streams_that_are_closed_or_full_change_nothing_else(closed: str, words: str, status: int) -> None:
    done = subprocess.run(f"{sys.executable} -m weft {words} {closed}", shell=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, b"", b"")


@pytest.mark.parametrize("columns", ["40", "80"])
@pytest.mark.parametrize("given", ["", "--help", "train -h", "ckpt --help", "devices --no-speed", "env"])
def test_lines_fit_the_columns_that_there_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str, given: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(given.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert [line for line in lines if len(line) > int(columns)] == []


@pytest.mark.parametrize("words", [command.name for command in COMMANDS] + [f"ckpt {a}" for a in CHECKPOINT_ACTIONS])
def test_h_is_help_of_a_command(capsys: pytest.CaptureFixture[str], words: str) -> None:
    assert main([*words.split(), "-h"]) == main([*words.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert told[: len(told) // 2] == told[len(told) // 2 :]


@pytest.mark.parametrize("words", ["help -h", "help --help", "-h help", "--help"])
def test_help_of_help_is_help(capsys: pytest.CaptureFixture[str], words: str) -> None:
    assert main(words.split()) == main(["help"]) == 0
    told = capsys.readouterr().out
    assert told[: len(told) // 2] == told[len(told) // 2 :]


def test_no_color_is_plain_also_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main([]) == 0
    assert "\033[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert main([]) == 0
    assert "\033[" not in capsys.readouterr().out


def test_a_message_after_ctrl_c_begins_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.console.command_line._answer", interrupted)
    assert main(["env"]) == 130
    assert capsys.readouterr().err.startswith("weft: interrupted")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["env"]) == 130
    assert capsys.readouterr().err.startswith("\nweft: interrupted")
