"""A process that saves without end, to be killed: `python saving_process.py FOLDER FIRST_STEP`."""

from __future__ import annotations

import sys
from pathlib import Path

from weft.train.checkpoints.file_series import FileSeries
from weft.train.checkpoints.tensor_file import TensorBytes, packed

SIZE = 300_000


def main(folder: Path, first: int) -> None:
    """Save step after step, and say each that is in place."""
    series = FileSeries(folder, keep=2)
    for step in range(first, first + 1_000_000):
        blocks = {"weight": TensorBytes("U8", (SIZE,), step.to_bytes(8, "little") * (SIZE // 8))}
        series.write(step, packed(blocks, {"step": step}))
        print(step, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
