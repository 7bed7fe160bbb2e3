"""A folder of old checkpoints -> a folder of verified ones: python examples/old_checkpoints.py OLD NEW."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from weft.errors import WeftError
from weft.train.checkpoints.converting import convert
from weft.train.checkpoints.examining import difference, examine, files_of


def convert_folder(old: Path, new: Path) -> int:
    """Convert each file, compare it with what it was made of, and count those that could not be."""
    failed = 0
    for source in files_of([old]):
        target = (new / source.relative_to(old)).with_suffix(".safetensors")
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            print(f"{source.name}: {target} is there already")
            failed += 1
            continue
        try:
            found = convert(source, target)
            same = difference(source, target).same and examine(target).state == "sound"
            print(f"{source.name} -> {target.name}: {found.tensors} tensors, {'the same model' if same else 'DIFFERS'}")
            failed += not same
        except WeftError as error:  # a damaged file, or one that would run code: named, and left alone
            print(f"{source.name}: {error.fact}")
            failed += 1
    return failed


def example(folder: Path) -> None:
    """Make checkpoints as people leave them: plain, from a wrapper, inside of something else, and one cut short."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    torch.save(net.state_dict(), folder / "plain.pt")
    torch.save(nn.DataParallel(net).state_dict(), folder / "wrapped.pt")
    torch.save({"epoch": 3, "state_dict": net.state_dict()}, folder / "inside.pth")
    whole = (folder / "plain.pt").read_bytes()
    (folder / "cut.pt").write_bytes(whole[: len(whole) // 2])


def main() -> int:
    """Convert the folders that are named, or an example."""
    if len(sys.argv) == 3:
        return min(1, convert_folder(Path(sys.argv[1]), Path(sys.argv[2])))
    with tempfile.TemporaryDirectory() as name:
        old = Path(name) / "old"
        old.mkdir()
        example(old)
        failed = convert_folder(old, Path(name) / "new")
    print(f"{failed} could not be converted")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
