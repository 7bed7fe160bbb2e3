"""Memory that is freed stays with the process, unless the user wants otherwise."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how often pages were made")

RESULTS = """
import resource
import torch
import weft

net = weft.hybridize(lambda x: x * 2 + 1)
x = torch.ones(1000, 1000)


def results():
    return [weft.wait(weft.spawn(net, x)) for _ in range(20)]


for _ in range(3):
    results()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    results()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_made(**environment: str) -> int:
    """Count the pages that a process makes for sixty results of 4 MB, of which it keeps twenty at a time."""
    command = [sys.executable, "-c", RESULTS]
    environment = {"PYTHONPATH": ":".join(sys.path), **environment}
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
def test_results_get_the_memory_of_those_before_them() -> None:
    at_once = {"MALLOC_TRIM_THRESHOLD_": "0"}  # the C library is to give back whatever is free at the end of a heap
    assert pages_made(**at_once) > 40_000
    # Usually hardly any; as many as twenty results have, or more, where a worker comes to its first turn late.
    assert any(pages_made(**at_once, WEFT_KEPT_MEMORY="256") < 30_000 for _ in range(3))
