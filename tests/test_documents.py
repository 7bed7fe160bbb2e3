"""The code in the documents runs, top to bottom, prints what they say, and their links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.config import OPTIONS
from weft.console.commands import COMMANDS

ROOT = Path(__file__).parents[1]
READMES = ["README.md", "README.zh-CN.md"]
TUTORIALS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "tutorials").glob("*.md"))
WHOLE = [*READMES, *TUTORIALS]
WHOLE += [f"docs/{name}.md" for name in ("index", "performance", "how-to-add-a-device")]
WHOLE += [f"docs/{name}.md" for name in ("hybridize", "many-devices", "checkpoints", "serving")]
# What the blocks of others use of what a reader has already.
GIVEN = "import torch\nimport weft\nnet, x = torch.nn.Linear(3, 2), torch.ones(1, 3)"
OTHERS = ["docs/program-file.md", "docs/step.md", "docs/symbolic.md"]
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def blocks(name: str) -> list[tuple[str, str]]:
    """Give the blocks of Python of a document, each with what the block of text behind it says that it prints."""
    return BLOCK.findall((ROOT / name).read_text(encoding="utf-8"))


def says(expected: str, printed: str) -> bool:
    """Compare, where `...` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in re.sub(r"\s+", " ", expected).strip().split("..."))
    return re.fullmatch(pattern, re.sub(r"\s+", " ", printed).strip()) is not None


def run(name: str, given: str = "") -> None:
    names: dict[str, Any] = {"__name__": "document"}
    exec(given, names)
    for number, (code, expected) in enumerate(blocks(name)):
        printed = io.StringIO()
        filename = f"<{name} block {number}>"
        # As in a file or a notebook, errors can show the line.
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        with contextlib.redirect_stdout(printed):
            exec(compile(code, filename, "exec"), names)
        assert not expected or says(expected, printed.getvalue()), f"block {number} printed:\n{printed.getvalue()}"


@pytest.mark.slow
@pytest.mark.usefixtures("usual_limits")
@pytest.mark.parametrize("name", WHOLE)
def test_the_code_of_a_document_runs_and_prints_what_it_says(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run(name)


@pytest.mark.parametrize("name", OTHERS)
def test_the_code_of_a_page_runs_with_what_a_reader_has(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run(name, GIVEN)


def test_dots_stand_for_anything_and_nothing_else_does() -> None:
    assert says("a ... c\n", "a  b\nc")
    assert not says("a ... c", "a b d")
    assert not says("a.c", "abc")


def test_both_readmes_show_the_same_code() -> None:
    english, chinese = ([re.sub(r"  # .*", "", code) for code, _ in blocks(name)] for name in READMES)
    assert english == chinese


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_to_files(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)", text) if "://" not in target]
    assert [target for target in targets if not (ROOT / name).parent.joinpath(target).exists()] == []


def test_every_public_name_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\.\. auto\w+:: (?:weft\.train\.(?:\w+\.)?)?(\w+)$", text, re.MULTILINE))
    modules = set(re.findall(r"^\.\. auto\w+:: weft::(\w+)\.", text, re.MULTILINE))
    assert set(weft.__all__) - listed - modules == set()


# What the rest of a document says by name; pages on decisions and changes speak of their day.
TODAYS = [name for name in DOCUMENTS if name != "CHANGELOG.md" and not name.startswith("docs/decisions/")]
COMMAND = re.compile(r"(?:^(?:\$ )?|`)weft ([a-z]+)\b([^#`\n]*)", re.MULTILINE)


@pytest.mark.parametrize("name", TODAYS)
def test_what_a_document_names_is_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert [word for word in re.findall(r"\bweft\.([a-zA-Z]\w*)", text) if not _is_in_weft(word)] == []
    modules = re.findall(r"python -m ((?:bench|tests|weft)(?:\.\w+)*)", text)
    assert [module for module in modules if find_spec(module) is None] == []
    paths = re.findall(r"`((?:src/weft|tests|examples|bench|docs)/[\w./-]+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    targets = re.findall(r"`make ([a-z-]+)[ `]", text)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [target for target in targets if f"\n{target}:" not in makefile] == []


def _is_in_weft(name: str) -> bool:
    return (
        hasattr(weft, name) or find_spec(f"weft.{name}") is not None or name == "header"
    )  # a part of checkpoint files


@pytest.mark.parametrize("name", TODAYS)
def test_commands_in_documents_are_understood(name: str) -> None:
    known = {command.name: {argument.name for argument in command.arguments} for command in COMMANDS}
    for command, rest in COMMAND.findall((ROOT / name).read_text(encoding="utf-8")):
        assert command in known
        options = re.findall(r"(?<!\S)--[a-z-]+", rest)
        assert {*options} <= {*known[command], "--json", "--ascii", "--show-code", "--help"}, (command, options)


def test_every_option_is_on_its_page() -> None:
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    rows = [f"| `{option.name}` | {option.accepts.replace(' | ', ', ')} | {option.sentence} |" for option in OPTIONS]
    assert [line for line in text.splitlines() if line.startswith("| `")] == rows
