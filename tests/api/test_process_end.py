"""However a short script ends, nothing of Weft's own is printed after it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BEGIN = """
import atexit, logging, os, sys, threading, time, torch, weft
from torch import nn
logging.getLogger("weft").setLevel(40)
net = weft.hybridize(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2)))
x = torch.ones(2, 4)
"""
ENDS = {
    "with sys.exit after a call": "net(x); sys.exit(3)",
    "with a mistake of the user": "net(torch.ones(2, 5))",
    "with an error that is caught": "try: net(torch.ones(2, 5))\nexcept RuntimeError: pass",
    "while a thread makes its first call": "threading.Thread(target=net, args=(x,)).start()",
    "with a first call that trains at exit": "atexit.register(lambda: net(x).sum().backward())",
    "with lazy work that nobody waits for": "lazy = weft.lazy(); lazy.__enter__(); y = net.forward(x) + 1",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What all these scripts share: the first measures the machine, and compiles what every program needs."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_nothing_of_ours_is_printed_at_the_end(end: str, cache: str) -> None:
    code = BEGIN + ENDS[end]
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "WEFT_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        timeout=200,  # on a busy machine
        check=False,
    )
    expected = {"with sys.exit after a call": 3, "with a mistake of the user": 1}.get(end, 0)
    assert found.returncode == expected, found.stderr
    ours = "RuntimeError: mat1 and mat2" if end == "with a mistake of the user" else ""
    assert ours in found.stderr
    assert "Exception in thread" not in found.stderr
    assert "Exception ignored" not in found.stderr
    if not ours:
        assert found.stderr == ""
