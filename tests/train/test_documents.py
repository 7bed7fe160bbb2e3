"""The code in docs/checkpoints.md runs, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def test_the_code_on_the_page_of_checkpoints_runs(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), names)
    assert capsys.readouterr().out == "7 2 [0.9, 0.7]\n"
