"""Programs for many sizes read nothing behind a tensor of small sizes: there may be no memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from tests.api.test_varying_bits import PROGRAMS, ROWS
from tests.api.test_varying_threads import one_general_program
from tests.runtime.test_poison import before_a_hole
from torch import nn

import weft


def run_before_holes() -> None:
    """Run programs at many sizes with inputs that end where memory does; printed is which comes next."""
    for name, (make, shape) in PROGRAMS.items():
        print(name, flush=True)
        function = make()
        run = function.forward if isinstance(function, nn.Module) else function
        with torch.no_grad(), one_general_program():
            general = weft.hybridize(run)
            for rows in (40, 48, *ROWS):
                x = before_a_hole(torch.randn(rows, *shape))
                torch.testing.assert_close(general(x), run(x), rtol=1e-4, atol=1e-4)
    print("done", flush=True)


@pytest.mark.slow
def test_nothing_is_read_behind_the_end_of_an_input_of_small_sizes() -> None:
    program = "from tests.api.test_varying_holes import run_before_holes; run_before_holes()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert found.stdout.split("\n")[-2:] == ["done", ""], found.stdout[-200:] + found.stderr[-2000:]
