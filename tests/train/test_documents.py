"""The code on the pages about training runs, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs"
PRINTED = {"checkpoints.md": r"7 2 \[0\.9, 0\.7\]\n", "many-devices.md": r"loss 2\.\d\d\n"}


@pytest.mark.parametrize("page", PRINTED)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    text = (FOLDER / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, page, "exec"), names)
    assert re.fullmatch(PRINTED[page], capsys.readouterr().out)


@pytest.mark.parametrize("page", [*PRINTED, "checkpoint-file.md"])
def test_links_lead_to_files(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)", (FOLDER / page).read_text(encoding="utf-8"))
    assert [target for target in targets if "://" not in target and not (FOLDER / target).exists()] == []
