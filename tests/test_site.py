"""docs/ becomes a site without a warning, and every page is in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_pages_become_a_site_without_a_warning(tmp_path: Path) -> None:
    for name in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(name, reason="the extra `docs` is not installed: make docs")
    words = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", str(DOCS), str(tmp_path)]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert pages <= {path.relative_to(tmp_path) for path in tmp_path.rglob("*.html")}
    reference = (tmp_path / "reference.html").read_text(encoding="utf-8")
    assert "weft.hybridize" in reference
    assert "autofunction" not in reference
