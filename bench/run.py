"""Run the package `bench` by `python bench/run.py`, from the folder above it."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts a script's own folder first; there `bench` cannot be found, and row.py or report.py might be.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("bench", run_name="__main__", alter_sys=True)
