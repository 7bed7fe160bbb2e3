"""`python -m tests.train.many_mutations [20000]`: many damaged checkpoints, loaded as they were or refused."""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from tests.train.mutations import mutated
from tests.train.test_checkpoint_damage import check_foreign, model, outcome, saved

WARM_UP = 200  # files, after which what is kept for good has been allocated
MOST = 32.0  # MiB that loading any damaged file may take beyond that; the files have a few KiB


def most_memory() -> float:
    """Give the most that this process ever had in memory, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def refused(count: int, is_refused: Callable[[int], bool]) -> str:
    """Load so many damaged files, and say how many were refused and what memory it took."""
    found = sum(map(is_refused, range(WARM_UP)))
    before = most_memory()
    found += sum(map(is_refused, range(WARM_UP, count)))
    more = most_memory() - before
    assert more < MOST, f"{more:.0f} MiB"
    return f"{found} of {count} refused, the others loaded as they were saved, {more:.0f} MiB more at most"


def main(count: int) -> None:
    """Damage a file of each kind so many times."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net"
        right = saved(path)
        content = path.read_bytes()
        print("weft.save:", refused(count, lambda seed: bool(outcome(path, mutated(content, seed), right))))
        net = model()
        torch.save(net.state_dict(), path)
        foreign = path.read_bytes()
        print("torch.save:", refused(count, lambda seed: check_foreign(path, mutated(foreign, seed), net.state_dict())))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
