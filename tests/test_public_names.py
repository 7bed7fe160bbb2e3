"""The public names of Weft are there, and `import weft` alone does not wait for PyTorch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import weft


def test_every_public_name_can_be_had_and_is_listed() -> None:
    for name in weft.__all__:
        assert getattr(weft, name).__name__.rpartition(".")[2] == name
    assert set(weft.__all__) == {name for name in dir(weft) if not name.startswith("__")}


def test_the_lazy_names_are_those_that_type_checkers_see() -> None:
    tree = ast.parse(Path(weft.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == weft.HOMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'hybridise'"):
        weft.hybridise  # noqa: B018
    shown = subprocess.run(
        [sys.executable, "-c", "import weft; weft.hybridise"], capture_output=True, text=True, check=False
    ).stderr
    assert "Did you mean: 'hybridize'?" in shown


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        ("weft.compile(net)", "weft.hybridize(net)"),
        ("weft.jit(net)", "weft.hybridize(net)"),
        ("weft.trace(net, x)", "weft.program(net, x)"),
        ("weft.train(net)", "weft.step(net, loss, optimizer)"),
    ],
)
@pytest.mark.parametrize("before", ["", "import weft.compile.pipeline, weft.train.trainer"])
def test_a_name_that_others_have_is_told_under_its_name_here(call: str, fix: str, before: str) -> None:
    """Some are rooms of Weft's own code: modules, once they have been imported."""
    code = f"import weft\n{before}\nnet = x = None\n{call}"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    name = call.partition("(")[0].partition(".")[2]
    assert f"weft has no function '{name}'" in shown
    assert f"  fix   {fix}" in shown


def test_importing_weft_does_not_import_torch() -> None:
    code = "import sys, weft; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
