"""The wheel: built without network, unpacked, and run from an empty folder without the source tree."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
# Both need none of these; each of them would be felt.
HEAVY = ("torch", "numpy", "llvmlite", "rich", "safetensors", "weft.api", "weft.ir")


@pytest.mark.slow
def test_a_wheel_has_all_that_the_commands_need(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling builds the wheel")
    subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    empty = tmp_path / "empty"
    empty.mkdir()

    def run(*words: str) -> str:
        line = [sys.executable, "-m", "weft", *words]
        place = os.environ | {"PYTHONPATH": str(tmp_path / "installed"), "WEFT_CACHE_DIR": str(tmp_path / "cache")}
        found = subprocess.run(line, cwd=empty, env=place, capture_output=True, text=True, check=True)
        assert found.stderr == ""
        return found.stdout

    assert run("--version") == f"weft {weft.__version__}\n"
    assert run("--help").startswith("examples\n")
    assert "torch" in run("env")


def test_what_is_imported_is_declared() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.search(r"^dependencies = \[(.*?)^\]", project, re.DOTALL | re.MULTILINE)
    assert declared is not None
    known = {name.replace("-", "_") for name in re.findall(r'"([\w-]+)>=', declared[1])} | {"weft"}
    found: set[str] = set()
    for path in (ROOT / "src" / "weft").rglob("*.py"):
        for node in ast.parse(
            path.read_text(encoding="utf-8")
        ).body:  # those inside of functions and `try` are optional
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found.add(node.module.partition(".")[0])
    assert found - set(sys.stdlib_module_names) - known == set()


@pytest.mark.parametrize("words", ["--version", "--help", "help ckpt", "bench --help"])
def test_help_and_version_import_nothing_heavy(words: str) -> None:
    code = (
        "import sys\nfrom weft.console import main\nstatus = main(sys.argv[1:])\n"
        f"print(sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)\nsys.exit(status)"
    )
    line = [sys.executable, "-c", code, *words.split()]
    found = subprocess.run(line, capture_output=True, text=True, check=True)
    assert found.stderr == "[]\n"
