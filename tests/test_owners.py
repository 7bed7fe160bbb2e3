"""Whose code a file holds: what is blamed, watched and never interrupted depends on it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from weft.owners import Owner, owner_of

PACKAGES = Path(torch.__file__).parents[1]


@pytest.mark.parametrize(
    "filename, owner",
    [
        (weft.__file__, Owner.WEFT),
        (torch.__file__, Owner.TORCH),
        (torch.nn.modules.linear.__file__, Owner.TORCH),
        (np.__file__, Owner.INSTALLED),
        (str(PACKAGES / "torchvision" / "models" / "resnet.py"), Owner.INSTALLED),  # begins as PyTorch's folder does
        ("/usr/lib/python3/dist-packages/apt.py", Owner.INSTALLED),
        (contextlib.__file__, Owner.PYTHON),
        ("<frozen importlib._bootstrap>", Owner.PYTHON),
        (__file__, Owner.USER),
        ("<string>", Owner.USER),
        ("<ipython-input-1-abc>", Owner.USER),
        ("net.py", Owner.USER),
    ],
)
def test_a_files_name_tells_its_owner(filename: str, owner: Owner) -> None:
    assert owner_of(filename) is owner


def test_a_folder_that_is_imported_by_a_link_is_known_by_both_names(tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.symlink_to(Path(weft.__file__).parents[1])
    code = f"""
import sys
sys.path.insert(0, {str(linked)!r})
import weft
from weft.owners import Owner, owner_of
assert weft.__file__.startswith({str(linked)!r}), weft.__file__
print(owner_of(weft.__file__) is owner_of({weft.__file__!r}) is Owner.WEFT)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout.strip() == "True"
