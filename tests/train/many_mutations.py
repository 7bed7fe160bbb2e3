"""`python -m tests.train.many_mutations [20000]`: many damaged checkpoints, loaded as they were or refused."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from tests.train.mutations import mutated
from tests.train.test_checkpoint_damage import check_foreign, model, outcome, saved


def main(count: int) -> None:
    """Damage a file of each kind so many times."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net"
        right = saved(path)
        content = path.read_bytes()
        refused = sum(bool(outcome(path, mutated(content, seed), right)) for seed in range(count))
        print(f"weft.save: {refused} of {count} refused, the others loaded as they were saved")
        net = model()
        torch.save(net.state_dict(), path)
        content = path.read_bytes()
        refused = sum(check_foreign(path, mutated(content, seed), net.state_dict()) for seed in range(count))
        print(f"torch.save: {refused} of {count} refused, the others loaded as they were saved")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
