"""The code in the documents runs, from top to bottom, and the links between them lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
WITH_CODE = ["README.md", "README.zh-CN.md", "docs/hybridize.md"]
# What their blocks use of what a reader has already.
GIVEN = "import torch\nimport weft\nnet, x = torch.nn.Linear(3, 2), torch.ones(1, 3)"
OTHERS = ["docs/program-file.md", "docs/step.md", "docs/symbolic.md"]
PAGES = ["docs/ARCHITECTURE.md", "docs/decisions/README.md", "docs/errors/README.md", "CONTRIBUTING.md"]
DOCUMENTS = [*WITH_CODE, *OTHERS, *PAGES, "docs/cli.md", "docs/security.md"]


def blocks(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", WITH_CODE)
def test_the_code_of_a_document_runs(name: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks(name)):
        exec(compile(block, f"{name} block {number}", "exec"), names)
    assert "program" in capsys.readouterr().out


@pytest.mark.parametrize("name", OTHERS)
def test_the_code_of_a_page_runs_with_what_a_reader_has(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, block in enumerate([GIVEN, *blocks(name)]):
        exec(compile(block, f"{name} block {number}", "exec"), names)


def test_both_readmes_show_the_same_code() -> None:
    english, chinese = ([re.sub(r"  # .*", "", block) for block in blocks(name)] for name in WITH_CODE[:2])
    assert english == chinese


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_to_files(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)", text) if "://" not in target]
    assert [target for target in targets if not (ROOT / name).parent.joinpath(target).exists()] == []
