"""Run a script of MXNet's on Weft: `python -m weft.mx script.py`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from weft.errors import UsageError
from weft.mx.installing import install


def main(arguments: list[str]) -> None:
    """Run the script with its arguments."""
    if not arguments:
        raise SystemExit("usage: python -m weft.mx script.py [arguments]")
    if not Path(arguments[0]).exists():
        raise SystemExit(str(UsageError(f"there is no script {arguments[0]}")))
    install()
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
