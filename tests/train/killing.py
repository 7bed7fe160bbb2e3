"""`python -m tests.train.killing [600] [SEED]`: a process that saves is killed at random; the file it names is good."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.train import saving_process

from weft.files import sweep_orphans
from weft.train.checkpoints.file_series import FileSeries
from weft.train.checkpoints.tensor_file import read_tensor_file

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
LONGEST = 0.05  # seconds between the first file that is in place and the kill


def kill_once(folder: Path, first: int, source: random.Random) -> int:
    """Start a process, kill it after a moment, and give the last step that it said to be in place."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, saving_process.__file__, str(folder), str(first)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        said = [process.stdout.readline()]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=source.uniform(0, LONGEST))
        process.send_signal(source.choice(SIGNALS))
        said += process.stdout.readlines()
        process.wait(timeout=30)
    whole = [line for line in said if line.endswith("\n")]
    return int(whole[-1])


def check(folder: Path, said: int) -> int:
    """The file that `latest` names is whole, and not older than what was said; gives its step."""
    newest = FileSeries(folder, None).newest_first()
    found = read_tensor_file(newest[0]).description["step"]
    assert found in (said, said + 1), (found, said)
    assert (folder / "latest").read_text() == f"{FileSeries(folder, None).path(found).name}\n"
    for path in newest:
        read_tensor_file(path)
    return found


def kill_many(folder: Path, count: int, seed: int) -> int:
    """Kill so many processes, each going on where the last one was; give how many left a temporary file behind."""
    source, step, orphans = random.Random(seed), 0, 0
    for _ in range(count):
        step = check(folder, kill_once(folder, step + 1, source))
        swept = sweep_orphans(folder)
        orphans += len(swept)
    assert not [path for path in folder.iterdir() if path.name.endswith(".part")]
    return orphans


if __name__ == "__main__":
    given = [*sys.argv[1:], *["600", "0"][len(sys.argv) - 1 :]]
    times, number = int(given[0]), int(given[1])
    with tempfile.TemporaryDirectory() as place:
        left = kill_many(Path(place), times, seed=number)
    print(f"{times} kills with seed {number}, each last file good; {left} temporary files swept")
