"""Whole programs, run by a fresh interpreter that finds the same Weft as the tests."""

import os
import subprocess
import sys


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    """Run the text of a program to its end; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", text]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=True)
