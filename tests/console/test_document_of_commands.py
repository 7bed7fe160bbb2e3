"""docs/cli.md says what the commands do, and every command line in it is understood."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.console.conftest import Weft

from weft.console import outcome
from weft.console.commands import COMMANDS

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
LINES = [line.partition("#")[0].split()[2:] for block in BLOCKS for line in block.splitlines() if line.startswith("$")]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_every_command_line_is_understood(words: list[str], weft: Weft) -> None:
    assert weft(*words, *(["--show-code"] if words else [])).status == 0


def test_what_is_shown_is_what_is_printed(weft: Weft) -> None:
    shown = {block.partition("\n")[0].removeprefix("$ weft "): block.partition("\n")[2] for block in BLOCKS}
    answers = {line: output for line, output in shown.items() if output and not output.startswith("$")}
    assert answers.keys() == {"devices --no-speed --show-code"}
    assert {line: weft(*line.split()).out for line in answers} == answers


def test_the_files_that_it_gives_are_what_its_commands_take(
    weft: Weft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, code in zip(("net.py", "run.py"), re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S), strict=True):
        Path(name).write_text(code, encoding="utf-8")
    assert "return" in weft("show", "net.py:net").out
    assert weft("show", "net.py:net", "--stage", "plan").status == 0
    trained = weft("train", "run.py:run", "--devices", "2", "--resume", "auto")
    assert trained.status == 0, trained.err
    assert (
        "nothing to train: 1 epoch and 8 steps are done already" in weft("train", "run.py:run", "--resume", "auto").err
    )


def test_every_command_and_every_exit_status_has_its_place() -> None:
    assert re.findall(r"^### `weft (\w+)`$", TEXT, re.MULTILINE) == [command.name for command in COMMANDS]
    names = "OK CLAIM_FAILED USAGE UNSUPPORTED EXECUTION INTERNAL INTERRUPTED BROKEN_PIPE TERMINATED"
    statuses = [str(getattr(outcome, name)) for name in names.split()]
    assert re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE) == statuses
