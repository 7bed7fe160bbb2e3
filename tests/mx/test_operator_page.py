"""The page of MXNet's operators is that of the table."""

import subprocess
import sys
from pathlib import Path

from tests.mx.operator_page import report

PAGE = Path(__file__).parents[2] / "docs" / "mx-operators.md"


def test_the_page_says_which_operators_are_there() -> None:
    assert PAGE.read_text(encoding="utf-8") == report(), "run make mxnet-operators"


def test_importing_weft_does_not_import_it() -> None:
    code = "import sys, weft; assert not [name for name in sys.modules if name.startswith('weft.mx')]"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
